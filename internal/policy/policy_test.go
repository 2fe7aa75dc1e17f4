package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxd"
)

// kept is a store of documents that may fail.
type kept struct {
	text []byte
	fail error
}

func (k *kept) Document(context.Context, string) ([]byte, error) { return k.text, nil }

func (k *kept) PutDocument(_ context.Context, _ string, text []byte) error {
	if k.fail == nil {
		k.text = text
	}
	return k.fail
}

type world struct {
	t    *testing.T
	base sandboxd.Policy
	kept *kept
	file string
	log  *bytes.Buffer
}

func newWorld(t *testing.T) *world {
	return &world{t: t, base: sandboxd.DefaultPolicy(), kept: &kept{}, file: filepath.Join(t.TempDir(), "overrides.json"), log: &bytes.Buffer{}}
}

func (w *world) open() *Kept {
	w.t.Helper()
	k, err := Open(w.t.Context(), Config{Base: w.base, Store: w.kept, Overrides: w.file, Log: slog.New(slog.NewTextHandler(w.log, nil)),
		Runtime: func(name string) bool { return name == sandboxd.RuntimeMachine || name == "node" }})
	if err != nil {
		w.t.Fatal(err)
	}
	return k
}

// override writes the file with another time than before, as an editor would a while later.
func (w *world) override(text string, second int64) {
	w.t.Helper()
	err := os.WriteFile(w.file, []byte(text), 0o600)
	at := time.Unix(1_700_000_000+second, 0)
	if err = errors.Join(err, os.Chtimes(w.file, at, at)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) change(k *Kept, doc string) error {
	_, err := k.Change(w.t.Context(), func(p *sandboxd.Policy) error { return p.Merge([]byte(doc)) })
	return err
}

func (w *world) wants(k *Kept, doc string) {
	w.t.Helper()
	p := k.Now()
	want := p
	if err := want.Merge([]byte(doc)); err != nil {
		w.t.Fatal(err)
	}
	if diff := string(sandboxd.PolicyChange(p, want)); diff != "{}" {
		w.t.Fatalf("to be %s the policy lacks %s", doc, diff)
	}
}

// What it begins with is below what was changed, below what is overridden; and each
// survives the others' change.
func TestPrecedence(t *testing.T) {
	w := newWorld(t)
	k := w.open()
	if err := w.change(k, `{"max_running":5,"idle_timeout_s":60,"runtimes":{"node":{"pids":100}}}`); err != nil {
		t.Fatal(err)
	}
	w.wants(k, `{"max_running":5,"idle_timeout_s":60,"max_per_tenant":10}`)
	*w.base.MaxRunning, *w.base.MaxPerTenant = 40, 41 // another flag, at the next start
	w.override(`{"idle_timeout_s":7,"evict_idle_after_s":3}`, 1)
	k = w.open()
	w.wants(k, `{"max_running":5,"idle_timeout_s":7,"evict_idle_after_s":3,"max_per_tenant":41,"runtimes":{"node":{"pids":100}}}`)
	if err := w.change(k, `{"idle_timeout_s":8}`); sandboxd.ClassOf(err) != sandboxd.ClassConflict || !strings.Contains(err.Error(), "idle_timeout_s") {
		t.Fatalf("a change that would not show: %v", err)
	}
	if err := w.change(k, `{"idle_timeout_s":7,"runtimes":{"node":{"cpus":0.5}}}`); err != nil {
		t.Fatal(err)
	}
	w.override(`{"evict_idle_after_s":4}`, 2)
	if !k.Reload() || k.Reload() {
		t.Fatal("a changed file is read once")
	}
	w.wants(k, `{"idle_timeout_s":60,"evict_idle_after_s":4,"runtimes":{"node":{"pids":100,"cpus":0.5}}}`)
	if err := os.Remove(w.file); err != nil {
		t.Fatal(err)
	}
	if k.Reload() {
		t.Fatal("a file that goes away changes nothing")
	}
	w.wants(k, `{"evict_idle_after_s":4}`)
}

// An overrides file that is of no use is logged, and the old values stand.
func TestBadOverrides(t *testing.T) {
	w := newWorld(t)
	w.override(`{"max_running":3}`, 0)
	k := w.open()
	for i, text := range []string{`{`, `[]`, `{"max_runing":4}`, `{"max_running":"4"}`, `{"max_running":4,"max_open":3}`, `{"default_runtime":"x"}`, `{"command_timeout_s":null}`,
		`{"network_mode":"host"}`, strings.Repeat(" ", largest) + "{}"} {
		w.log.Reset()
		w.override(text, int64(i+1))
		if k.Reload() || !strings.Contains(w.log.String(), "the old values stand") {
			t.Errorf("%.40s: taken, log %q", text, w.log)
		}
		w.wants(k, `{"max_running":3}`)
		w.log.Reset()
		if k.Reload(); w.log.Len() > 0 {
			t.Errorf("%.40s: logged again", text)
		}
	}
}

// One bad field changes nothing, nor does a store that fails.
func TestChangeIsAtomic(t *testing.T) {
	w := newWorld(t)
	k := w.open()
	before := k.Now()
	for _, doc := range []string{
		`{"max_per_tenant":3,"max_open":1}`, `{"max_per_tenant":3,"runtimes":{"nobody":{"pids":9}}}`, `{"max_per_tenant":3,"unknown":1}`,
		`{"max_per_tenant":3,"runtimes":{"node":{"image":"x"}}}`, `{"max_per_tenant":3,"limits":{"cpus":0}}`, `{"max_per_tenant":3,"limits":{"swap":1}}`,
		`{"max_per_tenant":3,"runtimes":{"node":{"memory_bytes":67108864,"swap_bytes":67108863}}}`, `{"max_per_tenant":3,"runtimes":{"node":{"cpu_shares":1}}}`,
	} {
		if err := w.change(k, doc); sandboxd.ClassOf(err) != sandboxd.ClassInvalid {
			t.Errorf("%s: %v", doc, err)
		}
	}
	w.kept.fail = errors.New("the disk is full")
	if err := w.change(k, `{"max_per_tenant":3}`); !errors.Is(err, w.kept.fail) {
		t.Errorf("%v", err)
	}
	if diff := string(sandboxd.PolicyChange(before, k.Now())); diff != "{}" || w.kept.text != nil {
		t.Fatalf("changed %s, stored %s", diff, w.kept.text)
	}
	p := k.Now()
	p.Runtimes["node"] = sandboxd.RuntimeLimits{}
	*p.MaxRunning = 1
	if diff := string(sandboxd.PolicyChange(before, k.Now())); diff != "{}" {
		t.Fatalf("what Now answered is shared: %s", diff)
	}
}

// Changes that are made at once all hold, also those of parts of one field.
func TestChangesAtOnce(t *testing.T) {
	w := newWorld(t)
	k := w.open()
	for range 50 {
		if err := w.change(k, `{"max_per_tenant":1,"idle_timeout_s":1,"limits":{"pids":10,"cpus":1},"runtimes":{"node":{"pids":10,"cpus":1}}}`); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for _, doc := range []string{`{"max_per_tenant":2}`, `{"idle_timeout_s":2}`, `{"limits":{"pids":20}}`, `{"limits":{"cpus":2}}`,
			`{"runtimes":{"node":{"pids":20}}}`, `{"runtimes":{"node":{"cpus":2}}}`} {
			wg.Go(func() {
				if err := w.change(k, doc); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		w.wants(k, `{"max_per_tenant":2,"idle_timeout_s":2,"limits":{"pids":20,"cpus":2},"runtimes":{"node":{"pids":20,"cpus":2}}}`)
	}
}

// What is stored is what was changed and no more; null is a value, and a runtime's
// null forgets it.
func TestWhatIsStored(t *testing.T) {
	w := newWorld(t)
	k := w.open()
	for _, step := range []struct{ change, stored string }{
		{`{}`, ``},
		{`{"idle_timeout_s":1800}`, ``}, // as it is
		{`{"idle_timeout_s":null}`, `{"idle_timeout_s":null}`},
		{`{"runtimes":{"node":{"pids":64,"cpus":1}}}`, `{"idle_timeout_s":null,"runtimes":{"node":{"cpu_shares":null,"cpus":1,"memory_bytes":null,"pids":64,"swap_bytes":null}}}`},
		{`{"runtimes":{"machine":{"pids":65}}}`, `{"idle_timeout_s":null,"runtimes":{"machine":{"cpu_shares":null,"cpus":null,"memory_bytes":null,"pids":65,"swap_bytes":null},"node":{"cpu_shares":null,"cpus":1,"memory_bytes":null,"pids":64,"swap_bytes":null}}}`},
		{`{"runtimes":{"machine":null}}`, `{"idle_timeout_s":null,"runtimes":{"machine":null,"node":{"cpu_shares":null,"cpus":1,"memory_bytes":null,"pids":64,"swap_bytes":null}}}`},
	} {
		if err := w.change(k, step.change); err != nil {
			t.Fatalf("%s: %v", step.change, err)
		}
		if string(w.kept.text) != step.stored {
			t.Fatalf("%s: stored\n%s, want\n%s", step.change, w.kept.text, step.stored)
		}
		again := w.open()
		if diff := string(sandboxd.PolicyChange(k.Now(), again.Now())); diff != "{}" {
			t.Fatalf("%s: after a restart %s", step.change, diff)
		}
	}
	// What no longer fits the catalogue does not keep the host from starting.
	w.kept.text, _ = json.Marshal(map[string]any{"default_runtime": "removed"})
	if k := w.open(); k.Now().DefaultRuntime != sandboxd.RuntimeMachine || !strings.Contains(w.log.String(), "does not hold") {
		t.Fatalf("%s", w.log)
	}
	w.base.CommandTimeoutS = -1
	if _, err := Open(t.Context(), Config{Base: w.base, Store: w.kept, Runtime: func(string) bool { return true }}); sandboxd.ClassOf(err) != sandboxd.ClassInvalid {
		t.Fatalf("a base that is not valid: %v", err)
	}
}
