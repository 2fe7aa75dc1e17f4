package script

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"sandboxd/internal/captest"
	"sandboxd/internal/driver/docker/dockertest"
	"sandboxd/internal/selftest"
	"sandboxd/test/server"
)

// TestAnInterruptedSelftestLeavesNothing interrupts it while its own host and while
// its server has sandboxes.
func TestAnInterruptedSelftestLeavesNothing(t *testing.T) {
	captest.Root(t)
	for _, part := range []string{"embedded", "server"} {
		dir := t.TempDir()
		cmd := exec.Command(server.Program("sandboxd"), "selftest")
		cmd.Env = append(environ(filepath.Join(dir, "unused"), ""), "TMPDIR="+dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		guard := time.AfterFunc(60*time.Second, func() { _ = cmd.Process.Kill() })
		var data []string
		server.Until(t, part+" has a sandbox", 30*time.Second, func() bool {
			data, _ = filepath.Glob(filepath.Join(dir, "sandboxd-selftest-*", part))
			return len(data) == 1 && len(server.Groups(data[0])) > 0
		})
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 1 {
			t.Errorf("%s: interrupted it ends with %v", part, err)
		}
		guard.Stop()
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: %v are left, %v", part, left, err)
		}
		if groups := server.Groups(data[0]); len(groups) > 0 {
			t.Errorf("%s: %v are left", part, groups)
		}
	}
}

// TestSelftestOfContainers needs no image and leaves none. What does not hold under
// gVisor is what its engine is set up without.
func TestSelftestOfContainers(t *testing.T) {
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			e := dockertest.Find(t, runtime)
			images := func() int {
				list, err := e.API.ImageList(t.Context(), client.ImageListOptions{All: true})
				if err != nil {
					t.Fatal(err)
				}
				return len(list.Items)
			}
			before := images()
			dir := t.TempDir()
			cmd := exec.Command(server.Program("sandboxd"), "selftest", "--driver", "docker", "--oci-runtime", runtime, "--json")
			cmd.Env = append(environ(filepath.Join(dir, "unused"), ""), "TMPDIR="+dir, "DOCKER_HOST="+e.Host)
			out, err := cmd.Output()
			var report selftest.Report
			if jerr := json.Unmarshal(out, &report); jerr != nil {
				t.Fatalf("%v, %v: %s", err, jerr, out)
			}
			if report.Driver != "docker" || report.OCIRuntime != runtime {
				t.Errorf("the report is of %s with %s", report.Driver, report.OCIRuntime)
			}
			found, err := e.API.Info(t.Context(), client.InfoOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			if slices.Contains(found.Info.Runtimes[runtime].Args, "--ignore-cgroups") {
				want = []string{"cgroup limits"}
			}
			if got := report.Failed(); !slices.Equal(got, want) {
				t.Errorf("what does not hold: %v, want %v", got, want)
				for _, l := range report.Lines {
					if l.Verdict == selftest.Fail {
						t.Logf("%+v", l)
					}
				}
			}
			sections := map[string]bool{}
			for _, l := range report.Lines {
				sections[l.Section] = true
			}
			if len(sections) != 6 {
				t.Errorf("sections %v", sections)
			}
			if after := images(); after != before {
				t.Errorf("%d images before, %d after", before, after)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("%v are left, %v", left, err)
			}
		})
	}
}
