package sandboxd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// Policy is what a host lets sandboxes have and how long what nobody uses lasts. A
// nil number means: no bound; 0 is a bound. It is the host's: control and the faces
// show it in their own words.
type Policy struct {
	MaxRunning   *int `json:"max_running" doc:"Sandboxes that have an environment"`
	MaxOpen      *int `json:"max_open" doc:"Sandboxes that are open, put to sleep for room or not"`
	MaxPerTenant *int `json:"max_per_tenant" doc:"The same, of one tenant"`
	// EvictIdleAfterS lets an opening that finds no place put the longest idle one to
	// sleep, if it was idle for so long. Nil: the opening waits and is refused.
	EvictIdleAfterS *Seconds `json:"evict_idle_after_s"`

	IdleTimeoutS    *Seconds `json:"idle_timeout_s" doc:"A sandbox without work for so long is closed; its files stay"`
	AppIdleTimeoutS *Seconds `json:"app_idle_timeout_s" doc:"The same, of apps"`
	OwnerLeaseS     *Seconds `json:"owner_lease_s" doc:"A sandbox of the sandboxes face without a request of its owner for so long is closed"`
	WorkspaceTTLS   *Seconds `json:"workspace_ttl_s" doc:"Files that nobody used for so long are deleted"`
	EnvironmentTTLS *Seconds `json:"environment_ttl_s" doc:"A kept environment that is stopped for so long is removed; files stay"`

	CommandTimeoutS Seconds `json:"command_timeout_s" doc:"The most that a command of the sessions face may take"`
	MaxReadBytes    int64   `json:"max_read_bytes" doc:"The largest whole file that is put into JSON"`

	DefaultRuntime string                   `json:"default_runtime"`
	Limits         Limits                   `json:"limits" doc:"Of sandboxes whose runtime sets none"`
	Runtimes       map[string]RuntimeLimits `json:"runtimes" doc:"What was changed of catalogue entries, by name"`
}

// RuntimeLimits are changes of one catalogue entry's limits; nil leaves the entry's.
type RuntimeLimits struct {
	MemoryBytes *int64   `json:"memory_bytes,omitempty"`
	SwapBytes   *int64   `json:"swap_bytes,omitempty" doc:"Memory and swap together"`
	CPUs        *float64 `json:"cpus,omitempty"`
	CPUShares   *int64   `json:"cpu_shares,omitempty"`
	PIDs        *int64   `json:"pids,omitempty"`
}

// Clock says which rule ends a sandbox that nobody uses.
type Clock string

// The clocks: one governs each open sandbox, by the face that opened it, and one the
// files of each closed one.
const (
	ClockIdle  Clock = "idle"  // without work it is closed
	ClockLease Clock = "lease" // without a request of its owner it is closed
	ClockFiles Clock = "files" // without use it is deleted
	ClockNone  Clock = "none"
)

// What a clock waits for: it is wound up by that and nothing else.
const (
	WaitsForWork    = "work"
	WaitsForRequest = "request" // of its owner: Lifetimes.Renew
	WaitsForUse     = "use"     // of its files
)

// SandboxClock is the rule that ends a sandbox which nobody uses. When that will be is
// Awake's.
type SandboxClock struct {
	Name     Clock    `json:"name" enum:"idle,lease,files,none"`
	WaitsFor string   `json:"waits_for,omitempty" enum:"work,request,use" doc:"What winds it up; absent without a clock"`
	LimitS   *Seconds `json:"limit_s,omitempty" doc:"How long it waits for that"`
}

// Awake is why a sandbox is not closed yet.
type Awake struct {
	Clock   Clock      `json:"clock" enum:"idle,lease,files,none"`
	Reason  string     `json:"reason" doc:"What it does or did last: command, terminal, connection, hold, cpu, io, request, opened; or closed"`
	Detail  string     `json:"detail,omitempty" doc:"The numbers behind the reason"`
	Since   time.Time  `json:"since" doc:"When it last worked, or was used if it is closed"`
	Lapses  *time.Time `json:"lapses,omitempty" doc:"When it is closed, or a closed one deleted, if nothing happens; absent: never"`
	Holding int        `json:"holding,omitempty" doc:"Holds in force"`
}

// Hold keeps a sandbox awake until it is released or lapses.
type Hold struct {
	ID      string    `json:"id" doc:"1-64 of [A-Za-z0-9._-]; made up when empty"`
	Reason  string    `json:"reason,omitempty" doc:"For people, at most 200 bytes"`
	ForS    Seconds   `json:"for_s" doc:"How long from now; in an answer how long still"`
	Expires time.Time `json:"expires" doc:"Of answers: when that is, as the clock of the host is set"`
}

// SandboxUsage is what the processes of a sandbox use now. What the driver cannot tell is nil.
type SandboxUsage struct {
	MemoryBytes      *int64   `json:"memory_bytes" doc:"Without what the kernel can drop at once: inactive file pages"`
	MemoryLimitBytes *int64   `json:"memory_limit_bytes"`
	CPUSeconds       *float64 `json:"cpu_seconds"`
	PIDs             *int64   `json:"pids"`
}

// Lifetimes is what a host offers beside Host to callers that manage how long
// sandboxes last. Methods are safe for concurrent use; errors are Host's.
type Lifetimes interface {
	// Attach is Open of a key with Start false, but ClassNotFound where Open would
	// create. It opens a closed sandbox again.
	Attach(ctx context.Context, key string) (Sandbox, error)
	// CloseSandbox is Stop, and the sandbox is not open any more: it counts for no
	// ceiling. What Stop keeps stays, until Policy.EnvironmentTTLS. Closing a closed one
	// is no error.
	CloseSandbox(ctx context.Context, id string) (Sandbox, error)
	// Awake says which clock governs the sandbox and what keeps it. It counts as no use.
	Awake(ctx context.Context, id string) (Awake, error)
	// Renew notes a request of the sandbox's owner, which winds the clock lease up.
	// ClassConflict for a sandbox that has another one: Hold keeps that awake.
	Renew(ctx context.Context, id string) error
	// Hold keeps it awake for hold.ForS, at most MaxHold; the same hold id
	// again replaces that hold. An empty id is made up. ClassConflict for a sandbox
	// that is closed, ClassCapacity beyond MaxHolds. Holds outlive the server, and end
	// with the close.
	Hold(ctx context.Context, id string, hold Hold) (Hold, error)
	// Holds lists the holds in force, the one that lapses first in front.
	Holds(ctx context.Context, id string) ([]Hold, error)
	// Release ends a hold; one that is not there is no error.
	Release(ctx context.Context, id, hold string) error
	// Usage samples the sandbox; one without an environment uses nothing. It counts as
	// no use.
	Usage(ctx context.Context, id string) (SandboxUsage, error)

	Policy(ctx context.Context) (Policy, error)
	// ChangePolicy replaces the policy by what change makes of it, after it was checked
	// as a whole: ClassInvalid names the field and changes nothing; ClassConflict for a
	// field that the overrides file sets. It is durable. A lowered ceiling closes nothing;
	// limits of what runs change at once where the driver can, and with its next
	// environment otherwise: Sandbox.Next. Changes are made one at a time, each of what the
	// one before left; change asks nobody for the policy.
	ChangePolicy(ctx context.Context, change func(*Policy) error) (Policy, error)
}

// The bounds of holds.
const (
	MaxHold  = 7 * 24 * time.Hour
	MaxHolds = 64 // of one sandbox
)

// Ceiling is what a ClassCapacity error of an opening met.
type Ceiling struct {
	Name   string `json:"name" enum:"running,open,tenant"`
	Tenant string `json:"tenant,omitempty"`
	Held   int    `json:"held" doc:"What counted when it was refused, without the one that was refused"`
	Limit  int    `json:"limit"`
}

// The ceilings.
const (
	CeilingRunning = "running" // Policy.MaxRunning
	CeilingOpen    = "open"    // Policy.MaxOpen
	CeilingTenant  = "tenant"  // Policy.MaxPerTenant
)

// DefaultPolicy is that of a host that is told nothing.
func DefaultPolicy() Policy {
	running, tenant := DefaultMaxSandboxes, 10
	seconds := func(n Seconds) *Seconds { return &n }
	return Policy{
		MaxRunning: &running, MaxPerTenant: &tenant,
		IdleTimeoutS: seconds(1800), AppIdleTimeoutS: seconds(2100), OwnerLeaseS: seconds(1800), EnvironmentTTLS: seconds(86400),
		CommandTimeoutS: 300, MaxReadBytes: 8 << 20,
		DefaultRuntime: RuntimeMachine, Limits: DefaultLimits(), Runtimes: map[string]RuntimeLimits{},
	}
}

// Merge changes p by a JSON object with some of its fields: what is absent stays,
// null takes a bound away, a runtime that is null has no changes any more. An
// unknown field, also a nested one, is ClassInvalid; then p is as it was.
func (p *Policy) Merge(doc []byte) error {
	next := p.clone()
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(doc, &fields); err != nil {
		return Invalid("body", "a JSON object is needed")
	}
	for name, value := range fields {
		null := string(value) == "null"
		switch {
		case name == "runtimes" && !null:
			if err := mergeRuntimes(next.Runtimes, value); err != nil {
				return err
			}
		case null && !clearable[name]:
			return Invalid(name, "it cannot be without a value")
		default:
			if err := strictly(fmt.Appendf(nil, "{%q:%s}", name, value), &next); err != nil {
				return Invalid(name, "%s", mergeFault(err))
			}
		}
	}
	*p = next
	return nil
}

// clearable are the fields whose null is a value.
var clearable = map[string]bool{"max_running": true, "max_open": true, "max_per_tenant": true, "evict_idle_after_s": true,
	"idle_timeout_s": true, "app_idle_timeout_s": true, "owner_lease_s": true, "workspace_ttl_s": true, "environment_ttl_s": true}

func mergeRuntimes(into map[string]RuntimeLimits, doc json.RawMessage) error {
	var entries map[string]json.RawMessage
	if err := json.Unmarshal(doc, &entries); err != nil {
		return Invalid("runtimes", "an object of runtimes by name is needed")
	}
	for name, value := range entries {
		if string(value) == "null" {
			delete(into, name)
			continue
		}
		limits := into[name].clone()
		if err := strictly(value, &limits); err != nil {
			return Invalid("runtimes."+name, "%s", mergeFault(err))
		}
		into[name] = limits
	}
	return nil
}

func strictly(doc []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.DisallowUnknownFields()
	return dec.Decode(into)
}

// mergeFault says what is wrong without the value.
func mergeFault(err error) string {
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		return "the value has the wrong type"
	}
	if strings.Contains(err.Error(), "unknown field") {
		return "no such field can be changed"
	}
	return "the value is not valid"
}

// PolicyChange is the document by which Merge makes was into is.
func PolicyChange(was, is Policy) []byte {
	fields := func(p Policy) map[string]json.RawMessage {
		text, err := json.Marshal(p)
		if err != nil {
			panic("sandboxd: a policy is no JSON: " + err.Error())
		}
		var m map[string]json.RawMessage
		_ = json.Unmarshal(text, &m) // of what was just made
		delete(m, "runtimes")
		// Field by field: what is 0 is to be refused, not left out.
		m["limits"], err = json.Marshal(map[string]any{"memory_bytes": p.Limits.MemoryBytes, "swap_bytes": p.Limits.SwapBytes,
			"cpus": p.Limits.CPUs, "cpu_shares": p.Limits.CPUShares, "pids": p.Limits.PIDs,
			"tmp_bytes": p.Limits.TmpBytes, "home_bytes": p.Limits.HomeBytes, "open_files": p.Limits.OpenFiles})
		if err != nil {
			panic("sandboxd: a policy is no JSON: " + err.Error())
		}
		return m
	}
	change := map[string]any{}
	old := fields(was)
	for name, value := range fields(is) {
		if !bytes.Equal(old[name], value) {
			change[name] = value
		}
	}
	runtimes := map[string]any{}
	for name := range was.Runtimes {
		if _, stays := is.Runtimes[name]; !stays {
			runtimes[name] = nil
		}
	}
	for name, limits := range is.Runtimes {
		if before, known := was.Runtimes[name]; !known || !reflect.DeepEqual(before, limits) {
			runtimes[name] = map[string]any{"memory_bytes": limits.MemoryBytes, "swap_bytes": limits.SwapBytes,
				"cpus": limits.CPUs, "cpu_shares": limits.CPUShares, "pids": limits.PIDs}
		}
	}
	if len(runtimes) > 0 {
		change["runtimes"] = runtimes
	}
	text, err := json.Marshal(change)
	if err != nil {
		panic("sandboxd: a change of the policy is no JSON: " + err.Error())
	}
	return text
}

// clone is p with nothing shared.
func (p Policy) clone() Policy {
	for _, n := range []**int{&p.MaxRunning, &p.MaxOpen, &p.MaxPerTenant} {
		*n = copied(*n)
	}
	for _, s := range []**Seconds{&p.EvictIdleAfterS, &p.IdleTimeoutS, &p.AppIdleTimeoutS, &p.OwnerLeaseS, &p.WorkspaceTTLS, &p.EnvironmentTTLS} {
		*s = copied(*s)
	}
	runtimes := map[string]RuntimeLimits{}
	for name, limits := range p.Runtimes {
		runtimes[name] = limits.clone()
	}
	p.Runtimes = runtimes
	return p
}

func (l RuntimeLimits) clone() RuntimeLimits {
	return RuntimeLimits{MemoryBytes: copied(l.MemoryBytes), SwapBytes: copied(l.SwapBytes), CPUs: copied(l.CPUs),
		CPUShares: copied(l.CPUShares), PIDs: copied(l.PIDs)}
}

func copied[T any](p *T) *T {
	if p == nil {
		return nil
	}
	c := *p
	return &c
}
