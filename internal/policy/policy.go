// Package policy keeps a host's policy: what it begins with, below what callers
// changed, below what a file overrides. It is not what obeys it.
package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"sync"
	"time"

	"sandboxd"
)

// document is the name under which the store keeps what was changed.
const document = "policy"

// Documents is the part of the store that a policy needs.
type Documents interface {
	Document(ctx context.Context, name string) ([]byte, error)
	PutDocument(ctx context.Context, name string, text []byte) error
}

// Config is what a policy is made of.
type Config struct {
	Base  sandboxd.Policy // what was configured, or sandboxd.DefaultPolicy
	Store Documents
	// Overrides is a file with fields that win over all else; "" for none. It need not
	// be there yet. Read again when it changed; one that goes away changes nothing.
	Overrides string
	// Words puts the text of that file into those of sandboxd.Policy.Merge; nil for a
	// file that is in them.
	Words func(text []byte) ([]byte, error)
	// Runtime says whether the catalogue has one of this name.
	Runtime func(name string) bool
	Log     *slog.Logger
}

// Kept is a policy in force. Methods are safe for concurrent use.
type Kept struct {
	cfg Config

	mu        sync.Mutex
	now       sandboxd.Policy
	changes   []byte // what callers changed of Base, as a document of Policy.Merge
	overrides []byte
	seen      stamp // of the overrides file when it was read last
}

// stamp tells one content of a file from the next.
type stamp struct {
	mod  time.Time
	size int64
}

// Open reads what was changed and what is overridden. A base that is not valid is an
// error; changes that no longer fit it are logged and left aside.
func Open(ctx context.Context, cfg Config) (*Kept, error) {
	k := &Kept{cfg: cfg, now: cfg.Base, changes: []byte("{}"), overrides: []byte("{}")}
	if err := k.check(cfg.Base); err != nil {
		return nil, err
	}
	text, err := cfg.Store.Document(ctx, document)
	if err != nil {
		return nil, err
	}
	if len(text) > 0 {
		if p, err := k.over(text, k.overrides); err != nil {
			cfg.Log.Error("what was changed of the policy does not fit what it begins with; it does not hold", "err", err)
		} else {
			k.changes, k.now = text, p
		}
	}
	k.Reload()
	return k, nil
}

// over is the base below two documents, valid as a whole.
func (k *Kept) over(changes, overrides []byte) (sandboxd.Policy, error) {
	p := k.cfg.Base
	if err := errors.Join(p.Merge(changes), p.Merge(overrides)); err != nil {
		return p, err
	}
	return p, k.check(p)
}

// Now is the policy in force.
func (k *Kept) Now() sandboxd.Policy {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.copied()
}

// copied is Now under mu.
func (k *Kept) copied() sandboxd.Policy {
	p := k.now
	if err := p.Merge([]byte("{}")); err != nil { // makes nothing shared
		panic("policy: " + err.Error())
	}
	return p
}

// Change replaces the policy by what fn makes of it, or does nothing. What fn leaves
// as it was is not stored: it follows what the host is configured with. fn must not ask
// for the policy: changes are made one at a time.
func (k *Kept) Change(ctx context.Context, fn func(*sandboxd.Policy) error) (sandboxd.Policy, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	// Under the lock: what another change made meanwhile is not to be taken back.
	next := k.copied()
	if err := fn(&next); err != nil {
		return next, err
	}
	wanted := sandboxd.PolicyChange(k.now, next)
	changes, err := joined(k.changes, wanted)
	if err != nil {
		return next, err
	}
	p, err := k.over(changes, k.overrides)
	if err != nil {
		return next, err
	}
	if err := k.overridden(wanted); err != nil {
		return next, err
	}
	if !bytes.Equal(changes, k.changes) {
		if err := k.cfg.Store.PutDocument(ctx, document, changes); err != nil {
			return next, err
		}
	}
	k.changes, k.now = changes, p
	return p, nil
}

// overridden refuses a change that would not show.
func (k *Kept) overridden(change []byte) error {
	var wanted, fixed map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(change, &wanted), json.Unmarshal(k.overrides, &fixed)); err != nil {
		return err
	}
	for name := range wanted {
		if _, there := fixed[name]; there && name != "runtimes" {
			e := sandboxd.Errorf(sandboxd.ClassConflict, "the overrides file sets it").WithHint("change it in %s", k.cfg.Overrides)
			e.Field = name
			return e
		}
	}
	return nil
}

// joined puts one document of changes over another.
func joined(below, above []byte) ([]byte, error) {
	var base, top map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(below, &base), json.Unmarshal(above, &top)); err != nil {
		return nil, err
	}
	for name, value := range top {
		if name == "runtimes" && len(base[name]) > 0 && string(base[name]) != "null" && string(value) != "null" {
			var entries, more map[string]json.RawMessage
			if err := errors.Join(json.Unmarshal(base[name], &entries), json.Unmarshal(value, &more)); err != nil {
				return nil, err
			}
			for runtime, limits := range more {
				entries[runtime] = limits
			}
			text, err := json.Marshal(entries)
			if err != nil {
				return nil, err
			}
			value = text
		}
		base[name] = value
	}
	return json.Marshal(base)
}

// largest is how much of an overrides file is read.
const largest = 1 << 20

// Reload reads the overrides file if it changed, and says whether the policy did. A
// file that is not valid is logged once and the old values stand.
func (k *Kept) Reload() bool {
	if k.cfg.Overrides == "" {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	info, err := os.Stat(k.cfg.Overrides)
	if errors.Is(err, fs.ErrNotExist) {
		k.seen = stamp{}
		return false
	}
	var text []byte
	if err == nil {
		is := stamp{mod: info.ModTime(), size: info.Size()}
		if is == k.seen {
			return false
		}
		k.seen = is
		if info.Size() > largest {
			err = fmt.Errorf("it is larger than %d bytes", largest)
		} else {
			text, err = os.ReadFile(k.cfg.Overrides)
		}
		if err == nil && k.cfg.Words != nil {
			text, err = k.cfg.Words(text)
		}
	}
	var p sandboxd.Policy
	if err == nil {
		p, err = k.over(k.changes, text)
	}
	if err != nil {
		k.cfg.Log.Error("the overrides of the policy are not usable; the old values stand", "file", k.cfg.Overrides, "err", err)
		return false
	}
	changed := !bytes.Equal(sandboxd.PolicyChange(k.now, p), []byte("{}"))
	k.overrides, k.now = text, p
	k.cfg.Log.Info("the overrides of the policy were read", "file", k.cfg.Overrides)
	return changed
}

// longest is the largest time that a policy may have: ten years.
const longest = sandboxd.Seconds(10 * 365 * 86400)

// check says whether a policy may be in force, as a whole.
func (k *Kept) check(p sandboxd.Policy) error {
	for _, row := range []struct {
		field string
		n     *int
	}{{"max_running", p.MaxRunning}, {"max_open", p.MaxOpen}, {"max_per_tenant", p.MaxPerTenant}} {
		if row.n != nil && (*row.n < 0 || *row.n > 1_000_000) {
			return sandboxd.Invalid(row.field, "must be between 0 and 1000000")
		}
	}
	for _, row := range []struct {
		field string
		s     *sandboxd.Seconds
	}{{"evict_idle_after_s", p.EvictIdleAfterS}, {"idle_timeout_s", p.IdleTimeoutS}, {"app_idle_timeout_s", p.AppIdleTimeoutS},
		{"owner_lease_s", p.OwnerLeaseS}, {"workspace_ttl_s", p.WorkspaceTTLS}, {"environment_ttl_s", p.EnvironmentTTLS}} {
		if row.s != nil && !(*row.s >= 0 && *row.s <= longest) {
			return sandboxd.Invalid(row.field, "must be between 0 and ten years, in seconds")
		}
	}
	if p.MaxOpen != nil && p.MaxRunning != nil && *p.MaxOpen < *p.MaxRunning {
		return sandboxd.Invalid("max_open", "must not be below max_running: what runs is open")
	}
	if !(p.CommandTimeoutS > 0 && p.CommandTimeoutS <= 30*86400) {
		return sandboxd.Invalid("command_timeout_s", "must be above 0 and at most 30 days")
	}
	if p.MaxReadBytes < 1 || p.MaxReadBytes > 1<<30 {
		return sandboxd.Invalid("max_read_bytes", "must be between 1 and 1 GiB")
	}
	if !k.cfg.Runtime(p.DefaultRuntime) {
		return sandboxd.Invalid("default_runtime", "no such runtime")
	}
	if err := CheckLimits("limits", p.Limits); err != nil {
		return err
	}
	for name, l := range p.Runtimes {
		if err := k.checkRuntime("runtimes."+name, name, l); err != nil {
			return err
		}
	}
	return nil
}

func (k *Kept) checkRuntime(field, name string, l sandboxd.RuntimeLimits) error {
	if !k.cfg.Runtime(name) {
		return sandboxd.Invalid(field, "no such runtime")
	}
	limits := sandboxd.DefaultLimits()
	for _, row := range []struct {
		from *int64
		to   *int64
	}{{l.MemoryBytes, &limits.MemoryBytes}, {l.SwapBytes, &limits.SwapBytes}, {l.CPUShares, &limits.CPUShares}, {l.PIDs, &limits.PIDs}} {
		if row.from != nil {
			*row.to = *row.from
		}
	}
	if l.CPUs != nil {
		limits.CPUs = *l.CPUs
	}
	return CheckLimits(field, limits)
}

const maxMemory = 1 << 44

// CheckLimits says whether a sandbox may have these limits; field is what they are
// a part of.
func CheckLimits(field string, l sandboxd.Limits) error {
	for _, row := range []struct {
		name         string
		v, low, high int64
	}{
		{"memory_bytes", l.MemoryBytes, 16 << 20, maxMemory},
		{"pids", l.PIDs, 8, 1 << 20},
		{"tmp_bytes", l.TmpBytes, 64 << 10, maxMemory},
		{"home_bytes", l.HomeBytes, 1 << 20, maxMemory},
		{"open_files", l.OpenFiles, 64, 1 << 20},
	} {
		if row.v < row.low || row.v > row.high {
			return sandboxd.Invalid(field+"."+row.name, "must be between %d and %d", row.low, row.high)
		}
	}
	if l.SwapBytes != 0 && (l.SwapBytes < l.MemoryBytes || l.SwapBytes > maxMemory) {
		return sandboxd.Invalid(field+".swap_bytes", "must not be below memory_bytes: it is both together")
	}
	if l.CPUShares != 0 && (l.CPUShares < 2 || l.CPUShares > 262144) {
		return sandboxd.Invalid(field+".cpu_shares", "must be between 2 and 262144")
	}
	if math.IsNaN(l.CPUs) || l.CPUs < 0.1 || l.CPUs > 1024 {
		return sandboxd.Invalid(field+".cpus", "must be between 0.1 and 1024")
	}
	return nil
}
