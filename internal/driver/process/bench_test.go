package process

import (
	"context"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"sandboxd/internal/driver/drivertest"
)

// report gives the median and the 99th percentile of samples.
func report(b *testing.B, name string, samples []time.Duration) {
	slices.Sort(samples)
	b.ReportMetric(float64(samples[len(samples)/2].Microseconds()), name+"-p50-µs")
	b.ReportMetric(float64(samples[len(samples)*99/100].Microseconds()), name+"-p99-µs")
}

func timed(f func()) time.Duration {
	begin := time.Now()
	f()
	return time.Since(begin)
}

func forkTrue(b *testing.B) time.Duration {
	return timed(func() {
		if err := exec.Command("/usr/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
	})
}

// BenchmarkExec alternates fork+exec of true with true in a running sandbox in a
// cgroup of its own, by the driver and the link alone.
func BenchmarkExec(b *testing.B) {
	need(b)
	box := openBox(b, nil)
	var base, inside []time.Duration
	for b.Loop() {
		base = append(base, forkTrue(b))
		inside = append(inside, timed(func() { box.Run("/usr/bin/true") }))
	}
	report(b, "fork", base)
	report(b, "sandbox", inside)
}

// BenchmarkCold alternates clone of the same namespaces with true in them, and
// start of a sandbox to the end of its first true.
func BenchmarkCold(b *testing.B) {
	need(b)
	h := harness(b)
	d := h.Open(b).(*Driver)
	defer d.Close()
	var base, cold, stop []time.Duration
	for b.Loop() {
		base = append(base, timed(func() {
			cmd := exec.Command("/usr/bin/true")
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces}
			if err := cmd.Run(); err != nil {
				b.Fatal(err)
			}
		}))
		spec := newSpec(b, b.TempDir())
		cold = append(cold, timed(func() {
			if _, err := d.Start(context.Background(), spec); err != nil {
				b.Fatal(err)
			}
			drivertest.Attach(b, d, spec.ID).Run("/usr/bin/true")
		}))
		stop = append(stop, timed(func() {
			if err := d.Stop(context.Background(), spec.ID); err != nil {
				b.Fatal(err)
			}
		}))
	}
	report(b, "clone", base)
	report(b, "cold", cold)
	report(b, "stop", stop)
}

// BenchmarkPooled is BenchmarkCold with a sandbox that was ready, in its parts.
func BenchmarkPooled(b *testing.B) {
	need(b)
	h := harness(b)
	d := h.Open(b).(*Driver)
	defer d.Close()
	var take, attach, first, second []time.Duration
	for b.Loop() {
		spec := newSpec(b, b.TempDir())
		warm(b, d, spec, 1)
		take = append(take, timed(func() {
			if _, err := d.Start(context.Background(), spec); err != nil {
				b.Fatal(err)
			}
		}))
		var s *drivertest.Session
		attach = append(attach, timed(func() { s = drivertest.Attach(b, d, spec.ID) }))
		first = append(first, timed(func() { s.Run("/usr/bin/true") }))
		second = append(second, timed(func() { s.Run("/usr/bin/true") }))
		if err := d.Stop(context.Background(), spec.ID); err != nil {
			b.Fatal(err)
		}
	}
	report(b, "start", take)
	report(b, "attach", attach)
	report(b, "first", first)
	report(b, "second", second)
}
