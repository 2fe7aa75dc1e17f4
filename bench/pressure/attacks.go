// Package pressure is what a hostile sandbox does to the machine's resources, and
// how long the calls of others take beside it. The bench prints what it measures
// and the attack tests judge it; this package does neither, and knows the product
// by its API only.
package pressure

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"

	"sandboxd"
)

// Attack is one way to take of the machine what a sandbox can get. Its shell text
// runs with the program Intruder (test/attack/intruder) in the working directory.
type Attack struct {
	Name  string
	Shell string
	Says  string // what its output holds when it is under way
	// Beside is done by callers of the API as long as ctx lives; nil means nothing.
	Beside func(ctx context.Context, c *Calls, id string)
}

// Intruder is the name of the hostile program in the sandbox.
const Intruder = "intruder"

// Limits are those of a sandbox that attacks: a hostile program can use what a
// sandbox is given, and no more.
var Limits = sandboxd.Limits{MemoryBytes: 256 << 20, PIDs: 200, CPUs: 1, OpenFiles: 1024}

// Attacks are one for each resource that the sandboxes of a machine share.
func Attacks() []Attack {
	return []Attack{
		{Name: "busy loops", Shell: `for i in 1 2 3 4 5 6 7 8; do while :; do :; done & done; echo go; wait`, Says: "go"},
		{Name: "fork bomb", Shell: `trap '' TERM HUP INT; echo go; while :; do setsid sh -c 'trap "" TERM; while :; do (setsid sleep 1 &) 2>/dev/null; done' 2>/dev/null & done; exec sleep 1000`, Says: "go"},
		{Name: "memory", Shell: `echo go; while :; do ./intruder eat 1000; done`, Says: "go"},
		{Name: "inodes", Shell: `echo go; while :; do mkdir c; (cd c; ../intruder many 2000); rm -rf c; done`, Says: "go"},
		{Name: "descriptors", Shell: `for i in $(seq 20); do ./intruder descriptors & done; wait`, Says: "EMFILE"},
		{Name: "terminals", Shell: `for i in 1 2 3; do ./intruder terminals 2000 & done; wait`, Says: "terminals"},
		{Name: "sparse files", Shell: `truncate -s 1T sparse; echo go; while :; do for i in $(seq 200); do truncate -s 1T s$i; done; dd if=/dev/zero of=sparse bs=4k count=512 seek=$((RANDOM * 4096)) conv=notrunc 2>/dev/null; rm -f s*; done`, Says: "go"},
		{Name: "writes to disk", Shell: `echo go; while :; do dd if=/dev/zero of=big bs=1M count=64 conv=fsync 2>/dev/null; rm big; done`, Says: "go"},
		{Name: "output flood", Shell: `echo go; exec ./intruder flood`, Says: "go"},
		{Name: "output floods", Shell: `echo go; for i in 1 2 3; do ./intruder flood & done; wait`, Says: "go"},
		{Name: "zombies", Shell: `./intruder zombies 100000`, Says: "zombies"},
		{Name: "orphans", Shell: `echo go; while :; do ./intruder orphans 100; done`, Says: "go"},
		{Name: "searches", Shell: `mkdir many && (cd many && mkdir $(seq 2000)) && head -c 40000 /dev/zero | tr '\0' a >line && yes "$(cat line)" | head -n 500 >slow; truncate -s 1T sparse
echo go; ./intruder flip /tmp & cd many; while :; do mkdir n; mv 1 n; mv n/1 1; rmdir n; mv 2 x; mv x 2; done`, Says: "go", Beside: searches},
	}
}

// searches are three callers that search and three that watch. They only throw away
// what comes, as cheaply as can be: they are beside what is measured, in one process.
func searches(ctx context.Context, c *Calls, id string) {
	files := "/v1/sandboxes/" + id + "/files"
	search := c.text("GET", files+"/grep?time_s=1&pattern="+url.QueryEscape("(a|aa)*[bc]|(a?b?){20}[de]"), "")
	watch := c.text("GET", files+"/watch", "")
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			_ = c.with(ctx, func(conn net.Conn) error {
				r := bufio.NewReader(conn)
				for {
					if _, err := conn.Write(search); err != nil {
						return err
					}
					resp, err := http.ReadResponse(r, nil)
					if err != nil {
						return err
					}
					if _, err := io.Copy(io.Discard, resp.Body); err != nil {
						return err
					}
					resp.Body.Close()
				}
			})
		})
		all.Go(func() {
			_ = c.with(ctx, func(conn net.Conn) error {
				if _, err := conn.Write(watch); err != nil {
					return err
				}
				_, err := io.Copy(io.Discard, conn)
				return err
			})
		})
	}
	all.Wait()
}

// with does something with a connection of its own, which ends with ctx.
func (c *Calls) with(ctx context.Context, do func(net.Conn) error) error {
	conn, err := net.Dial("tcp", c.addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	return do(conn)
}
