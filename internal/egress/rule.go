package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Rule is one line of a list: a host name, *.name for every name below it, * for
// everything, an address or a prefix of addresses; with :port for that port only.
type Rule struct {
	name   string       // exact
	suffix string       // ".name"
	prefix netip.Prefix // valid for an address or a prefix
	any    bool
	port   uint16 // 0 is every port
}

// ParseRule reads a rule. Its String is canonical.
func ParseRule(s string) (Rule, error) {
	var r Rule
	// An IPv6 address or prefix may stand without brackets, then without a port.
	if prefix, ok := barePrefix(s); ok {
		r.prefix = prefix
		return r, nil
	}
	host, port, err := splitPort(s)
	if err != nil {
		return Rule{}, err
	}
	r.port = port
	switch rest, below := strings.CutPrefix(host, "*."); {
	case host == "*":
		r.any = true
	case strings.HasPrefix(host, "["):
		prefix, ok := barePrefix(strings.TrimSuffix(host[1:], "]"))
		if !ok || !strings.HasSuffix(host, "]") {
			return Rule{}, errors.New("only an IPv6 address stands in brackets")
		}
		r.prefix = prefix
	case strings.Contains(host, "/"):
		prefix, ok := barePrefix(host)
		if !ok {
			return Rule{}, fmt.Errorf("%q is no prefix of addresses", clip(host))
		}
		r.prefix = prefix
	default:
		if !below {
			rest = host
		}
		name, addr, err := parseHost(rest)
		switch {
		case err != nil:
			return Rule{}, err
		case below && name == "":
			return Rule{}, errors.New("below an address there are no names")
		case below:
			r.suffix = "." + name
		case name != "":
			r.name = name
		default:
			r.prefix = netip.PrefixFrom(addr, addr.BitLen())
		}
	}
	return r, nil
}

// barePrefix reads an address or a prefix without port and brackets. Bits beyond
// the prefix and prefixes of IPv4 in IPv6 are refused: they are mistakes.
func barePrefix(s string) (netip.Prefix, bool) {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p, p == p.Masked() && !p.Addr().Is4In6()
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Prefix{}, false
	}
	a = meaning(a)
	return netip.PrefixFrom(a, a.BitLen()), true
}

// String is the canonical spelling.
func (r Rule) String() string {
	var s string
	switch {
	case r.any:
		s = "*"
	case r.suffix != "":
		s = "*" + r.suffix
	case r.name != "":
		s = r.name
	case r.prefix.IsSingleIP():
		s = r.prefix.Addr().String()
	default:
		s = r.prefix.String()
	}
	if r.port == 0 {
		return s
	}
	if r.prefix.IsValid() && r.prefix.Addr().Is6() {
		s = "[" + s + "]"
	}
	return s + ":" + strconv.Itoa(int(r.port))
}

// covers says whether a rule means a target by what its request said.
func (r Rule) covers(t Target) bool {
	if r.port != 0 && r.port != t.Port {
		return false
	}
	switch {
	case r.any:
		return true
	case t.Name == "":
		return r.prefix.IsValid() && r.prefix.Contains(t.Addr)
	case r.suffix != "":
		return strings.HasSuffix(t.Name, r.suffix)
	}
	return r.name != "" && r.name == t.Name
}

// coversAddr says whether a rule of addresses means one.
func (r Rule) coversAddr(a netip.AddrPort) bool {
	return r.prefix.IsValid() && (r.port == 0 || r.port == a.Port()) && r.prefix.Contains(a.Addr())
}

// ParseRules reads a list and answers it with its canonical spelling.
func ParseRules(list []string) ([]Rule, []string, error) {
	rules, spelled := make([]Rule, 0, len(list)), make([]string, 0, len(list))
	for _, s := range list {
		r, err := ParseRule(s)
		if err != nil {
			return nil, nil, fmt.Errorf("%q: %w", clip(s), err)
		}
		rules, spelled = append(rules, r), append(spelled, r.String())
	}
	return rules, spelled, nil
}

// ParseAddressRules reads a list that may hold addresses and prefixes only.
func ParseAddressRules(list []string) ([]Rule, error) {
	rules, _, err := ParseRules(list)
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		if !r.prefix.IsValid() {
			return nil, fmt.Errorf("%q is neither an address nor a prefix as 10.0.0.0/8", clip(r.String()))
		}
	}
	return rules, nil
}
