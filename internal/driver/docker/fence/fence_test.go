package fence

import (
	"context"
	"encoding/binary"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sandboxd/internal/captest"
	"sandboxd/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// own makes the calling goroutine's thread one of a network namespace of its own, and
// answers how another goroutine gets there.
func own(t *testing.T) (enter func()) {
	t.Helper()
	captest.Root(t)
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	space, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(space) })
	return func() {
		runtime.LockOSThread()
		if err := unix.Setns(space, unix.CLONE_NEWNET); err != nil {
			t.Error(err)
		}
	}
}

// putToSleep has the kernel pass over a table, which the library has no way to ask for.
func putToSleep(t *testing.T, table string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var batch []byte
	message := func(kind, flags uint16, family byte, resource uint16, attrs []byte) {
		batch = binary.NativeEndian.AppendUint32(batch, uint32(unix.SizeofNlMsghdr+4+len(attrs)))
		batch = binary.NativeEndian.AppendUint16(batch, kind)
		batch = binary.NativeEndian.AppendUint16(batch, unix.NLM_F_REQUEST|flags)
		batch = append(batch, make([]byte, 8)...)
		batch = binary.BigEndian.AppendUint16(append(batch, family, 0), resource)
		batch = append(batch, attrs...)
	}
	attr := func(kind uint16, data []byte) []byte {
		a := binary.NativeEndian.AppendUint16(nil, uint16(4+len(data)))
		a = append(binary.NativeEndian.AppendUint16(a, kind), data...)
		return append(a, make([]byte, -len(a)&3)...)
	}
	message(unix.NFNL_MSG_BATCH_BEGIN, 0, 0, unix.NFNL_SUBSYS_NFTABLES, nil)
	message(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWTABLE, unix.NLM_F_ACK, unix.NFPROTO_INET, 0,
		append(attr(unix.NFTA_TABLE_NAME, append([]byte(table), 0)), attr(unix.NFTA_TABLE_FLAGS, []byte{0, 0, 0, unix.NFT_TABLE_F_DORMANT})...))
	message(unix.NFNL_MSG_BATCH_END, 0, 0, unix.NFNL_SUBSYS_NFTABLES, nil)
	if err := unix.Sendto(fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil || n < 20 || binary.NativeEndian.Uint32(answer[16:]) != 0 {
		t.Fatalf("the kernel answers %x, %v", answer[:n], err)
	}
}

// A fence that was changed in any way does not stand; it is told of at once, and mended.
func TestWhatWasChangedDoesNotStand(t *testing.T) {
	enter := own(t)
	f := &Fence{Name: "sandboxd-test", Bridges: "sbtestx", Closed: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16")},
		Resolvers: []netip.Addr{netip.MustParseAddr("10.1.2.3")}}
	if mended, err := f.Mend(); mended || err != nil {
		t.Fatalf("what was never raised is mended: %v, %v", mended, err)
	}
	if err := f.Raise(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	told, over := make(chan struct{}, 1000), make(chan error, 1)
	go func() {
		enter()
		over <- f.Watch(ctx, func() { told <- struct{}{} })
	}()
	hears := func(what string) {
		t.Helper()
		select {
		case <-told:
		case err := <-over:
			t.Fatal(err)
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: nobody was told", what)
		}
	}
	// Until it listens.
	for listens := false; !listens; {
		if err := f.Raise(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-told:
			listens = true
		case <-time.After(time.Millisecond):
		}
	}
	rulesOf := func(c *nftables.Conn, chain string) []*nftables.Rule {
		rules, err := c.GetRules(f.table(), &nftables.Chain{Name: chain, Table: f.table()})
		if err != nil || len(rules) == 0 {
			t.Fatalf("%v, %v", rules, err)
		}
		return rules
	}
	all := []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	for what, change := range map[string]func(*nftables.Conn){
		"the table is gone":   func(c *nftables.Conn) { c.DelTable(f.table()) },
		"all tables are gone": func(c *nftables.Conn) { c.FlushRuleset() },
		"a chain is empty":    func(c *nftables.Conn) { c.FlushChain(&nftables.Chain{Name: forward, Table: f.table()}) },
		"one more rule": func(c *nftables.Conn) {
			c.InsertRule(&nftables.Rule{Table: f.table(), Chain: &nftables.Chain{Name: forward, Table: f.table()}, Exprs: all})
		},
		"another rule":        func(c *nftables.Conn) { r := rulesOf(c, input)[0]; r.Exprs = all; c.ReplaceRule(r) },
		"the table is asleep": func(*nftables.Conn) { putToSleep(t, f.Name) },
		"another order of rules": func(c *nftables.Conn) {
			rules := rulesOf(c, forward)
			last := rules[len(rules)-1]
			last.Handle = 0
			if err := c.DelRule(rulesOf(c, forward)[len(rules)-1]); err != nil {
				t.Fatal(err)
			}
			c.InsertRule(last)
		},
		"a chain that nothing calls": func(c *nftables.Conn) {
			c.DelChain(&nftables.Chain{Name: input, Table: f.table()})
			plain := c.AddChain(&nftables.Chain{Name: input, Table: f.table()})
			c.AddRule(&nftables.Rule{Table: f.table(), Chain: plain, Exprs: f.rules(input)[0]})
		},
	} {
		for len(told) > 0 {
			<-told
		}
		if stands, err := f.Stands(); !stands || err != nil {
			t.Fatalf("before: %v, %v", stands, err)
		}
		c, err := nftables.New()
		if err == nil {
			change(c)
			err = c.Flush()
		}
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if stands, err := f.Stands(); stands || err != nil {
			t.Errorf("%s: it stands %v, %v", what, stands, err)
		}
		hears(what)
		if mended, err := f.Mend(); !mended || err != nil {
			t.Errorf("%s: mended %v, %v", what, mended, err)
		}
		if mended, err := f.Mend(); mended || err != nil {
			t.Errorf("%s: mended again %v, %v", what, mended, err)
		}
	}
	if err := f.Lower(); err != nil {
		t.Fatal(err)
	}
	if mended, err := f.Mend(); mended || err != nil {
		t.Errorf("what was lowered is mended: %v, %v", mended, err)
	}
	cancel()
	if err := <-over; err != nil {
		t.Error(err)
	}
}
