package cli

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandboxd"
)

// What a meter says, on a terminal and elsewhere, of transfers that are long, short
// and that fail.
func TestMeter(t *testing.T) {
	body := bytes.Repeat([]byte("x"), 1<<20)
	for _, test := range []struct {
		name     string
		terminal bool
		total    int64
		takes    time.Duration
		err      error
		says     []string
		lines    int
	}{
		{"short on a terminal", true, 4 << 20, 500 * time.Millisecond, nil, nil, 0},
		{"short elsewhere", false, 4 << 20, 500 * time.Millisecond, nil, nil, 0},
		{"long on a terminal", true, 4 << 20, 4 * time.Second, nil,
			[]string{"\rcopying x  [#####...............]  25%  1.0 MiB of 4.0 MiB  ", "75%", "\r\x1b[Kcopying x: 4.0 MiB in 4s, 1.0 MiB/s\n"}, 1},
		{"long elsewhere", false, 4 << 20, 4 * time.Second, nil, []string{"copying x: 4.0 MiB in 4s, 1.0 MiB/s\n"}, 1},
		{"of an unknown size", true, -1, 4 * time.Second, nil, []string{"\rcopying x  2.0 MiB  "}, 1},
		{"longer than it said", true, 1 << 20, 4 * time.Second, nil, []string{"[####################]  100%"}, 1},
		{"failed on a terminal", true, 4 << 20, 4 * time.Second, errors.New("no"), []string{"25%", "\r\x1b[K"}, 0},
		{"failed elsewhere", false, 4 << 20, 4 * time.Second, errors.New("no"), nil, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				m := (&meter{out: &out, terminal: test.terminal, width: 200, what: "copying x"}).begin(test.total)
				wait := time.NewTimer(0)
				<-wait.C
				for range 4 {
					wait.Reset(test.takes / 4)
					<-wait.C
					if n, err := io.Copy(io.Discard, m.reader(bytes.NewReader(body))); n != 1<<20 || err != nil {
						t.Fatal(n, err)
					}
				}
				m.end(test.err)
				for _, text := range test.says {
					if !strings.Contains(out.String(), text) {
						t.Errorf("%q has no %q", out.String(), text)
					}
				}
				if len(test.says) == 0 && out.Len() > 0 || strings.Count(out.String(), "\n") != test.lines {
					t.Errorf("said %q", out.String())
				}
			})
		})
	}
}

// A line is never longer than the terminal is wide, and a pull is told as its host
// tells it.
func TestMeterOfAPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		m := (&meter{out: &out, terminal: true, width: 30, what: "pulling registry.example/team/tools:1"}).begin(-1)
		m.pull(sandboxd.PullProgress{Done: 1 << 20, Total: 2 << 20, Layers: 2, LayersDone: 1})
		late := time.NewTimer(3 * time.Second)
		<-late.C
		if line := m.line(); !strings.Contains(line, "50%  1.0 MiB of 2.0 MiB") {
			t.Errorf("line %q", line)
		}
		m.end(errors.New("given up"))
		for _, drawn := range strings.Split(out.String(), "\r") {
			if line := strings.TrimSuffix(drawn, "\x1b[K"); len(line) > 29 {
				t.Errorf("a line of %d: %q", len(line), line)
			}
		}
	})
}
