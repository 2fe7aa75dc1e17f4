package inside

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"sandboxd/internal/guest/wire"
)

// Bounds of one look at what listens: a sandbox that is full of sockets or of
// descriptors must not keep its process 1 busy.
const (
	lookBytes   = 4 << 20 // of each table of sockets
	lookFiles   = 1 << 16 // descriptors of all processes
	lookParents = 64      // steps up from a process to a command's leader
)

// listening lists the sandbox's listening sockets, those of this process left out,
// each with a process that has it where one is found. Processes that forbid to be
// looked at have no name.
func (s *Server) listening() wire.PortList {
	own, err := ownPorts()
	if err != nil {
		return wire.PortList{Ports: []wire.Port{}, Incomplete: true}
	}
	list := wire.PortList{Ports: []wire.Port{}}
	at := map[string][]int{} // by the socket's inode: places in list.Ports
	seen := map[netip.AddrPort]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		complete := listeners(table, func(addr netip.AddrPort, inode string) bool {
			if own[int(addr.Port())] || seen[addr] {
				return true // of several sockets on one address any may be named
			}
			if len(list.Ports) == wire.MaxPorts {
				return false
			}
			seen[addr] = true
			at[inode] = append(at[inode], len(list.Ports))
			list.Ports = append(list.Ports, wire.Port{Port: int(addr.Port()), Address: addr.Addr().String()})
			return true
		})
		list.Incomplete = list.Incomplete || !complete
	}
	if !s.name(list.Ports, at) {
		list.Incomplete = true
	}
	slices.SortStableFunc(list.Ports, func(a, b wire.Port) int { return a.Port - b.Port })
	return list
}

// listeners reads a table of /proc/net. It answers false when not all of it was
// read; a table that is not there is one without sockets.
func listeners(table string, found func(addr netip.AddrPort, inode string) bool) bool {
	f, err := os.Open(table)
	if err != nil {
		return os.IsNotExist(err)
	}
	defer f.Close()
	rest := &io.LimitedReader{R: f, N: lookBytes}
	lines := bufio.NewScanner(rest)
	for lines.Scan() {
		// sl local rem st queues timer retransmits uid timeout inode ...
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || fields[3] != "0A" {
			continue
		}
		addr, ok := parseAddress(fields[1])
		if ok && !found(addr, fields[9]) {
			return false
		}
	}
	return lines.Err() == nil && rest.N > 0
}

// parseAddress reads an address as the kernel writes it: words of 32 bits, each in
// the machine's order, and the port.
func parseAddress(text string) (netip.AddrPort, bool) {
	words, port, ok := strings.Cut(text, ":")
	raw, err := hex.DecodeString(words)
	if !ok || err != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	addr, ok := netip.AddrFromSlice(raw)
	number, err := strconv.ParseUint(port, 16, 16)
	return netip.AddrPortFrom(addr.Unmap(), uint16(number)), ok && err == nil
}

// name finds a process for each of the sockets. It answers false when it had to
// give up.
func (s *Server) name(ports []wire.Port, at map[string][]int) bool {
	if len(at) == 0 {
		return true
	}
	budget := lookFiles
	for _, pid := range processes() {
		if len(at) == 0 {
			return true
		}
		for inode := range sockets(pid, &budget) {
			places := at[inode]
			if places == nil {
				continue
			}
			delete(at, inode)
			name, command := processName(pid), s.commandOf(pid)
			for _, i := range places {
				ports[i].PID, ports[i].Name, ports[i].Command = pid, name, command
			}
		}
		if budget <= 0 {
			return false
		}
	}
	return true
}

// processes lists what runs here, without this process.
func processes() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // what was read counts
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// sockets are the inodes of a process's sockets, as far as the budget allows.
func sockets(pid int, budget *int) map[string]bool {
	place := "/proc/" + strconv.Itoa(pid) + "/fd"
	dir, err := os.Open(place)
	if err != nil {
		return nil // it ended, or forbids it
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(*budget + 1)
	found := map[string]bool{}
	for _, name := range names {
		if *budget--; *budget <= 0 {
			break
		}
		target, err := os.Readlink(place + "/" + name)
		if err != nil {
			continue
		}
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			found[strings.TrimSuffix(inode, "]")] = true
		}
	}
	return found
}

func processName(pid int) string {
	name, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	if err != nil {
		return ""
	}
	text := strings.ToValidUTF8(strings.TrimSuffix(string(name), "\n"), "\uFFFD")
	return text[:min(len(text), wire.MaxPortName)]
}

// leaders remember which command a process began as, also when the command has
// ended and left processes behind. Under Server.mu.
type leaders struct {
	command map[int]string
	order   []int
}

func (l *leaders) add(pid int, command string) {
	if l.command == nil {
		l.command = map[int]string{}
	}
	if _, known := l.command[pid]; !known {
		l.order = append(l.order, pid)
	}
	l.command[pid] = command
	if len(l.order) > wire.MaxCommands {
		delete(l.command, l.order[0])
		l.order = l.order[1:]
	}
}

// commandOf is the command of a process: of its session, or of the nearest of its
// parents whose session has one.
func (s *Server) commandOf(pid int) string {
	for range lookParents {
		parent, session, ok := family(pid)
		if !ok {
			return ""
		}
		s.mu.Lock()
		command := s.leaders.command[session]
		s.mu.Unlock()
		if command != "" {
			return command
		}
		if parent <= 1 {
			return ""
		}
		pid = parent
	}
	return ""
}

// family reads a process's parent and session.
func family(pid int) (parent, session int, ok bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, false
	}
	// The name in parentheses may hold anything.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 4 {
		return 0, 0, false
	}
	parent, err = strconv.Atoi(fields[1])
	session, err2 := strconv.Atoi(fields[3])
	return parent, session, err == nil && err2 == nil
}
