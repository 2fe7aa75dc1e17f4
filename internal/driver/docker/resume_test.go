package docker

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/driver/docker/dockertest"
	"sandboxd/internal/driver/drivertest"
	"sandboxd/internal/guest"
	"sandboxd/internal/guest/wire"
)

// keeper is what hosts that come and go keep of one command's output.
type keeper struct {
	mu    sync.Mutex
	next  int64
	text  strings.Builder
	torn  error
	more  chan struct{} // takes one when there is more
	ended chan struct{}
}

func (k *keeper) Output(_ string, _ sandboxd.Stream, offset int64, data []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if offset != k.next && k.torn == nil {
		k.torn = fmt.Errorf("output at %d, want %d", offset, k.next)
	}
	k.next += int64(len(data))
	k.text.Write(data)
	select {
	case k.more <- struct{}{}:
	default:
	}
	return nil
}

func (k *keeper) Ended(string, int64, wire.Exit) { close(k.ended) }

func (k *keeper) have(string) (int64, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.next, true
}

// Hosts that die in the middle of a flood, with frames under way in both
// directions and an engine that throws away what nobody reads: nothing of the
// output is lost, doubled or torn.
func TestFloodOverDyingHosts(t *testing.T) {
	const lines, hosts = 300_000, 6
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) {
			e := dockertest.Find(t, runtime)
			dir := t.TempDir()
			d := openDriver(t, e, dir)
			spec := newSpec(t, dir)
			spec.Nonce = "secret"
			handle, err := d.Start(t.Context(), spec)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := d.Stop(context.Background(), spec.ID); err != nil {
					t.Error(err)
				}
				d.Close()
			}()
			k := &keeper{more: make(chan struct{}, 1), ended: make(chan struct{})}
			attach := func() *guest.Link {
				ctx, cancel := context.WithTimeout(t.Context(), drivertest.Patience)
				defer cancel()
				conn, err := d.Connect(ctx, spec.ID)
				if err != nil {
					t.Fatal(err)
				}
				link, err := guest.Attach(ctx, conn, guest.Options{Nonce: spec.Nonce, Handler: k, Have: k.have})
				if err != nil {
					t.Fatal(err)
				}
				return link
			}
			link := attach()
			start := drivertest.Spec(wire.Start{Argv: []string{"seq", "1", fmt.Sprint(lines)}})
			if err := link.Start(t.Context(), start, nil); err != nil {
				t.Fatal(err)
			}
			for range hosts {
				select {
				case <-k.more:
				case <-k.ended:
				case <-time.After(drivertest.Patience):
					t.Fatal("no output")
				}
				// As a kill does: the connection is gone whatever is on it.
				d.Close()
				<-link.Done()
				d = openDriver(t, e, dir)
				if err := d.Adopt(t.Context(), spec.ID, handle); err != nil {
					t.Fatal(err)
				}
				link = attach()
			}
			select {
			case <-k.ended:
			case <-time.After(drivertest.Patience):
				t.Fatalf("the command does not end; %d bytes came", k.next)
			}
			if k.torn != nil {
				t.Fatal(k.torn)
			}
			var want strings.Builder
			for i := 1; i <= lines; i++ {
				fmt.Fprintln(&want, i)
			}
			if k.text.String() != want.String() {
				t.Errorf("%d bytes came, %d were written, and they differ", k.text.Len(), want.Len())
			}
		})
	}
}
