package app

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
)

func TestClosersCloseInReverseAndAll(t *testing.T) {
	c := closers{log: slog.New(slog.DiscardHandler)}
	var order []string
	part := func(name string, err error) {
		c.add(name, func(context.Context) error { order = append(order, name); return err })
	}
	part("first", errors.New("stuck"))
	part("second", nil)
	part("third", errors.New("torn"))
	err := c.close(context.Background())
	if !slices.Equal(order, []string{"third", "second", "first"}) {
		t.Errorf("closed %v", order)
	}
	if err == nil || !strings.Contains(err.Error(), "closing third: torn") || !strings.Contains(err.Error(), "closing first: stuck") {
		t.Errorf("error %v", err)
	}
	if err := c.close(context.Background()); err != nil || len(order) != 3 {
		t.Errorf("closed twice: %v, %v", order, err)
	}
}
