package app

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"sandboxd"
	"sandboxd/internal/api"
)

// drain is how long requests in flight get at the end.
const drain = 3 * time.Second

// checkAddress refuses an address that others reach, unless it is said how it is
// protected: the listener itself speaks plain HTTP.
func checkAddress(flag, addr, protectedBy string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return sandboxd.Errorf(sandboxd.ClassInvalid, "%s is not an address with a port", flag).
			WithHint("as %s 127.0.0.1:9090", flag)
	}
	ip := net.ParseIP(host)
	if host == "localhost" || ip != nil && ip.IsLoopback() || protectedBy != "" {
		return nil
	}
	return sandboxd.Errorf(sandboxd.ClassForbidden, "%s %s is reachable from other machines, and the API key would travel in the clear", flag, addr).
		WithHint("listen on 127.0.0.1, or say what protects it, as --protected-by 'caddy with TLS'")
}

// listen serves handler on addr until the closers close it. It answers the
// address, which matters when the port was 0. Streams end when ctx does.
func listen(ctx context.Context, addr string, handler http.Handler, c *closers, failed chan<- error) (string, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", sandboxd.Errorf(sandboxd.ClassUnavailable, "cannot listen on %s: %v", addr, err).
			WithHint("is another server running? choose another address with --listen")
	}
	server := api.Server(addr, handler)
	server.ErrorLog = slog.NewLogLogger(c.log.Handler(), slog.LevelWarn)
	requests, cancel := context.WithCancel(ctx)
	server.BaseContext = func(net.Listener) context.Context { return requests }
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			failed <- sandboxd.Wrap(sandboxd.ClassInternal, err, "the listener on %s broke", addr)
		}
	}()
	c.add("listener "+l.Addr().String(), func(ctx context.Context) error {
		cancel()
		ctx, done := context.WithTimeout(ctx, drain)
		defer done()
		if server.Shutdown(ctx) != nil {
			return server.Close()
		}
		return nil
	})
	return l.Addr().String(), nil
}
