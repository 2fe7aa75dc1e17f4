package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
)

// benchImage is the base image of the tests; scripts/engine.sh makes it.
const benchImage = "sandboxd-test/base:latest"

// engine is the container engine that the rows of the docker driver are measured
// against, and a server that uses it.
type engine struct {
	*bench
	api *client.Client
	dir string // bound into the containers of the baseline
}

var errNoEngine = errors.New("no container engine with the image " + benchImage + " at DOCKER_HOST")

// containers starts a server with the docker driver.
func (b *bench) containers() (*engine, error) {
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
		serve: []string{"--driver", "docker", "--default-image", benchImage}}}
	for _, sub := range []string{"work", "home"} {
		if err := os.MkdirAll(filepath.Join(e.dir, sub), 0o777); err != nil {
			return nil, err
		}
	}
	return e, e.start()
}

func (e *engine) close() {
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
	ctx := context.Background()
	e, err := b.containers()
	if err != nil {
		return row{}, err
	}
	defer e.close()
	several := func(once func(context.Context) (float64, error)) func() ([]float64, error) {
		return func() ([]float64, error) {
			var s []float64
			for range 5 {
				ms, err := once(ctx)
				if err != nil {
					return nil, err
				}
				s = append(s, ms)
				time.Sleep(200 * time.Millisecond) // what is removed must not be in the next sample
			}
			return s, nil
		}
	}
	base, prod, err := e.abba(several(e.firstByte), several(e.openOnce))
	if err != nil {
		return row{}, err
	}
	r := ratios(base, prod, 0.5)
	return row{
		Goal:   "1.1x of Engine create + start + first byte",
		Result: fmt.Sprintf("%s; %.0f ms against %.0f ms", spread(r), percentile(flat(prod), 0.5), percentile(flat(base), 0.5)),
		Met:    percentile(r, 0.5) <= 1.1, Samples: map[string][]float64{"base": flat(base), "product": flat(prod)},
	}, nil
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
	e, err := b.containers()
	if err != nil {
		return row{}, err
	}
	defer e.close()
	sb, err := e.openWith(ctx, runtime)
	if err != nil {
		return row{}, err
	}
	defer e.c.Delete(ctx, sb.ID)
	w, err := e.wire("/v1/sandboxes/" + sb.ID + "/exec")
	if err != nil {
		return row{}, err
	}
	defer w.close()
	base, prod, err := e.abba(
		func() ([]float64, error) { return times(100, forkTrue) },
		func() ([]float64, error) { return times(100, w.true) })
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
	e, err := b.containers()
	if err != nil {
		return row{}, err
	}
	defer e.close()
	sb, err := e.open(ctx)
	if err != nil {
		return row{}, err
	}
	defer e.c.Delete(ctx, sb.ID)
	w, err := e.wire("/v1/sandboxes/" + sb.ID + "/exec")
	if err != nil {
		return row{}, err
	}
	defer w.close()
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
		func() ([]float64, error) { return times(100, w.true) })
	if err != nil {
		return row{}, err
	}
	r := ratios(prod, base, 0.5)
	return row{
		Goal: "15x faster than an Engine exec", Result: fmt.Sprintf("%s; %.2f ms against %.0f ms", spread(r), percentile(flat(prod), 0.5), percentile(flat(base), 0.5)),
		Met: percentile(r, 0.5) >= 15, Samples: map[string][]float64{"base": flat(base), "product": flat(prod)},
	}, nil
}
