package storetest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"sandboxd"
)

// SessionStore is one that can be closed.
type SessionStore interface {
	sandboxd.SessionStore
	Close() error
}

// RunSessions runs the suite of sandboxd.SessionStore. open answers an empty store;
// the suite closes it.
func RunSessions(t *testing.T, open func(t *testing.T) SessionStore) {
	for name, test := range map[string]func(*testing.T, sandboxd.SessionStore){
		"Life":             sessionLife,
		"OneIDOneLife":     oneIDOneLife,
		"OnlyForward":      onlyForward,
		"IDsHaveTheirCase": idsHaveTheirCase,
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			test(t, s)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := s.ListSessions(t.Context()); sandboxd.ClassOf(err) != sandboxd.ClassUnavailable {
				t.Errorf("a closed store answered %v", err)
			}
		})
	}
}

// NewSession is a session of an id, as the face makes it.
func NewSession(id string) sandboxd.SessionRecord {
	now := time.Now().UTC().Truncate(time.Microsecond)
	return sandboxd.SessionRecord{ID: id, Life: sandboxd.NewID(), SandboxID: sandboxd.NewID(), Runtime: "python",
		Tenant: "acme", CreatedAt: now, LastActivity: now, LastSeq: 3}
}

func opened(t *testing.T, s sandboxd.SessionStore, id string) sandboxd.SessionRecord {
	t.Helper()
	rec := NewSession(id)
	if err := s.CreateSession(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	return rec
}

func sessionLife(t *testing.T, s sandboxd.SessionStore) {
	ctx := t.Context()
	one, two := opened(t, s, "one"), opened(t, s, "two")
	got, err := s.GetSession(ctx, "one")
	if err != nil {
		t.Fatal(err)
	}
	same(t, "one", got, one)
	list, err := s.ListSessions(ctx)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "list", list, []sandboxd.SessionRecord{one, two})
	for range 2 { // forgetting what is forgotten is no error
		if err := s.DeleteSession(ctx, one.Life); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.GetSession(ctx, "one"); sandboxd.ClassOf(err) != sandboxd.ClassNotFound {
		t.Errorf("the forgotten one: %v", err)
	}
	if err := s.TouchSession(ctx, one.Life, time.Now(), 9); err != nil {
		t.Errorf("touching a life that is over: %v", err)
	}
	again := opened(t, s, "one")
	if got, err := s.GetSession(ctx, "one"); err != nil || got.Life != again.Life || got.LastSeq != 3 {
		t.Errorf("opened again: %+v, %v", got, err)
	}
}

func oneIDOneLife(t *testing.T, s sandboxd.SessionStore) {
	won := make(chan string, 8)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			rec := NewSession("wanted")
			err := s.CreateSession(t.Context(), rec)
			switch {
			case err == nil:
				won <- rec.Life
			case sandboxd.ClassOf(err) != sandboxd.ClassConflict:
				t.Errorf("a second life: %v", err)
			}
		})
	}
	all.Wait()
	close(won)
	got, err := s.GetSession(t.Context(), "wanted")
	if err != nil || len(won) != 1 || got.Life != <-won {
		t.Errorf("%d lives began, kept is %+v, %v", len(won), got, err)
	}
}

func onlyForward(t *testing.T, s sandboxd.SessionStore) {
	ctx := t.Context()
	rec := opened(t, s, "one")
	later := rec.LastActivity.Add(time.Minute)
	for _, touch := range []struct {
		at  time.Time
		seq int64
	}{{later, 5}, {rec.CreatedAt, 7}, {later.Add(-time.Second), 6}} {
		if err := s.TouchSession(ctx, rec.Life, touch.at, touch.seq); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.GetSession(ctx, "one")
	if err != nil || !got.LastActivity.Equal(later) || got.LastSeq != 7 {
		t.Errorf("%+v, %v", got, err)
	}
}

func idsHaveTheirCase(t *testing.T, s sandboxd.SessionStore) {
	lives := map[string]bool{}
	for _, id := range []string{"a", "A", "a.", "A-"} {
		lives[opened(t, s, id).Life] = true
	}
	for i, id := range []string{"a", "A", "a.", "A-"} {
		got, err := s.GetSession(t.Context(), id)
		if err != nil || got.ID != id || !lives[got.Life] {
			t.Error(fmt.Sprint(i, ": ", got, err))
		}
	}
}
