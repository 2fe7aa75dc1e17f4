package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"sandboxd"
)

// bareServer is the baseline of the file rows: the least a Go server can do to
// store a body durably enough and give it to another owner.
func bareServer(addr, dir string) {
	http.HandleFunc("PUT /file", func(w http.ResponseWriter, r *http.Request) {
		f, err := os.CreateTemp(dir, "tmp-")
		if err == nil {
			defer f.Close()
			_, err = io.Copy(f, r.Body)
		}
		if err == nil {
			err = f.Chown(10001, 10001)
		}
		if err == nil && r.URL.Query().Has("synced") {
			err = f.Sync()
		}
		if err == nil {
			err = os.Rename(f.Name(), filepath.Join(dir, "file"))
		}
		if err != nil {
			http.Error(w, err.Error(), 500)
		}
	})
	http.HandleFunc("GET /file", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, filepath.Join(dir, "file")) })
	http.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	fmt.Fprintln(os.Stderr, http.ListenAndServe(addr, nil))
	os.Exit(1)
}

// bare starts the baseline server as a process of its own.
func (b *bench) bare() (url string, stop func(), err error) {
	addr, err := freeAddr()
	if err != nil {
		return "", nil, err
	}
	// On the same file system as the workspaces: the disk must not be the difference.
	dir := filepath.Join(b.dir, "bare")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", nil, err
	}
	cmd := exec.Command("/proc/self/exe", "bare", addr, dir)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	return "http://" + addr, func() { cmd.Process.Kill(); cmd.Wait() }, waitFor("http://" + addr + "/healthz")
}

// call does one request and answers the body; any status but 2xx is an error.
func (b *bench) call(method, url string, body []byte) ([]byte, error) {
	req, err := http.NewRequest(method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+b.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %d %s", method, url, resp.StatusCode, raw)
	}
	return raw, err
}

func (b *bench) sandboxURL(id, rest string) string {
	return "http://" + b.addr + "/v1/sandboxes/" + id + rest
}

func (b *bench) write(synced bool) (row, error) {
	ctx := context.Background()
	sb, err := b.open(ctx)
	if err != nil {
		return row{}, err
	}
	defer b.c.Delete(ctx, sb.ID)
	bare, stop, err := b.bare()
	if err != nil {
		return row{}, err
	}
	defer stop()
	body := bytes.Repeat([]byte("x"), 1024)
	query, goal, what := "", 1.3, "write 1 KiB"
	if synced {
		query, goal, what = "&synced=true", 1.2, "write 1 KiB synced"
	}
	put := func(url string) func() ([]float64, error) {
		return func() ([]float64, error) {
			return times(300, func() error { _, err := b.call("PUT", url, body); return err })
		}
	}
	base, prod, err := b.abba(put(bare+"/file?x=1"+query), put(b.sandboxURL(sb.ID, "/files?path=f"+query)))
	if err != nil {
		return row{}, err
	}
	r := ratios(base, prod, 0.5)
	return row{
		Goal: fmt.Sprintf("%s: %gx of a bare Go server", what, goal), Result: fmt.Sprintf("%s; %.3f ms against %.3f ms", spread(r), percentile(flat(prod), 0.5), percentile(flat(base), 0.5)),
		Met: percentile(r, 0.5) <= goal, Samples: map[string][]float64{"base": flat(base), "product": flat(prod)},
	}, nil
}

func (b *bench) large() (row, error) {
	ctx := context.Background()
	sb, err := b.open(ctx)
	if err != nil {
		return row{}, err
	}
	defer b.c.Delete(ctx, sb.ID)
	bare, stop, err := b.bare()
	if err != nil {
		return row{}, err
	}
	defer stop()
	body := make([]byte, 8<<20)
	rng := rand.NewChaCha8([32]byte{1})
	rng.Read(body)
	want := sha256.Sum256(body)
	trip := func(put, get string) func() ([]float64, error) {
		return func() ([]float64, error) {
			return times(8, func() error {
				if _, err := b.call("PUT", put, body); err != nil {
					return err
				}
				got, err := b.call("GET", get, nil)
				if err == nil && sha256.Sum256(got) != want {
					err = fmt.Errorf("other bytes came back")
				}
				return err
			})
		}
	}
	product := trip(b.sandboxURL(sb.ID, "/files?path=f"), b.sandboxURL(sb.ID, "/files/content?path=f"))
	if _, err := product(); err != nil { // once before memory is measured
		return row{}, err
	}
	status := fmt.Sprintf("/proc/%d/status", b.cmd.Process.Pid)
	before, err := procNumber(status, "RssAnon")
	if err != nil {
		return row{}, err
	}
	base, prod, err := b.abba(trip(bare+"/file", bare+"/file"), product)
	if err != nil {
		return row{}, err
	}
	after, err := procNumber(status, "RssAnon")
	if err != nil {
		return row{}, err
	}
	r := ratios(base, prod, 0.5)
	grown := float64(after-before) / 1024
	return row{
		Goal: "8 MiB there and back: 1.3x, memory < 4 MiB more", Result: fmt.Sprintf("%s; %.1f MiB more", spread(r), grown),
		Met: percentile(r, 0.5) <= 1.3 && grown < 4, Samples: map[string][]float64{"base": flat(base), "product": flat(prod), "grown_mib": {grown}},
	}, nil
}

func (b *bench) tar() (row, error) {
	ctx := context.Background()
	archive := filepath.Join(b.dir, "small.tar")
	f, err := os.Create(archive)
	if err != nil {
		return row{}, err
	}
	w := tar.NewWriter(f)
	for i := range 10000 {
		body := strings.Repeat("y", 200+i%3000)
		if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("d%d/e%d/f%d", i%20, i%400, i), Mode: 0o644, Size: int64(len(body))}); err != nil {
			return row{}, err
		}
		io.WriteString(w, body)
	}
	if err := w.Close(); err != nil {
		return row{}, err
	}
	f.Close()
	n := 0
	baseline := func() ([]float64, error) {
		n++
		dir := filepath.Join(b.dir, "bare-tar", fmt.Sprint(n))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		s, err := times(1, func() error {
			return exec.Command("tar", "x", "--no-same-owner", "-C", dir, "-f", archive).Run()
		})
		os.RemoveAll(dir)
		return s, err
	}
	product := func() ([]float64, error) {
		sb, err := b.open(ctx)
		if err != nil {
			return nil, err
		}
		files, err := b.c.Files(ctx, sb.ID)
		if err != nil {
			return nil, err
		}
		s, err := times(1, func() error {
			in, err := os.Open(archive)
			if err != nil {
				return err
			}
			defer in.Close()
			_, err = files.TarIn(ctx, "", in, sandboxd.TarLimits{})
			return err
		})
		if err != nil {
			return nil, err
		}
		if err := b.c.Delete(ctx, sb.ID); err != nil {
			return nil, err
		}
		time.Sleep(500 * time.Millisecond) // the delete of 10,000 files is not the next sample's
		return s, nil
	}
	base, prod, err := b.abba(baseline, product)
	if err != nil {
		return row{}, err
	}
	r := ratios(base, prod, 0.5)
	return row{
		Goal: "10,000 small files: 1.5x of tar x", Result: fmt.Sprintf("%s; %.0f ms against %.0f ms", spread(r), percentile(flat(prod), 0.5), percentile(flat(base), 0.5)),
		Met: percentile(r, 0.5) <= 1.5, Samples: map[string][]float64{"base": flat(base), "product": flat(prod)},
	}, nil
}

const outputCommand = "yes 0123456789012345678901234567890123456789012345678901234567890123 | head -c 268435456"

// output measures the time that 256 MiB take through the journal, with a follower
// that reads its first frame and then nothing, and what the server's memory does.
func (b *bench) output() (row, error) {
	ctx := context.Background()
	sb, err := b.open(ctx)
	if err != nil {
		return row{}, err
	}
	defer b.c.Delete(ctx, sb.ID)
	baseline := func() ([]float64, error) {
		return times(1, func() error {
			return exec.Command("sh", "-c", "("+outputCommand+") | cat > "+filepath.Join(b.dir, "out")).Run()
		})
	}
	var grown []float64
	status := fmt.Sprintf("/proc/%d/status", b.cmd.Process.Pid)
	product := func() ([]float64, error) {
		before, err := procNumber(status, "RssAnon")
		if err != nil {
			return nil, err
		}
		s, err := times(1, func() error {
			cmd, _, err := b.c.StartCommand(ctx, sb.ID, sandboxd.CommandSpec{Background: true, Shell: outputCommand})
			if err != nil {
				return err
			}
			stalled, err := b.c.FollowCommand(ctx, sb.ID, cmd.ID, sandboxd.FollowOptions{Follow: true})
			if err != nil {
				return err
			}
			defer stalled.Close()
			if _, err := stalled.Next(ctx); err != nil {
				return err
			}
			for {
				now, err := b.c.GetCommand(ctx, sb.ID, cmd.ID)
				if err != nil {
					return err
				}
				if now.Ending != nil {
					if now.Offset != 268435456 {
						return fmt.Errorf("%d bytes of output", now.Offset)
					}
					return nil
				}
				time.Sleep(2 * time.Millisecond)
			}
		})
		if err != nil {
			return nil, err
		}
		after, err := procNumber(status, "RssAnon")
		grown = append(grown, float64(after-before)/1024)
		return s, err
	}
	if _, err := product(); err != nil {
		return row{}, err
	}
	grown = nil
	base, prod, err := b.abba(baseline, product)
	if err != nil {
		return row{}, err
	}
	r := ratios(prod, base, 0.5) // rates: more is better
	return row{
		Goal: "at least 0.5 of the rate through cat; memory flat", Result: fmt.Sprintf("%s; %.0f MB/s; at most %.1f MiB more", spread(r), 268.435/(percentile(flat(prod), 0.5)/1000), percentile(grown, 1)),
		Met: percentile(r, 0.5) >= 0.5 && percentile(grown, 1) < 16, Samples: map[string][]float64{"base": flat(base), "product": flat(prod), "grown_mib": grown},
	}, nil
}
