package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"sandboxd"
)

// engine is the part of the Engine API that is used. Each call is bounded in time,
// and its errors have a class and say which of the ways of an engine to fail it is.
type engine struct {
	api   *client.Client
	where string
	limit time.Duration
}

// DefaultHost is where an engine listens that is not told otherwise.
const DefaultHost = client.DefaultDockerHost

func newEngine(host string, limit time.Duration) (*engine, error) {
	if host == "" {
		host = DefaultHost
	}
	// Not the version of the environment: it would turn the negotiation off.
	api, err := client.New(client.WithHost(host), client.WithUserAgent("sandboxd"))
	if err != nil {
		return nil, sandboxd.Invalid("DOCKER_HOST", "it is no address of an engine: %v", err)
	}
	return &engine{api: api, where: host, limit: limit}, nil
}

func (e *engine) close() error { return e.api.Close() }

// call runs one call of the API within the limit.
func (e *engine) call(ctx context.Context, fn func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, e.limit)
	defer cancel()
	err := fn(limited)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return e.silent(err)
	}
	return e.explain(err)
}

func (e *engine) silent(err error) error {
	return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the container engine does not answer: nothing came within %s", e.limit).
		WithHint("the engine may hang or be overloaded; its log says which. A restart ends its sandboxes, unless it has live-restore, and keeps their files")
}

// explain names what went wrong with a call. A class that says something about the
// thing asked for is given only to a well-formed answer of an engine.
func (e *engine) explain(err error) error {
	var known *sandboxd.Error
	var syntax *json.SyntaxError
	var shape *json.UnmarshalTypeError
	switch text := fmt.Sprint(err); {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "waiting for the container engine was given up")
	case errors.As(err, &syntax), errors.As(err, &shape), strings.Contains(text, "invalid character"), isPage(text):
		return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "what answers in the container engine's place is none").
			WithHint("see what listens at DOCKER_HOST; a proxy before the engine answers with pages of its own")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), strings.Contains(text, "connection reset"):
		return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the container engine broke off in the middle of an answer").
			WithHint("it was stopped or has crashed; its log says why")
	// The client keeps the words of it alone.
	case client.IsErrConnectionFailed(err) && strings.Contains(text, "permission denied"):
		return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the container engine's socket is not open to this user").
			WithHint("add the user to the socket's group, which is as good as root on this machine, or run the server as root")
	case client.IsErrConnectionFailed(err), strings.Contains(text, "cannot connect to the Docker daemon"):
		return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the container engine cannot be reached: it is stopped or listens elsewhere").
			WithHint("start it, install docker.io if there is none, or name its socket in DOCKER_HOST")
	case errdefs.IsNotFound(err):
		return sandboxd.Wrap(sandboxd.ClassNotFound, err, "the container engine does not know it: %s", told(err))
	case errdefs.IsConflict(err):
		return sandboxd.Wrap(sandboxd.ClassConflict, err, "the container engine refuses: %s", told(err))
	case errdefs.IsInvalidArgument(err):
		return sandboxd.Wrap(sandboxd.ClassInvalid, err, "the container engine refuses: %s", told(err))
	}
	return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the container engine failed: %s", told(err))
}

// isPage sees an answer that a person's browser should have got.
func isPage(text string) bool {
	text = strings.ToLower(text)
	return strings.Contains(text, "<html") || strings.Contains(text, "<!doctype")
}

// told is what the engine said, short enough for a person.
func told(err error) string {
	text := strings.TrimPrefix(err.Error(), "Error response from daemon: ")
	text = strings.Join(strings.Fields(text), " ")
	const most = 300
	if len(text) > most {
		text = text[:most] + "..."
	}
	return text
}

func isClass(err error, class sandboxd.Class) bool {
	return err != nil && sandboxd.ClassOf(err) == class
}

// create makes a container. A name that is taken is ClassConflict, an image that
// is not there ClassNotFound.
func (e *engine) create(ctx context.Context, opts client.ContainerCreateOptions) (id string, err error) {
	err = e.call(ctx, func(ctx context.Context) error {
		made, err := e.api.ContainerCreate(ctx, opts)
		if err == nil && len(made.ID) < 12 {
			return sandboxd.Errorf(sandboxd.ClassUnavailable, "what answers in the container engine's place is none: a container without an id")
		}
		id = made.ID
		return err
	})
	return id, err
}

func (e *engine) start(ctx context.Context, id string) error {
	return e.call(ctx, func(ctx context.Context) error {
		_, err := e.api.ContainerStart(ctx, id, client.ContainerStartOptions{})
		return err
	})
}

// attach joins a container's streams. It does so for one that is not started yet
// too.
func (e *engine) attach(ctx context.Context, id string) (*attached, error) {
	var conn *attached
	err := e.call(ctx, func(ctx context.Context) error {
		joined, err := e.api.ContainerAttach(ctx, id, client.ContainerAttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
		if err == nil {
			conn = newAttached(joined.Conn, joined.Reader)
		}
		return err
	})
	return conn, err
}

// remove ends and removes a container and returns when it is gone; nothing there
// is no error.
func (e *engine) remove(ctx context.Context, name string) error {
	err := e.call(ctx, func(ctx context.Context) error {
		_, err := e.api.ContainerRemove(ctx, name, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		return err
	})
	if isClass(err, sandboxd.ClassConflict) {
		return e.removed(ctx, name) // somebody else is removing it
	}
	if isClass(err, sandboxd.ClassNotFound) {
		return nil
	}
	return err
}

// removed waits until a container is gone.
func (e *engine) removed(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, e.limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := e.inspect(ctx, name)
		if isClass(err, sandboxd.ClassNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return e.silent(ctx.Err())
		}
	}
}

// inspect looks at a container by id or name.
func (e *engine) inspect(ctx context.Context, name string) (container.InspectResponse, error) {
	var seen client.ContainerInspectResult
	err := e.call(ctx, func(ctx context.Context) (err error) {
		seen, err = e.api.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
		if err == nil && (seen.Container.State == nil || seen.Container.Config == nil) {
			return sandboxd.Errorf(sandboxd.ClassUnavailable, "what answers in the container engine's place is none: a container without a state")
		}
		return err
	})
	return seen.Container, err
}

// list answers the containers that have all of these labels (key=value), in every
// state.
func (e *engine) list(ctx context.Context, labels ...string) ([]container.Summary, error) {
	var found client.ContainerListResult
	filters := client.Filters{}
	for _, label := range labels {
		filters.Add("label", label)
	}
	err := e.call(ctx, func(ctx context.Context) (err error) {
		found, err = e.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filters})
		return err
	})
	return found.Items, err
}
