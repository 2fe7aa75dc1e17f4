package egress

import "net/netip"

// special are the addresses that no sandbox has business with, and what they are.
// IPv6 is the other way round: outside 2000::/3 nothing is public.
var special = func() []kind {
	var all []kind
	for _, k := range []struct{ prefix, what string }{
		{"0.0.0.0/8", "this machine"},
		{"10.0.0.0/8", "a private network"},
		{"100.64.0.0/10", "a carrier's network"},
		{"127.0.0.0/8", "this machine"},
		{"168.63.129.16/32", "a cloud's metadata service"},
		{"169.254.169.254/32", "a cloud's metadata service"},
		{"169.254.0.0/16", "a link-local network"},
		{"172.16.0.0/12", "a private network"},
		{"192.0.0.0/24", "reserved"},
		{"192.0.2.0/24", "reserved for documentation"},
		{"192.88.99.0/24", "a relay of IPv6"},
		{"192.168.0.0/16", "a private network"},
		{"198.18.0.0/15", "reserved for measurements"},
		{"198.51.100.0/24", "reserved for documentation"},
		{"203.0.113.0/24", "reserved for documentation"},
		{"224.0.0.0/4", "multicast"},
		{"240.0.0.0/4", "reserved or broadcast"},
		{"::/127", "this machine"},
		{"fc00::/7", "a private network"},
		{"fe80::/10", "a link-local network"},
		{"fec0::/10", "a private network"},
		{"ff00::/8", "multicast"},
		{"2001::/23", "reserved"},
		{"2001:db8::/32", "reserved for documentation"},
		{"3fff::/20", "reserved for documentation"},
	} {
		all = append(all, kind{netip.MustParsePrefix(k.prefix), k.what})
	}
	return all
}()

type kind struct {
	prefix netip.Prefix
	what   string
}

// Closed are the prefixes of IPv4 that no sandbox may reach.
func Closed() []netip.Prefix {
	var all []netip.Prefix
	for _, k := range special {
		if k.prefix.Addr().Is4() {
			all = append(all, k.prefix)
		}
	}
	return all
}

var (
	public6   = netip.MustParsePrefix("2000::/3")
	nat64     = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour = netip.MustParsePrefix("2002::/16")
)

// meaning is the address that packets to a end up at: IPv4 in one of its IPv6
// spellings is that IPv4 address.
func meaning(a netip.Addr) netip.Addr {
	a = a.WithZone("").Unmap()
	raw := a.As16()
	switch {
	case a.Is4():
	case nat64.Contains(a):
		return netip.AddrFrom4([4]byte(raw[12:16]))
	case sixToFour.Contains(a):
		return netip.AddrFrom4([4]byte(raw[2:6]))
	}
	return a
}

// notPublic says what an address is when it is not one of the public network.
func notPublic(a netip.Addr) (string, bool) {
	a = meaning(a)
	for _, k := range special {
		if k.prefix.Contains(a) {
			return k.what, true
		}
	}
	if a.Is6() && !public6.Contains(a) {
		return "not public", true
	}
	return "", false
}
