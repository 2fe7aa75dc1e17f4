package app

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/client"
	"sandboxd/internal/app/datadir"
	"sandboxd/internal/cli"
	"sandboxd/internal/driver/docker"
	"sandboxd/internal/driver/initbin"
	"sandboxd/internal/host"
	"sandboxd/internal/selftest"
	"sandboxd/internal/store"
)

// selftestUIDs are the last of the pool: a server on this machine gives its own
// from the first on. Without root there is one, of everybody.
func selftestUIDs() sandboxd.UIDPool {
	pool := uids()
	return sandboxd.UIDPool{First: max(pool.First, pool.Last-15), Last: pool.Last, Shared: pool.Shared}
}

// runSelftest opens a host of its own in a directory of its own, tries everything,
// and prints the report. green is false when something does not hold.
func runSelftest(ctx context.Context, p Process, o cli.SelftestOptions) (green bool, err error) {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	log := logger(io.Discard, "text")
	opened := &closers{log: log}
	defer func() { err = errors.Join(err, opened.close(context.WithoutCancel(ctx))) }()
	dir, err := os.MkdirTemp("", "sandboxd-selftest-")
	if err != nil {
		return false, sandboxd.Errorf(sandboxd.ClassUnavailable, "no directory for the selftest: %v", err).WithHint("set TMPDIR to one that can be written")
	}
	opened.add("directory", func(context.Context) error { return os.RemoveAll(dir) })
	prober, err := initbin.Prober(ctx)
	if err != nil {
		return false, sandboxd.Wrap(sandboxd.ClassUnavailable, err, "there is no prober")
	}
	with := driverConfig{Data: filepath.Join(dir, "embedded"), Engine: p.Getenv("DOCKER_HOST"), Image: o.Image, OCIRuntime: o.OCI, Log: log}
	chosen, err := selftestDriver(ctx, o, &with, opened)
	if err != nil {
		return false, err
	}
	h, err := host.New(ctx, host.Config{DataDir: filepath.Join(dir, "embedded"), Store: store.NewMemory(), Drivers: []sandboxd.Driver{chosen}, UIDs: selftestUIDs(), Images: true, Log: log})
	if err != nil {
		return false, err
	}
	opened.add("host", func(context.Context) error { return h.Close() })
	opened.add("sandboxes", func(ctx context.Context) error { return h.StopAll(ctx) })
	found := chosen.Fingerprint(ctx)
	cfg := selftest.Config{Host: h, Driver: chosen.Name(), Prober: prober, Level: found.Level, OneUser: selftestUIDs().Shared, Version: Version}
	if with.Image != "" {
		cfg.Image, cfg.OCIRuntime = with.Image, runtimeOf(found, o.OCI)
		cfg.OwnKernel = strings.Contains(cfg.OCIRuntime, "runsc")
	}
	if found.Capabilities.SurvivesHostRestart {
		server := &childServer{data: filepath.Join(dir, "server"), driver: chosen.Name()}
		if with.Image != "" {
			server.more = []string{"--default-image", cfg.Image, "--oci-runtime", cfg.OCIRuntime}
		}
		opened.add("server", func(context.Context) error { return server.end() })
		cfg.Server = server
	}
	report, err := selftest.Run(ctx, cfg)
	if err != nil {
		return false, sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the selftest was interrupted")
	}
	print := report.Text
	switch {
	case o.JSON:
		print = report.JSON
	case o.Markdown:
		print = report.Markdown
	}
	return report.Green, print(p.Stdout)
}

// selftestDriver makes the driver that is tried. One that runs images gets one with
// nothing in it, unless one is named: the prober needs nothing. What is to be undone
// goes to opened, the image after the driver.
func selftestDriver(ctx context.Context, o cli.SelftestOptions, with *driverConfig, opened *closers) (sandboxd.Driver, error) {
	name := o.Driver
	if name == "auto" && (o.Image != "" || o.OCI != "") {
		name = "docker" // what else would have them
	}
	for {
		if name == "docker" && with.Image == "" {
			image, remove, err := docker.MakeImage(ctx, with.Engine)
			if err != nil {
				return nil, err
			}
			opened.add("image", remove)
			with.Image = image
		}
		drivers, _, err := chooseDrivers(ctx, name, *with)
		if err != nil {
			return nil, err
		}
		for _, d := range drivers {
			opened.add("driver "+d.Name(), func(context.Context) error { return d.Close() })
		}
		if drivers[0].Name() != "docker" || with.Image != "" {
			return drivers[0], nil
		}
		name = drivers[0].Name()
	}
}

// runtimeOf is the OCI runtime that sandboxes have, by name.
func runtimeOf(found sandboxd.Fingerprint, asked string) string {
	for _, l := range found.Level {
		if runtime, _, ok := strings.Cut(l.Detail, " of "); ok && l.Name == "runtime" && asked == "" {
			return runtime
		}
	}
	return asked
}

// childServer is `sandboxd serve` as a process of its own: what the selftest
// kills, and what finds everything again.
type childServer struct {
	data, driver string
	more         []string // arguments

	cmd    *exec.Cmd
	client *client.Client
}

var _ selftest.Server = (*childServer)(nil)

// upTime bounds the start of the child.
const upTime = 20 * time.Second

// Start is selftest.Server's.
func (c *childServer) Start(ctx context.Context) (sandboxd.Host, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	// Not bound to ctx: it must end its sandboxes.
	cmd := exec.Command(program, "serve", "--data", c.data, "--driver", c.driver, "--listen", "127.0.0.1:0", "--stop-on-interrupt")
	cmd.Args = append(cmd.Args, c.more...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "SANDBOXD_") { // the settings of another server
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // a Ctrl-C reaches the selftest, which ends it
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c.cmd = cmd
	line := make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(out)
		lines.Scan()
		line <- lines.Text()
		for lines.Scan() {
		}
	}()
	var said string
	select {
	case said = <-line:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(upTime):
	}
	_, url, ok := strings.Cut(said, "listening on ")
	if !ok {
		return nil, fmt.Errorf("the server of the selftest does not come up: %w", errors.Join(c.signal(unix.SIGKILL), errors.New(log.String())))
	}
	token, err := datadir.ReadSecret(filepath.Join(c.data, datadir.TokenFile))
	if err != nil {
		return nil, err
	}
	c.client, err = client.New(url, token)
	return c.client, err
}

// Kill is selftest.Server's.
func (c *childServer) Kill() error { return c.signal(unix.SIGKILL) }

// end lets the server stop what it has and waits for it.
func (c *childServer) end() error { return c.signal(unix.SIGINT) }

func (c *childServer) signal(sig os.Signal) error {
	if c.client != nil {
		c.client.Close()
		c.client = nil
	}
	if c.cmd == nil {
		return nil
	}
	cmd := c.cmd
	c.cmd = nil
	if err := cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	err := cmd.Wait()
	var ended *exec.ExitError
	if errors.As(err, &ended) && sig == unix.SIGKILL {
		return nil
	}
	return err
}
