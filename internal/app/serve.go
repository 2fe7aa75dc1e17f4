package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"sandboxd"
	"sandboxd/internal/api"
	"sandboxd/internal/api/sessions"
	"sandboxd/internal/app/datadir"
	"sandboxd/internal/cli"
	"sandboxd/internal/egress"
	"sandboxd/internal/host"
	"sandboxd/internal/pressure"
	"sandboxd/internal/store"
)

// uids are given to workspaces. They lie above what distributions give to people
// and services and below the ranges of user namespaces. An ordinary user can give
// nobody's but its own.
func uids() sandboxd.UIDPool {
	if uid := os.Geteuid(); uid != 0 {
		return sandboxd.UIDPool{First: uint32(uid), Last: uint32(uid), Shared: true}
	}
	return sandboxd.UIDPool{First: 200000, Last: 265535}
}

// stopAll bounds how long an interrupted server waits for its sandboxes to end.
const stopAll = 20 * time.Second

// serve is a server with both listeners.
func serve(ctx context.Context, p Process, o cli.ServeOptions) error { return run(ctx, p, o, false) }

// run is the whole life of a server: open everything, answer until a signal,
// close in reverse.
func run(ctx context.Context, p Process, o cli.ServeOptions, hostOnly bool) (err error) {
	if err := checkServe(p, o, hostOnly); err != nil {
		return err
	}
	log := logger(p.Stderr, o.LogFormat)
	if o.UIEnabled {
		log.Warn("there is no UI: SANDBOXD_UI_ENABLED is without effect, and a host has no page that asks for its token")
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	defer signal.Stop(signals)

	opened := &closers{log: log}
	defer func() {
		err = errors.Join(err, opened.close(context.WithoutCancel(ctx)))
	}()
	s := &server{p: p, o: o, log: log, opened: opened, failed: make(chan error, 2), hostOnly: hostOnly}
	if err := s.open(ctx); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-s.failed:
		return err
	case sig := <-signals:
		return s.leave(ctx, sig)
	}
}

func checkServe(p Process, o cli.ServeOptions, hostOnly bool) error {
	if err := checkEnviron(p.Environ); err != nil {
		return err
	}
	if !hostOnly {
		if err := checkAddress("--listen", o.Listen, o.ProtectedBy); err != nil {
			return err
		}
	}
	if o.HostListen != "" {
		if err := checkAddress("--host-listen", o.HostListen, o.ProtectedBy); err != nil {
			return err
		}
	}
	if most := o.MaxSandboxes; most.Set && !most.None && most.N < 1 {
		return sandboxd.Invalid("--max-sandboxes", "at least 1")
	}
	if o.Ready < 0 {
		return sandboxd.Invalid("--ready", "at least 0")
	}
	return nil
}

// server is `sandboxd serve` while it runs.
type server struct {
	p      Process
	o      cli.ServeOptions
	log    *slog.Logger
	opened *closers
	failed chan error // by listeners

	hostOnly bool // without the control listener

	egress   *egress.Proxy
	drivers  []sandboxd.Driver
	sessions sandboxd.SessionStore
	host     *host.Host
}

// open makes every part, lowest first. What was opened before an error is closed
// by the caller.
func (s *server) open(ctx context.Context) error {
	data := s.o.Data
	if data == "" {
		data = datadir.Default(os.Geteuid(), s.p.Getenv)
	}
	if _, err := os.Stat(datadir.OtherSpelling); err == nil && data == datadir.RootDefault {
		s.log.Warn("there is a directory of another spelling, which is not read", "unread", datadir.OtherSpelling, "data", data)
	}
	dir, err := datadir.Open(data)
	if err != nil {
		return err
	}
	s.opened.add("data directory", func(context.Context) error { return dir.Close() })
	key, err := dir.APIKey()
	if err != nil {
		return err
	}
	hostToken, err := dir.HostToken()
	if err != nil {
		return err
	}
	if given := s.p.Getenv("SANDBOXD_TOKEN"); given != "" {
		hostToken = given
	}
	if err := s.openHost(ctx, dir); err != nil {
		return err
	}
	return s.openListeners(ctx, dir, key, hostToken)
}

func (s *server) openHost(ctx context.Context, dir *datadir.Dir) error {
	drivers, can, err := chooseDrivers(ctx, s.o.Driver, driverConfig{Data: dir.Path, Workspaces: s.o.WorkspaceRoot, Engine: s.p.Getenv("DOCKER_HOST"),
		Image: s.o.DefaultImage, OCIRuntime: s.o.OCIRuntime, Bridge: s.o.Bridge == "any", Log: s.log})
	if err != nil {
		return err
	}
	s.drivers = drivers
	for _, d := range drivers {
		s.opened.add("driver "+d.Name(), func(context.Context) error { return d.Close() })
	}
	state := filepath.Join(dir.Path, "state")
	if err := os.MkdirAll(state, 0o700); err != nil {
		return sandboxd.Errorf(sandboxd.ClassUnavailable, "the data directory cannot be used: %v", err)
	}
	db, err := store.OpenSQLite(ctx, filepath.Join(state, "host.db"))
	if err != nil {
		return err
	}
	s.sessions = db
	s.opened.add("store", func(context.Context) error { return db.Close() })
	if err := s.openEgress(); err != nil {
		return err
	}
	bundle, err := writeBundle(dir, s.o.CABundle)
	if err != nil {
		return err
	}
	set, err := s.openRuntimes(dir, drivers)
	if err != nil {
		return err
	}
	policy := basePolicy(s.o)
	cfg := host.Config{DataDir: dir.Path, Workspaces: s.o.WorkspaceRoot, Store: db, Drivers: drivers, UIDs: uids(),
		Policy: &policy, Overrides: s.o.PolicyOverrides, OverrideWords: sessions.Overrides, Pressure: pressure.Machine, Ready: s.o.Ready, Images: s.o.Images == "any", Bridge: s.o.Bridge == "any",
		Egress: s.egress, CABundle: bundle, Trust: s.o.CABundle != "", Capabilities: can, Log: s.log}
	if set != nil {
		cfg.Runtimes = set
	}
	if s.host, err = host.New(ctx, cfg); err != nil {
		return err
	}
	s.opened.add("host", func(context.Context) error { return s.host.Close() })
	s.prewarm(set)
	return nil
}

func (s *server) openListeners(ctx context.Context, dir *datadir.Dir, key, hostToken string) error {
	if s.o.HostListen != "" {
		if err := s.openHostListener(ctx, dir, key, hostToken); err != nil {
			return err
		}
	}
	if s.hostOnly {
		return nil
	}
	hostFor := func(*http.Request) (sandboxd.Host, error) { return s.host, nil }
	addr, err := listen(ctx, s.o.Listen, api.Control(api.Config{Token: key, OtherToken: hostToken, HostFor: hostFor, AllowedHosts: s.o.AllowedHosts,
		Version: Version, Log: s.log}), s.opened, s.failed)
	if err != nil {
		return err
	}
	s.protect(addr)
	if s.o.ProtectedBy != "" {
		s.log.Info("listening beyond this machine", "protected_by", s.o.ProtectedBy)
	}
	_, err = fmt.Fprintf(s.p.Stdout, "sandboxd is listening on http://%s\nthe API key is in %s\n", addr, filepath.Join(dir.Path, datadir.TokenFile))
	return err
}

// leave is what a signal means: an interrupt by a person ends the sandboxes too,
// everything else leaves them running for the next server.
func (s *server) leave(ctx context.Context, sig os.Signal) error {
	stop := sig == unix.SIGINT && s.onTerminal() || sig != unix.SIGTERM && s.o.StopOnInterrupt
	if !stop {
		s.log.Info("leaving; sandboxes stay as they are", "signal", sig.String())
		return nil
	}
	s.log.Info("stopping every sandbox", "signal", sig.String())
	ctx, cancel := context.WithTimeout(ctx, stopAll)
	defer cancel()
	return s.host.StopAll(ctx)
}

// onTerminal says whether a person started this server in a terminal.
func (s *server) onTerminal() bool {
	for _, stream := range []any{s.p.Stdin, s.p.Stdout} {
		if f, ok := stream.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
			return true
		}
	}
	return false
}

func logger(w io.Writer, format string) *slog.Logger {
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, nil))
	}
	return slog.New(slog.NewTextHandler(w, nil))
}
