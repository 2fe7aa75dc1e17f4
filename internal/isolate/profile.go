package isolate

import (
	"encoding/json"

	"golang.org/x/sys/unix"
)

// profile is the form in which container engines take a filter.
type profile struct {
	DefaultAction string        `json:"defaultAction"`
	Architectures []string      `json:"architectures"`
	Syscalls      []profileRule `json:"syscalls"`
}

type profileRule struct {
	Names    []string     `json:"names"`
	Action   string       `json:"action"`
	ErrnoRet uint         `json:"errnoRet"`
	Args     []profileArg `json:"args,omitempty"`
}

// profileArg compares one argument; several in one rule must all hold.
type profileArg struct {
	Index    int    `json:"index"`
	Value    uint64 `json:"value"`
	ValueTwo uint64 `json:"valueTwo"`
	Op       string `json:"op"`
}

// families bounds the socket families that are refused one by one; those above
// are refused together.
const families = 64

// Profile is the table as a container engine's JSON. It is the outer of two: the
// init loads the program of Seccomp as well, which says what this form cannot (the
// personality rule, calls newer than the table) and does not depend on which calls
// the engine's library knows by name.
func Profile() ([]byte, error) {
	p := profile{DefaultAction: "SCMP_ACT_ALLOW", Architectures: profileArchs}
	for _, r := range rules {
		for _, args := range r.comparisons() {
			p.Syscalls = append(p.Syscalls, profileRule{Names: r.names, Action: "SCMP_ACT_ERRNO", ErrnoRet: uint(r.errno), Args: args})
		}
		if r.names[0] == "socket" {
			p.Syscalls = append(p.Syscalls, profileRule{Names: []string{"socket"}, Action: "SCMP_ACT_ERRNO", ErrnoRet: uint(unix.EPROTONOSUPPORT),
				Args: []profileArg{{Index: 0, Value: unix.AF_NETLINK, Op: "SCMP_CMP_EQ"},
					{Index: netlinkProtocolArg, Value: unix.NETLINK_ROUTE, Op: "SCMP_CMP_NE"}}})
		}
	}
	return json.Marshal(p)
}

// comparisons are the cases in which r refuses, each a list that must hold whole.
func (r rule) comparisons() [][]profileArg {
	if len(r.tests) == 0 {
		return [][]profileArg{nil}
	}
	t := r.tests[0]
	var cases [][]profileArg
	add := func(op string, value, two uint64) {
		cases = append(cases, []profileArg{{Index: t.arg, Value: value, ValueTwo: two, Op: op}})
	}
	const masked = "SCMP_CMP_MASKED_EQ"
	switch {
	case len(t.values) == 0: // any of these bits
		for bit := uint64(1); bit <= 1<<31; bit <<= 1 {
			if uint64(t.full())&bit != 0 {
				add(masked, bit, bit)
			}
		}
	case !r.unless:
		for _, v := range t.values {
			add(masked, uint64(t.full()), uint64(v))
		}
	case len(t.values) == 1:
		add("SCMP_CMP_NE", uint64(t.values[0]), 0)
	case r.names[0] == "socket": // a comparison of one argument with several values is beyond this form
		for v := range uint32(families) {
			allowed := false
			for _, ok := range t.values {
				allowed = allowed || v == ok
			}
			if !allowed {
				add("SCMP_CMP_EQ", uint64(v), 0)
			}
		}
		add("SCMP_CMP_GE", families, 0)
	}
	return cases
}
