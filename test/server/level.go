package server

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"

	"sandboxd/client"
)

// openFiles counts a process's descriptors by kind.
func openFiles(pid int) map[string]int {
	kinds := map[string]int{}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		target, err := os.Readlink(filepath.Join(dir, entry.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		if kind, _, ok := strings.Cut(target, ":["); ok && !strings.HasPrefix(target, "anon_inode") {
			target = kind // its number says nothing
		}
		if strings.Contains(target, "/state/host.db") {
			continue // a bounded pool, which is filled when it is needed
		}
		kinds[target]++
	}
	return kinds
}

// more describes what is more in the second of two counts.
func more(was, is map[string]int) (list []string) {
	for kind, n := range is {
		if n > was[kind] {
			list = append(list, fmt.Sprintf("%s: %d, before %d", kind, n, was[kind]))
		}
	}
	return list
}

// gaveBack fails the test when the server, whose sandboxes are deleted and whose
// callers are gone, keeps files open for them.
func (s *Instance) gaveBack() {
	s.t.Helper()
	var held []string
	if !within(patience, func() bool {
		held = more(s.level, openFiles(s.PID()))
		return len(held) == 0
	}) {
		s.t.Errorf("the server keeps open what nobody uses: %s", strings.Join(held, "; "))
	}
}

// goroutinesEnded ends the server so that it shows every goroutine, and fails the
// test when there are more of a kind than in one that has just started.
func (s *Instance) goroutinesEnded() {
	s.t.Helper()
	idle, err := idleGoroutines(s.options)
	if err != nil {
		s.t.Errorf("a server to compare with: %v", err)
	}
	s.quiet()
	is, stacks := s.Process.goroutines()
	if held := more(idle, is); err == nil && len(held) > 0 {
		var shown strings.Builder
		for kind, text := range stacks {
			if is[kind] > idle[kind] {
				shown.WriteString(text)
			}
		}
		s.t.Errorf("goroutines are left in the server: %s\n%s", strings.Join(held, "; "), shown.String())
	}
}

// quiet waits until the server has nothing to do: what a delete does last is seen
// from outside by nothing else.
func (s *Instance) quiet() {
	s.t.Helper()
	last, same := "", 0
	s.Until("the server is idle", patience, func() bool {
		now := switches(s.PID())
		if now == last {
			same++
		} else {
			last, same = now, 0
		}
		return same >= 6
	})
}

// switches says how often the threads of a process have run.
func switches(pid int) string {
	var all strings.Builder
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	for _, name := range tasks {
		if raw, err := os.ReadFile(name); err == nil {
			_, counts, _ := strings.Cut(string(raw), "voluntary_ctxt_switches:")
			all.WriteString(counts)
		}
	}
	return all.String()
}

var (
	idleOnce  sync.Once
	idleCount map[string]int
	idleErr   error
)

// idleGoroutines are those of a server that did nothing yet but answer once.
func idleGoroutines(o Options) (map[string]int, error) {
	idleOnce.Do(func() { idleCount, idleErr = countIdle(o) })
	return idleCount, idleErr
}

func countIdle(o Options) (map[string]int, error) {
	dir, err := os.MkdirTemp("", "sandboxd-idle-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	data := filepath.Join(dir, "data")
	host, err := o.hostAddress()
	if err != nil {
		return nil, err
	}
	p, err := Start(o.spec(data, "", host))
	if err != nil {
		return nil, err
	}
	err = askOnce(p.URL, data)
	count, _ := p.goroutines()
	return count, err
}

func askOnce(url, data string) error {
	token, err := os.ReadFile(filepath.Join(data, "token"))
	if err != nil {
		return err
	}
	c, err := client.New(url, strings.TrimSpace(string(token)))
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.List(context.Background(), "")
	return err
}

var (
	aGoroutine = regexp.MustCompile(`(?m)^goroutine \d+ .*\[`)
	createdBy  = regexp.MustCompile(`(?m)^created by (\S+)`)
)

// goroutines ends the server by the signal that makes Go's runtime show them, and
// counts them by the function that started them, with their stacks.
func (p *Process) goroutines() (count map[string]int, stacks map[string]string) {
	before := len(p.Log.String())
	_ = p.End(syscall.SIGQUIT)
	count, stacks = map[string]int{}, map[string]string{}
	for _, one := range strings.Split(p.Log.String()[before:], "\n\n") {
		// The runtime's own come and go as it likes. One that serves a connection
		// holds its socket, which is an open file.
		found := createdBy.FindStringSubmatch(one)
		if !aGoroutine.MatchString(one) || found == nil || strings.HasPrefix(found[1], "runtime.") || found[1] == "net/http.(*Server).Serve" {
			continue
		}
		count[found[1]]++
		stacks[found[1]] += one + "\n\n"
	}
	return count, stacks
}
