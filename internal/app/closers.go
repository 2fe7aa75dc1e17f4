package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
)

// closers is what has been opened, in order. It is closed in reverse, each part
// once, whether or not the one before it failed.
type closers struct {
	log  *slog.Logger
	list []closer
}

type closer struct {
	name  string
	close func(context.Context) error
}

func (c *closers) add(name string, fn func(context.Context) error) {
	c.list = append(c.list, closer{name, fn})
}

// close is done when every part is closed; ctx bounds those that wait for others.
func (c *closers) close(ctx context.Context) error {
	var all error
	for len(c.list) > 0 {
		last := c.list[len(c.list)-1]
		c.list = c.list[:len(c.list)-1]
		c.log.Debug("closing", "part", last.name)
		if err := last.close(ctx); err != nil {
			all = errors.Join(all, fmt.Errorf("closing %s: %w", last.name, err))
		}
	}
	return all
}
