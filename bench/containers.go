package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"sandboxd"
)

// benchImage is the base image of the tests; scripts/engine.sh makes it.
const benchImage = "sandboxd-test/base:latest"

// engine is the container engine that the rows of the docker driver are measured
// against, and a server that uses it.
type engine struct {
	*bench
	api   *client.Client
	wired *wire
	dir   string // bound into the containers of the baseline
}

var errNoEngine = errors.New("no container engine with the image " + benchImage + " at DOCKER_HOST")

// containers starts a server with the docker driver. It keeps so many containers ready.
func (b *bench) containers(ready int) (*engine, error) {
	host := os.Getenv("DOCKER_HOST")
	if host == "" {
		host = client.DefaultDockerHost
	}
	api, err := client.New(client.WithHost(host))
	if err != nil {
		return nil, err
	}
	if _, err := api.ImageInspect(context.Background(), benchImage); err != nil {
		return nil, errNoEngine
	}
	e := &engine{api: api, dir: filepath.Join(b.dir, "docker"), bench: &bench{binary: b.binary, dir: filepath.Join(b.dir, "docker"), rounds: b.rounds, attack: b.attack,
		serve: []string{"--driver", "docker", "--default-image", benchImage, "--ready", strconv.Itoa(ready)}}}
	for _, sub := range []string{"work", "home"} {
		if err := os.MkdirAll(filepath.Join(e.dir, sub), 0o777); err != nil {
			return nil, err
		}
	}
	if err := e.start(); err != nil {
		return nil, err
	}
	e.wired, err = e.wire()
	return e, err
}

func (e *engine) close() {
	e.wired.close()
	e.stop()
	e.api.Close()
}

// make creates a container with what the driver asks for, to run argv.
func (e *engine) make(ctx context.Context, argv ...string) (string, error) {
	pids, no := int64(536), false
	bind := func(source, target string) mount.Mount {
		return mount.Mount{Type: mount.TypeBind, Source: source, Target: target}
	}
	made, err := e.api.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config: &container.Config{Image: benchImage, Entrypoint: argv, User: "65534:65534", OpenStdin: true, AttachStdin: true, AttachStdout: true},
		HostConfig: &container.HostConfig{LogConfig: container.LogConfig{Type: "none"}, NetworkMode: "none", CapDrop: []string{"ALL"},
			SecurityOpt: []string{"no-new-privileges"}, ReadonlyRootfs: true, Init: &no, IpcMode: container.IPCModePrivate,
			CgroupnsMode: container.CgroupnsModePrivate, ShmSize: 64 << 20, Tmpfs: map[string]string{"/tmp": "size=64m,exec"},
			Mounts: []mount.Mount{bind(filepath.Join(e.dir, "work"), "/workspace"), bind(filepath.Join(e.dir, "home"), "/home/sandbox")},
			Resources: container.Resources{Memory: 1 << 30, MemorySwap: 1 << 30, CPUPeriod: 100_000, CPUQuota: 200_000,
				PidsLimit: &pids}},
	})
	return made.ID, err
}

func (e *engine) remove(ctx context.Context, id string) error {
	_, err := e.api.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true})
	return err
}

// firstByte makes a container, starts it and waits for the first byte of its output.
func (e *engine) firstByte(ctx context.Context) (float64, error) {
	t := time.Now()
	id, err := e.make(ctx, "/bin/echo", "x")
	if err != nil {
		return 0, err
	}
	joined, err := e.api.ContainerAttach(ctx, id, client.ContainerAttachOptions{Stream: true, Stdin: true, Stdout: true})
	if err == nil {
		defer joined.Close()
		_, err = e.api.ContainerStart(ctx, id, client.ContainerStartOptions{})
	}
	if err == nil {
		_, err = io.ReadFull(joined.Reader, make([]byte, 9)) // the header of a piece and a byte
	}
	took := millis(time.Since(t))
	return took, errors.Join(err, e.remove(ctx, id))
}

// containerCold is open to first byte on the docker driver.
func (b *bench) containerCold() (row, error) {
	return b.containerOpens(0, 1.1, func(_ context.Context, e *engine) (float64, error) { return e.bench.openOnce(e.wired) })
}

// containerPooled is the same with a container that was ready.
func (b *bench) containerPooled() (row, error) {
	return b.containerOpens(2, 0.1, func(ctx context.Context, e *engine) (float64, error) {
		if err := e.awaitContainer(ctx); err != nil {
			return 0, err
		}
		return e.bench.openOnce(e.wired)
	})
}

// containerKept is containerPooled for one sandbox with files, which each time was
// stopped.
func (b *bench) containerKept() (row, error) {
	return b.containerOpens(2, 0.15, func(ctx context.Context, e *engine) (float64, error) {
		const key = "kept"
		sb, _, err := e.c.Open(ctx, sandboxd.OpenRequest{Key: key})
		if err == nil {
			_, err = e.c.Stop(ctx, sb.ID)
		}
		if err == nil {
			err = e.awaitContainer(ctx)
		}
		if err != nil {
			return 0, err
		}
		ms, _, err := e.wired.first(`{"key":"` + key + `"}`)
		return ms, err
	})
}

// containerOpens compares one way of opening with the engine's own.
func (b *bench) containerOpens(ready int, goal float64, once func(context.Context, *engine) (float64, error)) (row, error) {
	ctx := context.Background()
	e, err := b.containers(ready)
	if err != nil {
		return row{}, err
	}
	defer e.close()
	if _, err := e.bench.openOnce(e.wired); err != nil { // so that it is known what is asked for
		return row{}, err
	}
	several := func(once func(context.Context) (float64, error)) func() ([]float64, error) {
		return func() ([]float64, error) {
			var s []float64
			for range 5 {
				ms, err := once(ctx)
				if err != nil {
					return nil, err
				}
				s = append(s, ms)
				time.Sleep(removePause)
			}
			return s, nil
		}
	}
	base, prod, err := e.abba(several(e.firstByte), several(func(ctx context.Context) (float64, error) { return once(ctx, e) }))
	if err != nil {
		return row{}, err
	}
	r := ratios(base, prod, 0.5)
	return row{
		Goal:   fmt.Sprintf("%.2gx of Engine create + start + first byte", goal),
		Result: fmt.Sprintf("%s; %.0f ms against %.0f ms", spread(r), percentile(flat(prod), 0.5), percentile(flat(base), 0.5)),
		Met:    percentile(r, 0.5) <= goal, Samples: map[string][]float64{"base": flat(base), "product": flat(prod)},
	}, nil
}

// removePause is so long that what is removed is not in the next sample.
const removePause = 200 * time.Millisecond

// awaitContainer waits until a container is ready: one of the server's pool that runs,
// that no link gives to a sandbox, and that is not just being made.
func (e *engine) awaitContainer(ctx context.Context) error {
	run := filepath.Join(e.bench.dir, "data", "run", "docker")
	since := map[string]time.Time{}
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		links, err := filepath.Glob(filepath.Join(run, "*.link"))
		if err != nil {
			return err
		}
		taken := map[string]bool{}
		for _, link := range links {
			if name, err := os.Readlink(link); err == nil {
				taken[name] = true
			}
		}
		found, err := e.api.ContainerList(ctx, client.ContainerListOptions{Filters: make(client.Filters).Add("label", "sandboxd")})
		if err != nil {
			return err
		}
		for _, c := range found.Items {
			name := c.Labels["sandboxd"]
			if _, err := os.Stat(filepath.Join(run, name)); err != nil || !strings.HasPrefix(name, "pool-") || taken[name] {
				continue
			}
			if since[name].IsZero() {
				since[name] = time.Now()
			}
			if time.Since(since[name]) > removePause {
				return nil
			}
		}
	}
	return errors.New("no container becomes ready")
}

// engineTrue is `true` in a running container, by the engine's own means.
func (e *engine) engineTrue(ctx context.Context, id string) error {
	made, err := e.api.ExecCreate(ctx, id, client.ExecCreateOptions{AttachStdout: true, Cmd: []string{"/bin/true"}})
	if err != nil {
		return err
	}
	joined, err := e.api.ExecAttach(ctx, made.ID, client.ExecAttachOptions{})
	if err != nil {
		return err
	}
	defer joined.Close()
	if _, err := io.Copy(io.Discard, joined.Reader); err != nil {
		return err
	}
	ended, err := e.api.ExecInspect(ctx, made.ID, client.ExecInspectOptions{})
	if err == nil && ended.ExitCode != 0 {
		err = fmt.Errorf("exit code %d", ended.ExitCode)
	}
	return err
}

// containerExec is `true` in a running sandbox of the docker driver against
// fork+exec, under an OCI runtime or the engine's default.
func (b *bench) containerExec(runtime string) (row, error) {
	ctx := context.Background()
	e, err := b.containers(0)
	if err != nil {
		return row{}, err
	}
	defer e.close()
	sb, err := e.openWith(ctx, runtime)
	if err != nil {
		return row{}, err
	}
	defer e.c.Delete(ctx, sb.ID)
	base, prod, err := e.abba(
		func() ([]float64, error) { return times(100, forkTrue) },
		func() ([]float64, error) { return times(100, func() error { return e.wired.true(sb.ID) }) })
	if err != nil {
		return row{}, err
	}
	r := ratios(base, prod, 0.5)
	goal, most := "1.5x of fork+exec", 1.5
	if runtime != "" {
		goal, most = "none: "+runtime+" stands apart", math.Inf(1)
	}
	return row{
		Goal: goal, Result: fmt.Sprintf("p50 %s; %.2f ms against %.2f ms", spread(r), percentile(flat(prod), 0.5), percentile(flat(base), 0.5)),
		Met: percentile(r, 0.5) <= most, Samples: map[string][]float64{"base": flat(base), "product": flat(prod)},
	}, nil
}

// engineExec is the same against the engine's own exec.
func (b *bench) engineExec() (row, error) {
	ctx := context.Background()
	e, err := b.containers(0)
	if err != nil {
		return row{}, err
	}
	defer e.close()
	sb, err := e.open(ctx)
	if err != nil {
		return row{}, err
	}
	defer e.c.Delete(ctx, sb.ID)
	id, err := e.make(ctx, "/bin/sleep", "1000")
	if err != nil {
		return row{}, err
	}
	defer e.remove(ctx, id)
	if _, err := e.api.ContainerStart(ctx, id, client.ContainerStartOptions{}); err != nil {
		return row{}, err
	}
	base, prod, err := e.abba(
		func() ([]float64, error) { return times(10, func() error { return e.engineTrue(ctx, id) }) },
		func() ([]float64, error) { return times(100, func() error { return e.wired.true(sb.ID) }) })
	if err != nil {
		return row{}, err
	}
	r := ratios(prod, base, 0.5)
	return row{
		Goal: "15x faster than an Engine exec", Result: fmt.Sprintf("%s; %.2f ms against %.0f ms", spread(r), percentile(flat(prod), 0.5), percentile(flat(base), 0.5)),
		Met: percentile(r, 0.5) >= 15, Samples: map[string][]float64{"base": flat(base), "product": flat(prod)},
	}, nil
}
