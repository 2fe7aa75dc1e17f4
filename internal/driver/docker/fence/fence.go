// Package fence keeps what is behind some of the machine's bridges from the machine
// itself, its private networks and each other: an nftables table of its own, which
// an engine's or an operator's rules neither order nor loosen, because a packet that
// any table refuses is refused. It is not the engine's firewall, makes no network and
// translates no address.
package fence

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Fence is the rules of one owner. It is safe for concurrent use.
type Fence struct {
	Name    string         // of the table; each owner has its own
	Bridges string         // what the names of the bridges begin with, and of no others
	Closed  []netip.Prefix // of IPv4: where nobody behind them gets to
	// Resolvers may be asked for names, by UDP and TCP on port 53, though they are in
	// Closed.
	Resolvers []netip.Addr

	mu     sync.Mutex
	raised bool // and not lowered since
}

// before the engine's chains, whose priority is 0, so that who is refused is told so.
const before = -10

// The chains. Who is refused goes to the last one.
const (
	forward = "forward"
	input   = "input"
	refuse  = "refuse"
)

var refused = &expr.Verdict{Kind: expr.VerdictGoto, Chain: refuse}

// filtered says whether the kernel shows the machine's rules what crosses one bridge,
// without which they keep nobody on it from the next. Of a kernel that cannot, it is not
// there; whether neighbours are apart is for the caller to try.
const filtered = "/proc/sys/net/bridge/bridge-nf-call-iptables"

// Raise makes the rules, in place of those that are there, in one step.
func (f *Fence) Raise() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.raised = true // also when it fails: it is wanted
	return f.raise()
}

// Mend makes the rules anew if they were raised, by this fence, and do not stand, and says
// whether it did.
func (f *Fence) Mend() (mended bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.raised {
		return false, nil
	}
	stands, err := f.Stands()
	if err != nil || stands {
		return false, err
	}
	return true, f.raise()
}

func (f *Fence) raise() error {
	if on, err := os.ReadFile(filtered); err == nil && string(on) == "0\n" {
		if err := os.WriteFile(filtered, []byte("1"), 0); err != nil {
			return err
		}
	}
	return f.change(func(c *nftables.Conn) {
		table := f.table()
		c.AddTable(table) // so that there is one to remove
		c.DelTable(table)
		c.AddTable(table)
		for _, chain := range chains(table) {
			c.AddChain(chain)
		}
		for _, chain := range chains(table) {
			for _, r := range f.rules(chain.Name) {
				c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: r})
			}
		}
	})
}

func (f *Fence) table() *nftables.Table {
	return &nftables.Table{Name: f.Name, Family: nftables.TableFamilyINet}
}

// chains are those of the table, without their rules.
func chains(table *nftables.Table) []*nftables.Chain {
	at := func(name string, hook *nftables.ChainHook) *nftables.Chain {
		return &nftables.Chain{Name: name, Table: table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityRef(before)}
	}
	return []*nftables.Chain{{Name: refuse, Table: table}, at(forward, nftables.ChainHookForward), at(input, nftables.ChainHookInput)}
}

// Lower removes the rules; none there is no error.
func (f *Fence) Lower() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.raised = false
	return f.change(func(c *nftables.Conn) {
		c.AddTable(f.table())
		c.DelTable(f.table())
	})
}

// Stands says whether every rule is there as it was made, where it was made, and sees
// what crosses a bridge. Somebody may have cleared all tables, changed one rule of this
// one or put it to sleep, or taken the rules off bridges.
func (f *Fence) Stands() (bool, error) {
	if on, err := os.ReadFile(filtered); err == nil && string(on) == "0\n" {
		return false, nil
	}
	c, err := nftables.New()
	if err != nil {
		return false, f.explain(err)
	}
	stands, err := f.found(c)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return stands, f.explain(err)
}

func (f *Fence) found(c *nftables.Conn) (bool, error) {
	table, err := c.ListTableOfFamily(f.Name, nftables.TableFamilyINet)
	if err != nil || table.Flags != 0 {
		return false, err
	}
	for _, want := range chains(f.table()) {
		is, err := c.ListChain(table, want.Name)
		if err != nil {
			return false, err
		}
		if is.Type != want.Type || !reflect.DeepEqual(is.Hooknum, want.Hooknum) || !reflect.DeepEqual(is.Priority, want.Priority) {
			return false, nil
		}
		rules, err := c.GetRules(table, want)
		if err != nil {
			return false, err
		}
		if !slices.EqualFunc(rules, f.rules(want.Name), func(is *nftables.Rule, want rule) bool { return reflect.DeepEqual(is.Exprs, want) }) {
			return false, nil
		}
	}
	return true, nil
}

func (f *Fence) change(fn func(*nftables.Conn)) error {
	c, err := nftables.New()
	if err == nil {
		fn(c)
		err = c.Flush()
	}
	return f.explain(err)
}

func (f *Fence) explain(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("nftables, table %s: %w", f.Name, err)
}

type rule = []expr.Any

func (f *Fence) rules(chain string) []rule {
	switch chain {
	case forward:
		return f.forward()
	case input:
		return f.input()
	}
	return f.refuse()
}

// refuse: whoever connects hears of it at once. A message that it is prohibited would
// do, but who sits on the same machine gets it too early to heed it, and tries again
// after a second.
func (f *Fence) refuse() []rule {
	return []rule{
		{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equal(unix.IPPROTO_TCP), &expr.Reject{Type: unix.NFT_REJECT_TCP_RST}},
		{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}},
	}
}

// input: the machine itself has no business with them, in either family.
func (f *Fence) input() []rule {
	return []rule{append(f.from(), refused)}
}

// forward: in this order, because a rule that accepts ends the chain.
func (f *Fence) forward() []rule {
	to := &expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}
	ours := &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(f.Bridges)}
	rules := []rule{
		append(f.from(), to, ours, refused), // each other
		// Nobody from outside, whatever routes there are: only answers.
		{to, ours, &expr.Ct{Key: expr.CtKeySTATE, Register: 1}, bits(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED), none(), refused},
		append(f.from(), &expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, equal(unix.NFPROTO_IPV6), refused),
		// What is translated on the way is a port that somebody published on the machine.
		append(f.from(), &expr.Ct{Key: expr.CtKeySTATUS, Register: 1}, bits(statusTranslated), some(), refused),
	}
	for _, resolver := range f.Resolvers {
		for _, protocol := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			r := append(f.from(), destination(netip.PrefixFrom(resolver, 32))...)
			rules = append(rules, append(r,
				&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equal(protocol),
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(53)},
				&expr.Verdict{Kind: expr.VerdictAccept}))
		}
	}
	for _, closed := range f.Closed {
		rules = append(rules, append(append(f.from(), destination(closed)...), refused))
	}
	return rules
}

// statusTranslated is IPS_DST_NAT of the kernel's connection tracking.
const statusTranslated = 1 << 5

// from matches packets that come over one of the bridges: a comparison of a name's
// beginning is a wildcard.
func (f *Fence) from() rule {
	return rule{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(f.Bridges)}}
}

// destination matches packets of IPv4 to a prefix.
func destination(p netip.Prefix) rule {
	addr := p.Masked().Addr().As4()
	mask := binaryutil.BigEndian.PutUint32(^uint32(0) << (32 - p.Bits()))
	return rule{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, equal(unix.NFPROTO_IPV4),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: addr[:]},
	}
}

func equal(b byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{b}} }

// bits keeps those of a mask; some and none say whether there are any.
func bits(mask uint32) expr.Any {
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(mask), Xor: make([]byte, 4)}
}

func some() expr.Any { return &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)} }
func none() expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: make([]byte, 4)} }
