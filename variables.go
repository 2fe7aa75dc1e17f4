package sandboxd

import "context"

// Variables is what a host offers beside Host to callers that keep the variables of a
// sandbox: the environment that each of its commands gets below its own. Methods are safe
// for concurrent use; errors are Host's.
type Variables interface {
	// SetVariables replaces the whole set, for commands that start from now on; empty for
	// none. Names are as in Open. It is durable, and in no file of the
	// sandbox, no archive and no log. ClassInvalid as in Open.
	SetVariables(ctx context.Context, id string, env map[string]string) error
	// VariableNames lists the names in order. Values are write-only.
	VariableNames(ctx context.Context, id string) ([]string, error)
}
