package guest

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"sandboxd"
	"sandboxd/internal/guest/wire"
)

// Dial connects to a port of the sandbox's loopback, 127.0.0.1 first and then ::1.
// ClassUnavailable when nothing answers there, naming the port; ClassCapacity with
// too many connections open.
func (l *Link) Dial(ctx context.Context, port uint16) (Stream, error) {
	if port == 0 {
		return nil, sandboxd.Invalid("port", "1 to 65535 are ports")
	}
	st, err := l.streams.Open(ctx, wire.Frame{Type: wire.TypeDial, Arg: uint64(port)})
	var refused *wire.Refused
	switch {
	case err == nil:
		return st, nil
	case errors.Is(err, wire.ErrTooMany):
		return nil, sandboxd.Errorf(sandboxd.ClassCapacity, "%d connections to ports of this sandbox are open", wire.MaxDials)
	case errors.As(err, &refused):
		// Why is the init's word, and not repeated to callers.
		return nil, &sandboxd.Error{Class: sandboxd.ClassUnavailable, Field: "port", RetryS: 1, Err: err,
			Message: "nothing answers on port " + strconv.Itoa(int(port)) + " of the sandbox",
			Hint:    "is the program that listens there running? The list of ports says what listens"}
	}
	return nil, unavailable(err, "port "+strconv.Itoa(int(port))+" of the sandbox was not reached")
}

// maxPID is above what a kernel gives out.
const maxPID = 1 << 22

// Ports lists what listens in the sandbox. What the init says is believed in form
// only: it may name any process. ClassUnsupported for an init of an older version.
func (l *Link) Ports(ctx context.Context) (sandboxd.PortList, error) {
	if l.version < wire.PortsVersion {
		return sandboxd.PortList{}, sandboxd.Errorf(sandboxd.ClassUnsupported, "the sandbox was started by an older version, whose init lists no ports").
			WithHint("stop the sandbox and start it again")
	}
	answer := make(chan sandboxd.PortList, 1)
	l.mu.Lock()
	l.ping++
	number := l.ping
	l.asked[number] = answer
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.asked, number)
		l.mu.Unlock()
	}()
	if err := l.send(ctx, nil, wire.Frame{Type: wire.TypePorts, Arg: number}); err != nil {
		return sandboxd.PortList{}, err
	}
	select {
	case list := <-answer:
		return list, nil
	case <-l.broken:
		return sandboxd.PortList{}, l.Err()
	case <-ctx.Done():
		return sandboxd.PortList{}, unavailable(ctx.Err(), "the init does not answer")
	}
}

// hearPorts takes the answer to Ports.
func (l *Link) hearPorts(f wire.Frame) error {
	l.mu.Lock()
	answer := l.asked[f.Arg]
	delete(l.asked, f.Arg)
	l.mu.Unlock()
	if answer == nil {
		return l.useless(f)
	}
	var said wire.PortList
	if err := json.Unmarshal(f.Payload, &said); err != nil {
		return violation("malformed list of ports")
	}
	if len(said.Ports) > wire.MaxPorts {
		return violation("a list of %d ports", len(said.Ports))
	}
	list := sandboxd.PortList{Ports: make([]sandboxd.Port, 0, len(said.Ports)), Incomplete: said.Incomplete}
	for _, p := range said.Ports {
		addr, err := netip.ParseAddr(p.Address)
		if err != nil || addr.Zone() != "" || p.Port < 1 || p.Port > 65535 || p.PID < 0 || p.PID > maxPID ||
			(p.Command != "" && !sandboxd.ValidCommandID(p.Command)) {
			return violation("an impossible port in the list")
		}
		list.Ports = append(list.Ports, sandboxd.Port{Port: uint16(p.Port), Address: addr.String(), PID: p.PID,
			Process: printable(p.Name), CommandID: p.Command})
	}
	slices.SortStableFunc(list.Ports, func(a, b sandboxd.Port) int { return int(a.Port) - int(b.Port) })
	answer <- list
	return nil
}

// printable is a name without what a terminal would act on.
func printable(name string) string {
	name = strings.ToValidUTF8(name[:min(len(name), wire.MaxPortName)], "\uFFFD")
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, name)
}
