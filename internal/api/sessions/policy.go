package sessions

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"sandboxd"
)

// runtimePolicy is a runtime with the ceilings that are in force for it.
type runtimePolicy struct {
	Alias        string   `json:"alias"`
	Image        string   `json:"image"`
	Description  string   `json:"description"`
	Builds       bool     `json:"builds"`
	MemLimit     *string  `json:"mem_limit"`
	MemswapLimit *string  `json:"memswap_limit"`
	CPUs         *float64 `json:"cpus"`
	CPUShares    *int64   `json:"cpu_shares"`
	PIDsLimit    *int64   `json:"pids_limit"`
	NetworkMode  *string  `json:"network_mode"`
	OCIRuntime   *string  `json:"oci_runtime"`
}

// servicePolicy is the host's policy as the wire shows it. IdleTimeout is absent for
// none: the wire's clients take no null there.
type servicePolicy struct {
	Runtimes             []runtimePolicy `json:"runtimes"`
	DefaultRuntime       string          `json:"default_runtime"`
	MaxSessions          *int            `json:"max_sessions"`
	MaxOpenSessions      *int            `json:"max_open_sessions"`
	MaxSessionsPerTenant *int            `json:"max_sessions_per_tenant"`
	EvictIdleAfter       *int            `json:"evict_idle_after"`
	MemLimit             *string         `json:"mem_limit"`
	MemswapLimit         *string         `json:"memswap_limit"`
	CPUs                 *float64        `json:"cpus"`
	CPUShares            *int64          `json:"cpu_shares"`
	PIDsLimit            *int64          `json:"pids_limit"`
	NetworkMode          *string         `json:"network_mode"`
	OCIRuntime           *string         `json:"oci_runtime"`
	WorkDir              string          `json:"work_dir"`
	IdleTimeout          *int            `json:"idle_timeout,omitempty"`
	ExecuteTimeout       int             `json:"execute_timeout"`
	MaxReadBytes         int64           `json:"max_read_bytes"`
	PersistContainers    bool            `json:"persist_containers"`
	SandboxUID           *int            `json:"sandbox_uid"`
	WorkspaceTTL         *int            `json:"workspace_ttl"`
	ContainerTTL         *int            `json:"container_ttl"`
	TmpfsSize            *string         `json:"tmpfs_size"`
	Prewarm              bool            `json:"prewarm"`
	Buildkit             bool            `json:"buildkit"`
	NativeFiles          bool            `json:"native_files"`
	NativeWrites         bool            `json:"native_writes"`
	NativeRealpath       bool            `json:"native_realpath"`
}

func (f *Face) getPolicy(c *call) error {
	p, err := f.cfg.Lifetimes.Policy(c.ctx())
	if err != nil {
		return err
	}
	shown, err := f.show(c.ctx(), p)
	if err != nil {
		return err
	}
	return c.ok(shown)
}

func (f *Face) show(ctx context.Context, p sandboxd.Policy) (servicePolicy, error) {
	list, err := f.cfg.Host.Runtimes(ctx)
	if err != nil {
		return servicePolicy{}, err
	}
	none := string(sandboxd.NetworkNone) // of a runtime that does not say that it needs one
	s := servicePolicy{
		NetworkMode: &none,
		Runtimes:    []runtimePolicy{}, DefaultRuntime: p.DefaultRuntime,
		MaxSessions: p.MaxRunning, MaxOpenSessions: p.MaxOpen, MaxSessionsPerTenant: p.MaxPerTenant,
		EvictIdleAfter: wholeSeconds(p.EvictIdleAfterS), IdleTimeout: wholeSeconds(p.IdleTimeoutS),
		WorkspaceTTL: wholeSeconds(p.WorkspaceTTLS), ContainerTTL: wholeSeconds(p.EnvironmentTTLS),
		ExecuteTimeout: int(math.Ceil(float64(p.CommandTimeoutS))), MaxReadBytes: p.MaxReadBytes,
		MemLimit: sizeText(p.Limits.MemoryBytes), MemswapLimit: sizeText(p.Limits.SwapBytes), CPUs: positive(p.Limits.CPUs), CPUShares: positive(p.Limits.CPUShares),
		PIDsLimit: positive(p.Limits.PIDs), TmpfsSize: sizeText(p.Limits.TmpBytes),
		WorkDir: sandboxd.WorkDir, Prewarm: f.cfg.Prewarm, NativeFiles: true, NativeWrites: true, NativeRealpath: true,
	}
	for _, rt := range list {
		network, limits := rt.Network, rt.Limits // with what was changed of them
		s.Runtimes = append(s.Runtimes, runtimePolicy{Alias: rt.Name, Image: cmp.Or(rt.Installed, rt.Image, rt.Name), Description: rt.Description,
			Builds: rt.Builds, NetworkMode: &network, MemLimit: sizeText(limits.MemoryBytes), MemswapLimit: sizeText(limits.SwapBytes),
			CPUs: positive(limits.CPUs), CPUShares: positive(limits.CPUShares), PIDsLimit: positive(limits.PIDs)})
		s.PersistContainers = s.PersistContainers || f.cfg.Keeps && rt.Root == sandboxd.RootWritable
	}
	slices.SortFunc(s.Runtimes, func(a, b runtimePolicy) int { return strings.Compare(a.Alias, b.Alias) })
	return s, nil
}

func either[T any](changed *T, own T) T {
	if changed != nil {
		return *changed
	}
	return own
}

func positive[T int64 | float64](n T) *T {
	if n <= 0 {
		return nil
	}
	return &n
}

func wholeSeconds(s *sandboxd.Seconds) *int {
	if s == nil {
		return nil
	}
	n := int(math.Ceil(float64(*s)))
	return &n
}

// sizeText is a number of bytes with the largest unit that leaves nothing over; nil for 0.
func sizeText(n int64) *string {
	if n <= 0 {
		return nil
	}
	units := "gmk"
	for i, size := range []int64{1 << 30, 1 << 20, 1 << 10} {
		if n%size == 0 {
			text := strconv.FormatInt(n/size, 10) + units[i:i+1]
			return &text
		}
	}
	text := strconv.FormatInt(n, 10)
	return &text
}

// sizeOf is the inverse, of any spelling: a number, and perhaps a unit.
func sizeOf(text string) (int64, bool) {
	t := strings.ToLower(strings.TrimSpace(text))
	t = strings.TrimSuffix(t, "b")
	factor := 1.0
	if t != "" {
		if i := strings.IndexByte("kmgt", t[len(t)-1]); i >= 0 {
			factor, t = math.Pow(1024, float64(i+1)), t[:len(t)-1]
		}
	}
	n, err := strconv.ParseFloat(t, 64)
	if err != nil || !(n > 0) || n*factor > 1<<50 {
		return 0, false
	}
	return int64(n * factor), true
}

// The ceilings of a runtime that a PUT may change.
var runtimeFields = []string{"mem_limit", "memswap_limit", "cpus", "cpu_shares", "pids_limit"}

// changes is a PUT while it is read: what to do to the policy, in order.
type changes []func(*sandboxd.Policy)

func (c *changes) add(do func(*sandboxd.Policy)) { *c = append(*c, do) }

// putPolicy changes what is named and leaves the rest. Nothing is changed before all of it
// is known to be right.
func (f *Face) putPolicy(c *call) error {
	todo, err := f.readChanges(c)
	if err != nil {
		return err
	}
	p, err := f.cfg.Lifetimes.ChangePolicy(c.ctx(), func(p *sandboxd.Policy) error {
		for _, do := range todo {
			do(p)
		}
		return nil
	})
	if class := sandboxd.ClassOf(err); err != nil && (class == sandboxd.ClassInvalid || class == sandboxd.ClassConflict) {
		return &problem{status: http.StatusBadRequest, detail: publicText(err), cause: err}
	} else if err != nil {
		return err
	}
	shown, err := f.show(c.ctx(), p)
	if err != nil {
		return err
	}
	return c.ok(shown)
}

func publicText(err error) string {
	if e, ok := err.(*sandboxd.Error); ok {
		return e.Public()
	}
	return err.Error()
}

func (f *Face) readChanges(c *call) (changes, error) {
	o, todo := c.body, changes{}
	fallback := sandboxd.DefaultPolicy()
	name := o.optional("default_runtime", nil)
	readFields(o, counts, &todo)
	readFields(o, spans, &todo)
	if o.has("execute_timeout") {
		n := o.number("execute_timeout", true, aboveZero)
		todo.add(func(p *sandboxd.Policy) {
			p.CommandTimeoutS = fallback.CommandTimeoutS
			if n != nil {
				p.CommandTimeoutS = sandboxd.Seconds(*n)
			}
		})
	}
	if o.has("max_read_bytes") {
		n := o.number("max_read_bytes", true, aboveZero)
		todo.add(func(p *sandboxd.Policy) {
			p.MaxReadBytes = fallback.MaxReadBytes
			if n != nil {
				p.MaxReadBytes = int64(*n)
			}
		})
	}
	readLimits(o, &todo)
	entries, hasEntries := o.child("runtimes")
	var faults []func() error
	known, err := f.aliases(c.ctx())
	if err != nil {
		return nil, err
	}
	if hasEntries {
		for _, alias := range entries.order {
			if entry, ok := entries.child(alias); ok {
				readRuntime(entry, alias, &todo)
			}
			if !slices.Contains(known, alias) {
				faults = append(faults, func() error {
					return refuse(http.StatusBadRequest, fmt.Sprintf("Unknown runtime %s. Ceilings can be changed for an allowed runtime; a new one is a deployment change, because it names an image.", quoted(alias)))
				})
			}
		}
	}
	o.only(append([]string{"default_runtime", "execute_timeout", "max_read_bytes", "mem_limit", "memswap_limit", "cpus", "cpu_shares", "pids_limit", "tmpfs_size", "runtimes"},
		append(fieldNames(counts), fieldNames(spans)...)...)...)
	if err := c.valid(); err != nil {
		return nil, err
	}
	if name != nil {
		if !slices.Contains(known, *name) {
			return nil, refuse(http.StatusBadRequest, fmt.Sprintf("Unknown runtime %s. The default has to be one of: %s", quoted(*name), strings.Join(known, ", ")))
		}
		todo.add(func(p *sandboxd.Policy) { p.DefaultRuntime = *name })
	}
	for _, fault := range faults {
		return nil, fault()
	}
	return todo, nil
}

func (f *Face) aliases(ctx context.Context) ([]string, error) {
	list, err := f.cfg.Host.Runtimes(ctx)
	names := make([]string, len(list))
	for i, rt := range list {
		names[i] = rt.Name
	}
	slices.Sort(names)
	return names, err
}

// field is one of the policy under the wire's name.
type field[T any] struct {
	name string
	of   func(*sandboxd.Policy) **T
}

var counts = []field[int]{
	{"max_sessions", func(p *sandboxd.Policy) **int { return &p.MaxRunning }},
	{"max_open_sessions", func(p *sandboxd.Policy) **int { return &p.MaxOpen }},
	{"max_sessions_per_tenant", func(p *sandboxd.Policy) **int { return &p.MaxPerTenant }},
}

var spans = []field[sandboxd.Seconds]{
	{"evict_idle_after", func(p *sandboxd.Policy) **sandboxd.Seconds { return &p.EvictIdleAfterS }},
	{"idle_timeout", func(p *sandboxd.Policy) **sandboxd.Seconds { return &p.IdleTimeoutS }},
	{"workspace_ttl", func(p *sandboxd.Policy) **sandboxd.Seconds { return &p.WorkspaceTTLS }},
	{"container_ttl", func(p *sandboxd.Policy) **sandboxd.Seconds { return &p.EnvironmentTTLS }},
}

func fieldNames[T any](fields []field[T]) []string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	return names
}

// readFields reads numbers that null takes away.
func readFields[T int | sandboxd.Seconds](o object, fields []field[T], todo *changes) {
	for _, fd := range fields {
		if !o.has(fd.name) {
			continue
		}
		n := o.number(fd.name, true, from(0))
		todo.add(func(p *sandboxd.Policy) {
			*fd.of(p) = nil
			if n != nil {
				value := T(*n)
				*fd.of(p) = &value
			}
		})
	}
}

// readLimits reads what sandboxes get whose runtime says nothing. Null is the default.
func readLimits(o object, todo *changes) {
	fallback := sandboxd.DefaultLimits()
	for _, size := range []struct {
		name string
		of   func(*sandboxd.Limits) *int64
	}{
		{"mem_limit", func(l *sandboxd.Limits) *int64 { return &l.MemoryBytes }},
		{"memswap_limit", func(l *sandboxd.Limits) *int64 { return &l.SwapBytes }},
		{"tmpfs_size", func(l *sandboxd.Limits) *int64 { return &l.TmpBytes }},
	} {
		if o.has(size.name) {
			n := sizeField(o, size.name)
			todo.add(func(p *sandboxd.Policy) { *size.of(&p.Limits) = either(n, *size.of(&fallback)) })
		}
	}
	if o.has("cpu_shares") {
		n := o.number("cpu_shares", true, aboveZero)
		todo.add(func(p *sandboxd.Policy) { p.Limits.CPUShares = int64(either(n, 0)) })
	}
	if o.has("cpus") {
		n := o.number("cpus", false, aboveZero)
		todo.add(func(p *sandboxd.Policy) { p.Limits.CPUs = either(n, fallback.CPUs) })
	}
	if o.has("pids_limit") {
		n := o.number("pids_limit", true, aboveZero)
		todo.add(func(p *sandboxd.Policy) { p.Limits.PIDs = int64(either(n, float64(fallback.PIDs))) })
	}
}

func sizeField(o object, name string) *int64 {
	text := o.optional(name, nil)
	if text == nil {
		return nil
	}
	n, ok := sizeOf(*text)
	if !ok {
		o.wrong(name, "value_error", "Value error, not a size, as 512m or 2g", nil)
	}
	return &n
}

// readRuntime reads the ceilings of one runtime; null takes the entry's own again.
func readRuntime(o object, alias string, todo *changes) {
	memory, swap := sizeField(o, "mem_limit"), sizeField(o, "memswap_limit")
	cpus := o.number("cpus", false, aboveZero)
	shares, pids := o.number("cpu_shares", true, aboveZero), o.number("pids_limit", true, aboveZero)
	o.only(runtimeFields...)
	todo.add(func(p *sandboxd.Policy) {
		if p.Runtimes == nil {
			p.Runtimes = map[string]sandboxd.RuntimeLimits{}
		}
		l := p.Runtimes[alias]
		if o.has("mem_limit") {
			l.MemoryBytes = memory
		}
		if o.has("memswap_limit") {
			l.SwapBytes = swap
		}
		if o.has("cpus") {
			l.CPUs = cpus
		}
		if o.has("cpu_shares") {
			l.CPUShares = integer(shares)
		}
		if o.has("pids_limit") {
			l.PIDs = integer(pids)
		}
		p.Runtimes[alias] = l
	})
}

func integer(n *float64) *int64 {
	if n == nil {
		return nil
	}
	i := int64(*n)
	return &i
}
