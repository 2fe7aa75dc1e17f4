// Command bench measures the shipped binary against what the machine itself can
// do, and prints each row of the project's goals with its ratio. Baseline and
// product alternate (ABBA) in one run over the whole product path: HTTP, token,
// journal, store, cgroup of the command. Raw samples go to bench/results.
//
// It is run by `make bench`, as root, and drives bin/sandboxd over loopback only.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"sandboxd"
	"sandboxd/client"
)

// row is one measured line.
type row struct {
	Name    string               `json:"name"`
	Goal    string               `json:"goal"`
	Result  string               `json:"result"`
	Met     bool                 `json:"met"`
	Samples map[string][]float64 `json:"samples"` // milliseconds unless the name says otherwise
}

// bench is a running server and what the rows share.
type bench struct {
	binary string
	dir    string
	addr   string
	rounds int
	serve  []string // flags of the server; the process driver by default
	attack string   // names of attacks, separated by commas; "" for all
	cmd    *exec.Cmd
	c      *client.Client
	token  string
}

func main() {
	if len(os.Args) == 4 && os.Args[1] == "bare" {
		bareServer(os.Args[2], os.Args[3])
		return
	}
	binary := flag.String("binary", "bin/sandboxd", "the binary under test")
	rounds := flag.Int("rounds", 5, "ABBA rounds")
	only := flag.String("only", "", "names of rows, separated by commas")
	attack := flag.String("attacks", "", "names of attacks for the rows that have some, separated by commas")
	out := flag.String("out", "bench/results", "directory for raw samples")
	flag.Parse()
	b := &bench{binary: *binary, rounds: *rounds, attack: *attack}
	if err := b.run(*only, *out); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (b *bench) run(only, out string) error {
	dir, err := os.MkdirTemp("", "sandboxd-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b.dir = dir
	if err := b.start(); err != nil {
		return err
	}
	defer b.stop()
	rows := []struct {
		name string
		fn   func() (row, error)
	}{
		{"exec", b.execOne}, {"exec16", b.execMany}, {"cold", b.openCold}, {"pooled", b.openPooled}, {"kept", b.openKept}, {"burst", b.burst},
		{"write", func() (row, error) { return b.write(false) }}, {"synced", func() (row, error) { return b.write(true) }},
		{"large", b.large}, {"tar", b.tar}, {"output", b.output}, {"idle", b.idle}, {"stop", b.stopTree}, {"restart", b.restart},
		{"deaths", b.deaths}, {"search", b.search}, {"attacks", b.attacks}, {"dattacks", b.containerAttacks},
		{"docker", b.containerCold}, {"dpool", b.containerPooled}, {"dkept", b.containerKept}, {"dexec", func() (row, error) { return b.containerExec("") }}, {"engine", b.engineExec},
		{"gvisor", func() (row, error) { return b.containerExec("runsc") }},
	}
	results := []row{}
	for _, r := range rows {
		if only != "" && !slices.Contains(strings.Split(only, ","), r.name) {
			continue
		}
		res, err := r.fn()
		if errors.Is(err, errNoEngine) {
			fmt.Printf("%-8s not measured: %v\n", r.name, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		res.Name = r.name
		mark := "met"
		if !res.Met {
			mark = "MISSED"
		}
		fmt.Printf("%-8s %-6s goal %-40s %s\n", res.Name, mark, res.Goal, res.Result)
		results = append(results, res)
	}
	return save(out, results)
}

func save(out string, rows []row) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	var uts syscall.Utsname
	syscall.Uname(&uts)
	release := make([]byte, 0, len(uts.Release))
	for _, c := range uts.Release {
		if c == 0 {
			break
		}
		release = append(release, byte(c))
	}
	doc := map[string]any{"at": time.Now().UTC().Format(time.RFC3339), "kernel": string(release), "cores": runtime.NumCPU(), "rows": rows}
	raw, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, time.Now().UTC().Format("20060102-150405")+".json"), append(raw, '\n'), 0o644)
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// start runs the server until it answers.
func (b *bench) start() error {
	if b.addr == "" {
		addr, err := freeAddr()
		if err != nil {
			return err
		}
		b.addr = addr
	}
	log, err := os.OpenFile(filepath.Join(b.dir, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	b.cmd = exec.Command(b.binary, "serve", "--data", filepath.Join(b.dir, "data"), "--listen", b.addr, "--max-sandboxes", "2000")
	if b.serve == nil {
		b.serve = []string{"--driver", "process"}
	}
	b.cmd.Args = append(b.cmd.Args, b.serve...)
	b.cmd.Stdout, b.cmd.Stderr = log, log
	if err := b.cmd.Start(); err != nil {
		return err
	}
	if err := waitFor("http://" + b.addr + "/healthz"); err != nil {
		return err
	}
	token, err := os.ReadFile(filepath.Join(b.dir, "data", "token"))
	if err != nil {
		return err
	}
	b.token = strings.TrimSpace(string(token))
	b.c, err = client.New("http://"+b.addr, b.token)
	return err
}

// unpooled is another server, on which every open is a cold one.
func (b *bench) unpooled() (*bench, error) {
	dir := filepath.Join(b.dir, "unpooled")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	other := &bench{binary: b.binary, dir: dir, rounds: b.rounds, serve: []string{"--driver", "process", "--ready", "0"}}
	return other, other.start()
}

func waitFor(url string) error {
	deadline := time.Now().Add(30 * time.Second)
	for time.Now().Before(deadline) {
		resp, err := http.Get(url)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == 200 {
				return nil
			}
		}
		time.Sleep(2 * time.Millisecond)
	}
	return fmt.Errorf("%s does not answer", url)
}

// stop deletes what is left and ends the server.
func (b *bench) stop() {
	ctx := context.Background()
	if list, err := b.c.List(ctx, ""); err == nil {
		for _, sb := range list {
			b.c.Delete(ctx, sb.ID)
		}
		for range 500 {
			if cg := leftovers(list); cg == 0 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n := leftovers(list); n > 0 {
			fmt.Printf("LEFT BEHIND: %d cgroups\n", n)
		}
	}
	b.cmd.Process.Signal(syscall.SIGTERM)
	b.cmd.Wait()
}

func leftovers(list []sandboxd.Sandbox) int {
	n := 0
	dirs, _ := filepath.Glob("/sys/fs/cgroup/*/*/*")
	more, _ := filepath.Glob("/sys/fs/cgroup/*/*/*/*")
	for _, d := range append(dirs, more...) {
		for _, sb := range list {
			if strings.Contains(filepath.Base(d), sb.ID) {
				n++
			}
		}
	}
	return n
}

func (b *bench) open(ctx context.Context) (sandboxd.Sandbox, error) { return b.openWith(ctx, "") }

// openWith opens a sandbox under an OCI runtime; "" is the driver's own.
func (b *bench) openWith(ctx context.Context, runtime string) (sandboxd.Sandbox, error) {
	sb, _, err := b.c.Open(ctx, sandboxd.OpenRequest{OCIRuntime: runtime})
	return sb, err
}

// percentile of samples in milliseconds; p is between 0 and 1.
func percentile(samples []float64, p float64) float64 {
	s := slices.Clone(samples)
	slices.Sort(s)
	return s[min(len(s)-1, int(p*float64(len(s))))]
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// abba runs baseline and product in turns and collects what each round says.
func (b *bench) abba(baseline, product func() ([]float64, error)) (base, prod [][]float64, err error) {
	for range b.rounds {
		for _, which := range []int{0, 1, 1, 0} {
			fn := baseline
			if which == 1 {
				fn = product
			}
			s, err := fn()
			if err != nil {
				return nil, nil, err
			}
			if which == 0 {
				base = append(base, s)
			} else {
				prod = append(prod, s)
			}
		}
	}
	return base, prod, nil
}

// ratios pairs the rounds: the p-th percentile of product over that of baseline.
func ratios(base, prod [][]float64, p float64) []float64 {
	var r []float64
	for i := range base {
		r = append(r, percentile(prod[i], p)/percentile(base[i], p))
	}
	return r
}

func spread(r []float64) string {
	return fmt.Sprintf("%.2fx (%.2f to %.2f)", percentile(r, 0.5), slices.Min(r), slices.Max(r))
}

func flat(rounds [][]float64) []float64 { return slices.Concat(rounds...) }
