package workspacetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"sandboxd"
)

// seen follows a watcher until every path of want has had an event of its kind
// since the call, or a resync came.
func seen(t *testing.T, w sandboxd.Watcher, want map[string]sandboxd.ChangeKind) map[string]sandboxd.FileInfo {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	infos := map[string]sandboxd.FileInfo{}
	for len(want) > 0 {
		events, err := w.Next(ctx)
		if err != nil {
			t.Fatalf("%v, while waiting for %v", err, want)
		}
		for _, e := range events {
			if e.Kind == sandboxd.ChangeResync {
				return infos
			}
			infos[e.Info.Path] = e.Info
			if want[e.Info.Path] == e.Kind {
				delete(want, e.Info.Path)
			}
		}
	}
	return infos
}

func testWatch(t *testing.T, h Harness) {
	f, ctx := h.Files, t.Context()
	Put(t, f, "old/deep/file", "x")
	w, err := f.Watch(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	const changed, removed = sandboxd.ChangeChanged, sandboxd.ChangeRemoved
	kinds := func(kind sandboxd.ChangeKind, paths ...string) map[string]sandboxd.ChangeKind {
		m := map[string]sandboxd.ChangeKind{}
		for _, p := range paths {
			m[p] = kind
		}
		return m
	}
	wrote := Put(t, f, "new\xff", "x")
	infos := seen(t, w, kinds(changed, "new\xff"))
	if got := infos["new\xff"]; got.ETag != wrote.ETag || got.Type != sandboxd.TypeFile {
		t.Errorf("told of %+v, written %+v", got, wrote)
	}
	// Directories made and filled before anybody could watch them.
	Put(t, f, "a/b/c/d/e", "x")
	seen(t, w, kinds(changed, "a", "a/b", "a/b/c", "a/b/c/d", "a/b/c/d/e"))
	Put(t, f, "a/b/c/d/e", "y")
	Put(t, f, "old/deep/file", "y")
	seen(t, w, kinds(changed, "a/b/c/d/e", "old/deep/file"))
	// A directory that moves is followed.
	if err := f.Rename(ctx, "a/b", "moved"); err != nil {
		t.Fatal(err)
	}
	seen(t, w, map[string]sandboxd.ChangeKind{"a/b": removed, "moved": changed, "moved/c/d/e": changed})
	Put(t, f, "moved/c/d/e", "z")
	seen(t, w, kinds(changed, "moved/c/d/e"))
	Put(t, f, "a/b/again", "z")
	seen(t, w, kinds(changed, "a/b", "a/b/again"))
	if err := f.Remove(ctx, "moved"); err != nil {
		t.Fatal(err)
	}
	infos = seen(t, w, kinds(removed, "moved"))
	// Nothing of how the workspace itself works is told.
	for path := range infos {
		if len(path) > 20 && path[:10] == ".sandboxd-" {
			t.Errorf("told of %s", path)
		}
	}
	// Many changes of one file are few events.
	for i := range 200 {
		Put(t, f, "busy", fmt.Sprint(i))
	}
	Put(t, f, "done", "")
	events := 0
	until, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for done := false; !done; {
		list, err := w.Next(until)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			done = done || e.Info.Path == "done" || e.Kind == sandboxd.ChangeResync
			events++
		}
	}
	if events > 100 {
		t.Errorf("200 writes of one file were told as %d events", events)
	}
	// An idle watcher waits; a closed one is gone.
	soon, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if list, err := w.Next(soon); err == nil {
		t.Errorf("events of nothing: %+v", list)
	}
}

func testWatchEnds(t *testing.T, h Harness) {
	f, ctx := h.Files, t.Context()
	Put(t, f, "d/e/f", "x")
	ends := func(w sandboxd.Watcher) {
		t.Helper()
		until, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		for {
			if _, err := w.Next(until); err != nil {
				WantClass(t, "the end of a watch", err, sandboxd.ClassGone)
				break
			}
		}
		if _, err := w.Next(until); sandboxd.ClassOf(err) != sandboxd.ClassGone {
			t.Errorf("after the end: %v", err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	open := func(path string) sandboxd.Watcher {
		t.Helper()
		w, err := f.Watch(ctx, path)
		if err != nil {
			t.Fatalf("watch %s: %v", path, err)
		}
		return w
	}
	removed, closed := open("d/e"), open("d")
	Put(t, f, "d/e/f", "y")
	seen(t, removed, map[string]sandboxd.ChangeKind{"d/e/f": sandboxd.ChangeChanged})
	if err := f.Remove(ctx, "d/e"); err != nil {
		t.Fatal(err)
	}
	ends(removed)
	if err := closed.Close(); err != nil {
		t.Error(err)
	}
	ends(closed)
	_, err := f.Watch(ctx, "d/none")
	WantClass(t, "watch of nothing", err, sandboxd.ClassNotFound)
	Put(t, f, "file", "x")
	_, err = f.Watch(ctx, "file")
	WantClass(t, "watch of a file", err, sandboxd.ClassInvalid)
	_, err = f.Watch(ctx, "..")
	WantClass(t, "watch outside", err, sandboxd.ClassInvalid)
	// Their number is bounded, and a closed one makes room.
	var all []sandboxd.Watcher
	for len(all) < 100 {
		w, err := f.Watch(ctx, "")
		if err != nil {
			WantClass(t, "too many watchers", err, sandboxd.ClassCapacity)
			break
		}
		all = append(all, w)
	}
	if len(all) == 0 || len(all) == 100 {
		t.Fatalf("%d watchers of one workspace", len(all))
	}
	for _, w := range all {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	until, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		w, err := f.Watch(until, "")
		if err == nil {
			if err := w.Close(); err != nil {
				t.Error(err)
			}
			break
		}
		if sandboxd.ClassOf(err) != sandboxd.ClassCapacity {
			t.Fatalf("after the others were closed: %v", err)
		}
	}
}
