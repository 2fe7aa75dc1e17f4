package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"sandboxd"
)

func times(n int, fn func() error) ([]float64, error) {
	s := make([]float64, 0, n)
	for range n {
		t := time.Now()
		if err := fn(); err != nil {
			return nil, err
		}
		s = append(s, millis(time.Since(t)))
	}
	return s, nil
}

func forkTrue() error { return exec.Command("/bin/true").Run() }

func (b *bench) execOne() (row, error) {
	ctx := context.Background()
	sb, err := b.open(ctx)
	if err != nil {
		return row{}, err
	}
	defer b.c.Delete(ctx, sb.ID)
	w, err := b.wire()
	if err != nil {
		return row{}, err
	}
	defer w.close()
	base, prod, err := b.abba(
		func() ([]float64, error) { return times(200, forkTrue) },
		func() ([]float64, error) { return times(200, func() error { return w.true(sb.ID) }) })
	if err != nil {
		return row{}, err
	}
	p50, p99 := ratios(base, prod, 0.5), ratios(base, prod, 0.99)
	return row{
		Goal:   "p50 1.3x, p99 3x of fork+exec",
		Result: fmt.Sprintf("p50 %s, p99 %s; %.2f ms against %.2f ms", spread(p50), spread(p99), percentile(flat(prod), 0.5), percentile(flat(base), 0.5)),
		Met:    percentile(p50, 0.5) <= 1.3 && percentile(p99, 0.5) <= 3, Samples: map[string][]float64{"base": flat(base), "product": flat(prod)},
	}, nil
}

const callers = 16

// rate counts how often in two seconds the callers do what each is given.
func rate(each [callers]func() error) ([]float64, error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var first error
	n := 0
	began := time.Now()
	for _, fn := range each {
		wg.Go(func() {
			for time.Since(began) < 2*time.Second {
				err := fn()
				mu.Lock()
				n++
				if err != nil && first == nil {
					first = err
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return []float64{float64(n) / time.Since(began).Seconds()}, first
}

func (b *bench) execMany() (row, error) {
	ctx := context.Background()
	sb, err := b.open(ctx)
	if err != nil {
		return row{}, err
	}
	defer b.c.Delete(ctx, sb.ID)
	var forks, execs [callers]func() error
	for i := range callers {
		w, err := b.wire()
		if err != nil {
			return row{}, err
		}
		defer w.close()
		forks[i], execs[i] = forkTrue, func() error { return w.true(sb.ID) }
	}
	base, prod, err := b.abba(
		func() ([]float64, error) { return rate(forks) },
		func() ([]float64, error) { return rate(execs) })
	if err != nil {
		return row{}, err
	}
	r := ratios(base, prod, 0.5)
	return row{
		Goal: "at least 0.8 of the rate of fork+exec", Result: fmt.Sprintf("%s; %.0f/s against %.0f/s", spread(r), percentile(flat(prod), 0.5), percentile(flat(base), 0.5)),
		Met: percentile(r, 0.5) >= 0.8, Samples: map[string][]float64{"base_per_s": flat(base), "product_per_s": flat(prod)},
	}, nil
}

func cloneTrue() error {
	c := exec.Command("/bin/true")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS | syscall.CLONE_NEWNET}
	return c.Run()
}

// openOnce opens a sandbox and waits for the first result; the delete is not timed.
func (b *bench) openOnce(w *wire) (float64, error) {
	ms, id, err := w.first("{}")
	if id != "" {
		err = errors.Join(err, b.c.Delete(context.Background(), id))
	}
	return ms, err
}

// openRound takes samples with a pause: a delete goes on after its answer, and what
// was taken from the pool is made again; neither must be in the next sample. The
// baseline pauses as long: a processor that slept is slower for the first millisecond.
func openRound(pause time.Duration, once func() (float64, error)) ([]float64, error) {
	var s []float64
	for range 15 {
		time.Sleep(pause)
		ms, err := once()
		if err != nil {
			return nil, err
		}
		s = append(s, ms)
	}
	return s, nil
}

// cloned is the baseline of opens.
func cloned() (float64, error) {
	t := time.Now()
	err := cloneTrue()
	return millis(time.Since(t)), err
}

const (
	coldPause   = 30 * time.Millisecond
	pooledPause = 60 * time.Millisecond
)

// awaitReady waits until an environment is ready, which is seen by its socket: one of
// the pool that no link gives to a sandbox, and that is not just being made. On a
// machine that does other work at the same time that may take a while.
func (b *bench) awaitReady() error {
	run := filepath.Join(b.dir, "data", "run")
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		taken := map[string]bool{}
		links, err := filepath.Glob(filepath.Join(run, "*.link"))
		if err != nil {
			return err
		}
		for _, link := range links {
			if name, err := os.Readlink(link); err == nil {
				taken[name+".sock"] = true
			}
		}
		sockets, err := filepath.Glob(filepath.Join(run, "pool-*.sock"))
		if err != nil {
			return err
		}
		for _, socket := range sockets {
			if info, err := os.Lstat(socket); err == nil && !taken[filepath.Base(socket)] && time.Since(info.ModTime()) > pooledPause {
				return nil
			}
		}
	}
	return errors.New("no environment becomes ready")
}

// opens compares one way of opening with the clone of its namespaces.
func (b *bench) opens(goal float64, pause time.Duration, once func() (float64, error)) (row, error) {
	base, prod, err := b.abba(
		func() ([]float64, error) { return openRound(pause, cloned) },
		func() ([]float64, error) { return openRound(pause, once) })
	if err != nil {
		return row{}, err
	}
	r := ratios(base, prod, 0.5)
	return row{
		Goal:   fmt.Sprintf("%.0fx of clone of the namespaces + fork+exec", goal),
		Result: fmt.Sprintf("%s; %.1f ms against %.1f ms", spread(r), percentile(flat(prod), 0.5), percentile(flat(base), 0.5)),
		Met:    percentile(r, 0.5) <= goal, Samples: map[string][]float64{"base": flat(base), "product": flat(prod)},
	}, nil
}

func (b *bench) openCold() (row, error) {
	other, err := b.unpooled()
	if err != nil {
		return row{}, err
	}
	defer other.stop()
	w, err := other.wire()
	if err != nil {
		return row{}, err
	}
	defer w.close()
	return b.opens(6, coldPause, func() (float64, error) { return other.openOnce(w) })
}

// openPooled opens new sandboxes; before it one was opened, and so some are ready.
func (b *bench) openPooled() (row, error) {
	w, err := b.wire()
	if err != nil {
		return row{}, err
	}
	defer w.close()
	if _, err := b.openOnce(w); err != nil {
		return row{}, err
	}
	return b.opens(2, pooledPause, func() (float64, error) {
		if err := b.awaitReady(); err != nil {
			return 0, err
		}
		return b.openOnce(w)
	})
}

// openKept is openPooled for one sandbox with files, which each time was stopped.
func (b *bench) openKept() (row, error) {
	ctx := context.Background()
	const key = "kept"
	sb, _, err := b.c.Open(ctx, sandboxd.OpenRequest{Key: key})
	if err != nil {
		return row{}, err
	}
	defer b.c.Delete(ctx, sb.ID)
	w, err := b.wire()
	if err != nil {
		return row{}, err
	}
	defer w.close()
	return b.opens(2, pooledPause, func() (float64, error) {
		if _, err := b.c.Stop(ctx, sb.ID); err != nil {
			return 0, err
		}
		time.Sleep(pooledPause) // as after the baseline's last work
		if err := b.awaitReady(); err != nil {
			return 0, err
		}
		ms, _, err := w.first(`{"key":"` + key + `"}`)
		return ms, err
	})
}

func (b *bench) burst() (row, error) {
	ctx := context.Background()
	var took, want []float64
	other, err := b.unpooled()
	if err != nil {
		return row{}, err
	}
	defer other.stop()
	w, err := other.wire()
	if err != nil {
		return row{}, err
	}
	defer w.close()
	for range b.rounds {
		cold, err := openRound(coldPause, func() (float64, error) { return other.openOnce(w) })
		if err != nil {
			return row{}, err
		}
		want = append(want, 100*percentile(cold, 0.5)/float64(runtime.NumCPU()))
		errs := make([]error, 100)
		ids := make([]string, 100)
		var wg sync.WaitGroup
		t := time.Now()
		for i := range 100 {
			wg.Go(func() {
				w, err := b.wire()
				if err == nil {
					defer w.close()
					_, ids[i], err = w.first("{}")
				}
				errs[i] = err
			})
		}
		wg.Wait()
		took = append(took, millis(time.Since(t)))
		for i, err := range errs {
			if err != nil {
				return row{}, err
			}
			if err := b.c.Delete(ctx, ids[i]); err != nil {
				return row{}, err
			}
		}
		time.Sleep(2 * time.Second)
	}
	var r []float64
	for i := range took {
		r = append(r, took[i]/want[i])
	}
	return row{
		Goal: "100 opens within 1.5x of 100 x cold / cores", Result: fmt.Sprintf("%s; %.0f ms, all succeed", spread(r), percentile(took, 0.5)),
		Met: percentile(r, 0.5) <= 1.5, Samples: map[string][]float64{"product": took, "computed": want},
	}, nil
}

func (b *bench) stopTree() (row, error) {
	ctx := context.Background()
	sb, _, err := b.c.Open(ctx, sandboxd.OpenRequest{Limits: sandboxd.Limits{PIDs: 2000}})
	if err != nil {
		return row{}, err
	}
	defer b.c.Delete(ctx, sb.ID)
	samples := map[string][]float64{}
	for _, others := range []int{0, 40} {
		for i := range others {
			if _, _, err := b.c.StartCommand(ctx, sb.ID, sandboxd.CommandSpec{ID: fmt.Sprintf("other-%d", i), Background: true, Argv: []string{"sleep", "600"}}); err != nil {
				return row{}, err
			}
		}
		for range 20 {
			cmd, _, err := b.c.StartCommand(ctx, sb.ID, sandboxd.CommandSpec{Background: true,
				Shell: `trap "" TERM; for i in $(seq 198); do setsid sleep 600 & done; echo up; sleep 600`})
			if err != nil {
				return row{}, err
			}
			s, err := b.c.FollowCommand(ctx, sb.ID, cmd.ID, sandboxd.FollowOptions{Follow: true})
			if err != nil {
				return row{}, err
			}
			if _, err := s.Next(ctx); err != nil {
				return row{}, err
			}
			s.Close()
			t := time.Now()
			if _, err := b.c.StopCommand(ctx, sb.ID, cmd.ID, 0.1); err != nil {
				return row{}, err
			}
			name := fmt.Sprintf("with_%d_others", others)
			samples[name] = append(samples[name], millis(time.Since(t)))
		}
	}
	worst := max(percentile(samples["with_0_others"], 0.99), percentile(samples["with_40_others"], 0.99))
	return row{
		Goal: "tree of 200 stopped, p99 below 1 s", Result: fmt.Sprintf("p99 %.0f ms (100 ms of it the grace asked for)", worst),
		Met: worst < 1000, Samples: samples,
	}, nil
}

// procStatus reads a number from a process's status or smaps file.
func procNumber(path, field string) (int64, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			return strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s", path, field)
}

// inits finds the pids of the inits: processes whose program is our init.
func (b *bench) inits() []int {
	var pids []int
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		exe, err := os.Readlink(d + "/exe")
		if err == nil && strings.HasPrefix(exe, filepath.Join(b.dir, "data", "bin", "init-")) {
			if pid, err := strconv.Atoi(filepath.Base(d)); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func switches(pid int) (n int64) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	for _, t := range tasks {
		for _, f := range []string{"voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"} {
			v, _ := procNumber(t, f)
			n += v
		}
	}
	return n
}

func (b *bench) idle() (row, error) {
	ctx := context.Background()
	before, err := procNumber(fmt.Sprintf("/proc/%d/smaps_rollup", b.cmd.Process.Pid), "Pss")
	if err != nil {
		return row{}, err
	}
	had := len(b.inits())
	var ids []string
	for range 100 {
		sb, err := b.open(ctx)
		if err != nil {
			return row{}, err
		}
		ids = append(ids, sb.ID)
	}
	time.Sleep(5 * time.Second)
	after, err := procNumber(fmt.Sprintf("/proc/%d/smaps_rollup", b.cmd.Process.Pid), "Pss")
	if err != nil {
		return row{}, err
	}
	inits := b.inits()
	if len(inits) < 100+had {
		return row{}, fmt.Errorf("%d inits found for 100 sandboxes", len(inits)-had)
	}
	pss := after - before
	start := map[int]int64{}
	for _, pid := range inits {
		v, err := procNumber(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss")
		if err != nil {
			return row{}, err
		}
		pss += v
		start[pid] = switches(pid)
	}
	const watch = 30 * time.Second
	time.Sleep(watch)
	var moved int64
	for _, pid := range inits {
		moved += switches(pid) - start[pid]
	}
	for _, id := range ids {
		if err := b.c.Delete(ctx, id); err != nil {
			return row{}, err
		}
	}
	perSandbox := float64(pss) / 1024 / 100
	perMinute := float64(moved) / 100 * float64(time.Minute/watch)
	return row{
		Goal: "100 idle: 6 MiB each, 4 context switches a minute", Result: fmt.Sprintf("%.2f MiB and %.1f switches a minute each", perSandbox, perMinute),
		Met: perSandbox <= 6 && perMinute <= 4, Samples: map[string][]float64{"mib_each": {perSandbox}, "switches_per_minute": {perMinute}},
	}, nil
}

func (b *bench) restart() (row, error) {
	ctx := context.Background()
	no := false
	for i := range 1000 {
		if _, _, err := b.c.Open(ctx, sandboxd.OpenRequest{Key: fmt.Sprintf("cold-%d", i), Start: &no}); err != nil {
			return row{}, err
		}
	}
	for i := range 100 {
		sb, _, err := b.c.Open(ctx, sandboxd.OpenRequest{Key: fmt.Sprintf("running-%d", i)})
		if err != nil {
			return row{}, err
		}
		if _, _, err := b.c.StartCommand(ctx, sb.ID, sandboxd.CommandSpec{ID: "tick", Background: true, Shell: "while echo tick; do sleep 0.2; done"}); err != nil {
			return row{}, err
		}
	}
	var list, all []float64
	for range b.rounds {
		b.cmd.Process.Kill()
		b.cmd.Wait()
		t := time.Now()
		if err := b.start(); err != nil {
			return row{}, err
		}
		sbs, err := b.c.List(ctx, "")
		if err != nil {
			return row{}, err
		}
		list = append(list, millis(time.Since(t)))
		if len(sbs) < 1100 {
			return row{}, fmt.Errorf("%d of 1,100 sandboxes listed", len(sbs))
		}
		var wg sync.WaitGroup
		errs := make([]error, len(sbs))
		for i, sb := range sbs {
			if strings.HasPrefix(sb.Key, "running-") {
				wg.Go(func() { errs[i] = b.newOutput(ctx, sb.ID) })
			}
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return row{}, err
		}
		all = append(all, millis(time.Since(t)))
	}
	return row{
		Goal: "list within 300 ms, all followed within 2 s", Result: fmt.Sprintf("list %.0f ms, new output of all 100 by %.0f ms", percentile(list, 0.5), percentile(all, 0.5)),
		Met: percentile(list, 0.5) <= 300 && percentile(all, 0.5) <= 2000, Samples: map[string][]float64{"list": list, "followed": all},
	}, nil
}

// newOutput waits for output that a command wrote after this was called.
func (b *bench) newOutput(ctx context.Context, id string) error {
	cmd, err := b.c.GetCommand(ctx, id, "tick")
	if err != nil {
		return err
	}
	s, err := b.c.FollowCommand(ctx, id, "tick", sandboxd.FollowOptions{Offset: cmd.Offset, Follow: true})
	if err != nil {
		return err
	}
	defer s.Close()
	_, err = s.Next(ctx)
	return err
}
