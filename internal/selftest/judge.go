package selftest

import (
	"fmt"
	"strings"
)

// expectation is what attempts whose name begins so may get: one of the answers,
// separated by spaces, or what right says of it.
type expectation struct {
	name    string
	answers string
	right   func(string) bool
}

func (e expectation) met(got string) bool {
	if e.right != nil {
		return e.right(got)
	}
	return got == e.answers || got != "" && strings.Contains(" "+e.answers+" ", " "+got+" ")
}

// check is one mechanism as the prober sees it.
type check struct {
	mechanism, tried, why string
	expectations          []expectation
}

// Answers that mean no, whatever said it first.
const (
	denied  = "EPERM EACCES EROFS"
	refused = denied + " ENOSYS EAFNOSUPPORT EPROTONOSUPPORT"
	absent  = "ENOENT"
)

func begins(names []string, answers string) (list []expectation) {
	for _, n := range names {
		list = append(list, expectation{name: n, answers: answers})
	}
	return list
}

const noCapability = "0000000000000000"

// checks are judged in this order: an attempt belongs to the first that names it.
// Each name must have been tried.
var checks = []check{
	{"ordinary work", "what honest programs need", "a sandbox in which nothing works holds nothing in", append(
		begins([]string{"create in /workspace", "create in /home/sandbox", "create in /tmp", "create in /dev/shm", "rename across directories",
			"call unshare nothing", "call personality ask", "call netlink of routes", "listen on loopback"}, "ok"),
		expectation{name: "call other ioctl", answers: "EBADF"})},
	{"own user", "user and groups of a process", "the user of the machine's own programs may do what they may", []expectation{
		{name: "status Uid", right: oneUser}, {name: "status Gid", right: oneUser}, {name: "status Groups", answers: ""}}},
	{"capabilities", "the five sets", "each is a part of root's power",
		begins([]string{"status CapInh", "status CapPrm", "status CapEff", "status CapBnd", "status CapAmb"}, noCapability)},
	{"no_new_privs", "the flag of a process", "without it a set-uid program gives more than its caller has", begins([]string{"status NoNewPrivs"}, "1")},
	{"seccomp", "system calls that honest programs do not need", "mounts, namespaces, tracing, bpf, io_uring, keyrings and rare sockets are where kernels have had their holes", []expectation{
		{name: "status Seccomp", answers: "2"},
		{name: "call clone3", answers: "ENOSYS"}, {name: "call ", answers: refused}}},
	{"pid namespace", "processes that are seen", "a process that is seen can be looked into and signalled", []expectation{
		{name: "command lines", right: onlyOurs}}},
	{"process 1", "to look into it or change it", "it starts every command and speaks to the host",
		begins([]string{"write /proc/1/", "read /proc/1/"}, denied)},
	{"masks", "files of /proc about the kernel and the machine", "some change the kernel's settings, others show where its secrets lie", append(append(
		begins([]string{"write /proc/sys/"}, denied),
		// A view of the null device: what is written to it is lost.
		expectation{name: "write /proc/sysrq-trigger", answers: denied + " " + absent + " ok"}),
		append(begins([]string{"writable /proc/"}, "EROFS "+absent),
			begins([]string{"read /proc/"}, "empty EACCES "+absent)...)...)},
	{"read-only root", "to create files and to write to programs", "what one sandbox changes there every other one would run", append(
		begins([]string{"create in "}, denied+" "+absent), begins([]string{"write /"}, denied)...)},
	{"own root", "directories and devices of the machine", "secrets, sockets and disks of the machine lie there", begins([]string{"read /"}, absent)},
	{"devices", "to make a block device", "a node of the machine's disk is the machine's disk", begins([]string{"mknod"}, denied)},
	{"descriptors", "open files that a command begins with", "an inherited one leads past every other check", []expectation{{name: "descriptors", answers: "3"}}},
	{"network namespace", "interfaces and a way out", "the machine's network reaches its other services, its cloud's metadata and its neighbours", []expectation{
		{name: "interfaces", answers: "lo"}, {name: "reach the network", answers: "ENETUNREACH"}}},
}

// oneUser: the four ids are one, and not root's.
func oneUser(got string) bool {
	ids := strings.Fields(got)
	if len(ids) != 4 || ids[0] == "0" {
		return false
	}
	return ids[0] == ids[1] && ids[0] == ids[2] && ids[0] == ids[3]
}

// onlyOurs: process 1 and the prober.
func onlyOurs(got string) bool {
	for _, line := range strings.Split(got, "|") {
		if !strings.HasPrefix(line, "init") && !strings.Contains(line, ProberName) {
			return false
		}
	}
	return true
}

// Judge makes lines of what the prober found.
func Judge(found map[string]string) []Line {
	left := map[string]string{}
	for name, got := range found {
		left[name] = got
	}
	var lines []Line
	for _, c := range checks {
		lines = append(lines, c.judge(left))
	}
	return lines
}

// judge takes its attempts out of found.
func (c check) judge(found map[string]string) Line {
	line := Line{Section: "boundary", Mechanism: c.mechanism, Tried: c.tried, Why: c.why, Attempts: map[string]string{}}
	wrong := map[string]bool{}
	for _, e := range c.expectations {
		tried := false
		for name, got := range found {
			if !strings.HasPrefix(name, e.name) {
				continue
			}
			tried = true
			line.Attempts[name] = got
			delete(found, name)
			if !e.met(got) {
				wrong[name] = true
			}
		}
		if !tried {
			line.Attempts[e.name], wrong[e.name] = "not tried", true
		}
	}
	line.settle(wrong)
	return line
}

// settle gives the line its verdict from its attempts.
func (l *Line) settle(wrong map[string]bool) {
	if len(wrong) == 0 {
		l.Verdict, l.Got = OK, fmt.Sprintf("%d attempts, each as it must be", len(l.Attempts))
		if len(l.Attempts) == 1 {
			l.Got = "as it must be"
		}
		return
	}
	l.Verdict = Fail
	l.Got = bad(l.Attempts, func(name, _ string) bool { return wrong[name] })
}
