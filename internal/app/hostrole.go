package app

import (
	"context"
	"fmt"
	"path/filepath"

	"sandboxd"
	"sandboxd/internal/api/hostlistener"
	"sandboxd/internal/api/sessions"
	"sandboxd/internal/app/datadir"
	"sandboxd/internal/cli"
	"sandboxd/internal/pdftext"
)

// serveHost is a server with the host listener alone: the machine of a control elsewhere,
// or of clients of the sessions wire.
func serveHost(ctx context.Context, p Process, o cli.ServeOptions) error { return run(ctx, p, o, true) }

func (s *server) openHostListener(ctx context.Context, dir *datadir.Dir, key, hostToken string) error {
	sessionKey, err := dir.SessionKey()
	if err != nil {
		return err
	}
	if err := sessions.Settle(ctx, s.host, s.host, s.sessions); err != nil {
		s.log.Warn("what was being opened when the host ended holds its place until it is idle for long", "error", err.Error())
	}
	roles := []string{"host", "control"}
	if s.hostOnly {
		roles = roles[:1]
	}
	_, keeps := s.drivers[0].(sandboxd.Keeper) // a session names no driver
	addr, err := listen(ctx, s.o.HostListen, hostlistener.New(hostlistener.Config{Machine: s.host, Sessions: s.sessions, Token: hostToken, OtherToken: key,
		SessionKey: sessionKey, Ready: s.ready, Version: Version, Roles: roles, Prewarm: s.o.Prewarm, Keeps: keeps, PDF: pdftext.Extract, Log: s.log}), s.opened, s.failed)
	if err != nil {
		return err
	}
	s.protect(addr)
	token := filepath.Join(dir.Path, datadir.HostTokenFile)
	if s.p.Getenv("SANDBOXD_TOKEN") != "" {
		token = "SANDBOXD_TOKEN"
	}
	s.log.Info("the host's API is up", "address", addr, "token", token)
	if s.hostOnly {
		_, err = fmt.Fprintf(s.p.Stdout, "sandboxd is listening on http://%s\nthe service token is in %s\n", addr, token)
	}
	return err
}

// ready says why no driver can isolate a sandbox now; nil when one can.
func (s *server) ready(ctx context.Context) error {
	var first error
	for _, d := range s.drivers {
		found := d.Fingerprint(ctx)
		if found.Works {
			return nil
		}
		if first == nil {
			first = sandboxd.Errorf(sandboxd.ClassUnavailable, "the %s driver cannot isolate sandboxes: %s", d.Name(), found.Reason)
		}
	}
	return first
}
