package fake_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"sandboxd"
	"sandboxd/internal/driver/fake"
	"sandboxd/internal/guest"
	"sandboxd/internal/guest/guesttest"
	"sandboxd/internal/guest/wire"
)

const boxID = "aaaaaaaaaaaaaaaaaaaa"

func started(t *testing.T, world *fake.World, id string) (*fake.Driver, sandboxd.Handle) {
	t.Helper()
	d := fake.New(world)
	t.Cleanup(func() { world.Close(); d.Close() })
	h, err := d.Start(t.Context(), sandboxd.EnvironmentSpec{ID: id, Generation: 1, Nonce: "n"})
	if err != nil {
		t.Fatal(err)
	}
	return d, h
}

func TestProtocol(t *testing.T) {
	guesttest.Run(t, func(t *testing.T) guesttest.System {
		d, _ := started(t, fake.NewWorld(fake.Config{}), boxID)
		return guesttest.System{
			Nonce: "n", Cwd: "/",
			Connect: func() (io.ReadWriteCloser, error) { return d.Connect(context.Background(), boxID) },
		}
	})
}

// TestRestart shows that a command outlives the driver that its host had.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := fake.NewWorld(fake.Config{})
		d, h := started(t, world, boxID)
		sink := guesttest.NewSink()
		opts := guest.Options{Nonce: "n", Handler: sink, Have: sink.Have}
		conn, err := d.Connect(t.Context(), boxID)
		if err != nil {
			t.Fatal(err)
		}
		l, err := guest.Attach(t.Context(), conn, opts)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Start(t.Context(), wire.Start{ID: "c", Argv: []string{"/bin/sh", "-c", "echo one; sleep 60; echo two; exit 4"}}, nil); err != nil {
			t.Fatal(err)
		}
		if err := sink.Reach(t.Context(), "c", 4); err != nil {
			t.Fatal(err)
		}
		l.Close()
		d.Close()

		d = fake.New(world)
		defer d.Close()
		if err := d.Adopt(t.Context(), boxID, h); err != nil {
			t.Fatal(err)
		}
		if conn, err = d.Connect(t.Context(), boxID); err != nil {
			t.Fatal(err)
		}
		if l, err = guest.Attach(t.Context(), conn, opts); err != nil {
			t.Fatal(err)
		}
		exit, err := sink.Wait(t.Context(), "c")
		if err != nil || exit.Code != 4 || string(sink.Bytes("c")) != "one\ntwo\n" {
			t.Fatalf("%+v %v %q", exit, err, sink.Bytes("c"))
		}
		l.Close()
		world.Close()
	})
}

func TestKillReports(t *testing.T) {
	world := fake.NewWorld(fake.Config{})
	d, _ := started(t, world, boxID)
	if !world.Kill(boxID) || world.Kill(boxID) {
		t.Fatal("an environment ends once")
	}
	ev := <-d.Events()
	if ev.ID != boxID || ev.Generation != 1 || ev.Ending.Cause != sandboxd.CauseSignal {
		t.Fatalf("event %+v", ev)
	}
	if _, err := d.Connect(t.Context(), boxID); sandboxd.ClassOf(err) != sandboxd.ClassGone {
		t.Fatalf("connect: %v", err)
	}
	if st, err := d.Inspect(t.Context(), boxID); err != nil || st.Running || st.Ending == nil {
		t.Fatalf("inspect: %+v %v", st, err)
	}
	if err := d.Stop(t.Context(), boxID); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Inspect(t.Context(), boxID); sandboxd.ClassOf(err) != sandboxd.ClassNotFound {
		t.Fatalf("inspect after stop: %v", err)
	}
}

func TestFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boom := errors.New("boom")
		world := fake.NewWorld(fake.Config{StartError: boom, StartDelay: time.Second})
		d := fake.New(world)
		defer d.Close()
		spec := sandboxd.EnvironmentSpec{ID: boxID, Generation: 1}
		begin := time.Now()
		if _, err := d.Start(t.Context(), spec); !errors.Is(err, boom) || time.Since(begin) != time.Second {
			t.Fatalf("start: %v after %v", err, time.Since(begin))
		}
		if ids, _ := d.List(t.Context()); len(ids) != 0 {
			t.Fatalf("a failed start left %v", ids)
		}
		world.Configure(func(c *fake.Config) {
			*c = fake.Config{After: time.After, DiesAfter: time.Minute, SlowStop: time.Second}
		})
		h, err := d.Start(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Start(t.Context(), spec); sandboxd.ClassOf(err) != sandboxd.ClassConflict {
			t.Fatalf("second start: %v", err)
		}
		begin = time.Now()
		if ev := <-d.Events(); ev.ID != boxID || time.Since(begin) != time.Minute {
			t.Fatalf("%+v after %v", ev, time.Since(begin))
		}
		if err := d.Adopt(t.Context(), boxID, h); sandboxd.ClassOf(err) != sandboxd.ClassGone {
			t.Fatalf("adopt of a dead one: %v", err)
		}
		if h, err = d.Start(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		world.Configure(func(c *fake.Config) { c.Lost = true })
		d.Close()
		d = fake.New(world)
		defer d.Close()
		if err := d.Adopt(t.Context(), boxID, h); sandboxd.ClassOf(err) != sandboxd.ClassGone {
			t.Fatalf("adopt of a lost one: %v", err)
		}
		if ids, _ := d.List(t.Context()); len(ids) != 0 {
			t.Fatalf("a refused adoption left %v", ids)
		}
	})
}
