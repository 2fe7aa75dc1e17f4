package egress

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestTimes lets a slow head, a silent connection and a silent tunnel run into
// their bounds, on a clock that does not wait.
func TestTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var origin net.Conn
		p := New(Config{
			Resolve:    func(context.Context, string) ([]netip.Addr, error) { return addrs("1.1.1.1"), nil },
			Interfaces: func() ([]net.Addr, error) { return nil, nil },
			Dial: func(context.Context, netip.AddrPort) (net.Conn, error) {
				var here net.Conn
				here, origin = net.Pipe()
				return here, nil
			},
		})
		defer p.Close()
		g, err := p.Gate([]string{"*"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		serve := func() net.Conn {
			here, there := net.Pipe()
			go g.Serve(pipeStream{there})
			return here
		}
		within := func(what string, conn net.Conn, least, most time.Duration) {
			t.Helper()
			began := time.Now()
			io.Copy(io.Discard, conn)
			if took := time.Since(began); took < least || took > most {
				t.Errorf("%s was ended after %s, want %s to %s", what, took, least, most)
			}
		}
		slow := serve()
		io.WriteString(slow, "GET http://public.example/ HTTP/1.1\r\nHost: ")
		within("a slow head", slow, headerTime-time.Second, headerTime+time.Second)

		silent := serve()
		io.WriteString(silent, "GET /denials HTTP/1.1\r\nHost: x\r\n\r\n")
		within("a silent connection", silent, waitTime-time.Second, waitTime+time.Second)

		tunnel := serve()
		io.WriteString(tunnel, connect("public.example:443"))
		r := bufio.NewReader(tunnel)
		if res, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect}); err != nil || res.StatusCode != 200 {
			t.Fatal(res, err)
		}
		<-time.After(silence - time.Minute)
		io.WriteString(origin, "still here")
		if _, err := io.ReadFull(r, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		within("a silent tunnel", tunnel, silence-time.Second, silence+time.Second)

		// What comes for a sandbox that does not read is given up too: the origin is
		// not held.
		deaf := serve()
		io.WriteString(deaf, connect("public.example:443"))
		if res, err := http.ReadResponse(bufio.NewReaderSize(deaf, 16), &http.Request{Method: http.MethodConnect}); err != nil || res.StatusCode != 200 {
			t.Fatal(res, err)
		}
		go func() {
			for {
				if _, err := origin.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		}()
		within("the origin of a sandbox that does not read", origin, silence-time.Second, silence+time.Second)
		deaf.Close()
	})
}

// TestWorkForStreamsThatAreGone has a sandbox give up connections whose work goes on:
// with a body outstanding nothing reads them, and an address that swallows what is
// sent takes its time. Of all that no more goes on than of connections that are open.
func TestWorkForStreamsThatAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dialling, most atomic.Int64
		p := New(Config{
			Resolve:    func(context.Context, string) ([]netip.Addr, error) { return addrs("1.1.1.1"), nil },
			Interfaces: func() ([]net.Addr, error) { return nil, nil },
			Dial: func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
				most.Store(max(most.Load(), dialling.Add(1)))
				defer dialling.Add(-1)
				<-ctx.Done()
				return nil, ctx.Err()
			},
		})
		defer p.Close()
		g, err := p.Gate([]string{"*"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var serving sync.WaitGroup
		for range 3 * places {
			here, there := net.Pipe()
			serving.Go(func() { g.Serve(pipeStream{there}) })
			go func() {
				io.WriteString(here, "CONNECT public.example:443 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n")
				here.Close()
			}()
		}
		synctest.Wait()
		if n := dialling.Load(); n != places {
			t.Errorf("%d connections are being made, want %d", n, places)
		}
		serving.Wait()
		if n := most.Load(); n != places {
			t.Errorf("%d were made at once", n)
		}
	})
}

// TestARefusalWaitsForNoBody asks for what is refused and never sends the body.
func TestARefusalWaitsForNoBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Config{})
		defer p.Close()
		g, err := p.Gate(nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		here, there := net.Pipe()
		go g.Serve(pipeStream{there})
		defer here.Close()
		began := time.Now()
		here.SetDeadline(began.Add(time.Hour))
		io.WriteString(here, "POST http://public.example/ HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
		res, err := http.ReadResponse(bufio.NewReader(here), nil)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); res.StatusCode != http.StatusForbidden || took > time.Second {
			t.Errorf("%s after %s", res.Status, took)
		}
	})
}
