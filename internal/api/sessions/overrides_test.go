package sessions

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sandboxd"
)

// A file of overrides that was written for the wire's PUT says the same to this host.
func TestOverridesInTheWordsOfTheWire(t *testing.T) {
	for name, row := range map[string][2]string{
		"all": {`{"max_sessions": 3, "max_open_sessions": 9, "max_sessions_per_tenant": null, "evict_idle_after": 60, "idle_timeout": 120,
			"workspace_ttl": 3600, "container_ttl": null, "execute_timeout": 30, "max_read_bytes": 1000, "default_runtime": "x",
			"mem_limit": "512m", "memswap_limit": "1g", "cpus": 1.5, "cpu_shares": 200, "pids_limit": 99, "tmpfs_size": "16m",
			"runtimes": {"x": {"mem_limit": "1g", "pids_limit": 7, "cpus": null}, "y": null}}`,
			`{"max_running": 3, "max_open": 9, "max_per_tenant": null, "evict_idle_after_s": 60, "idle_timeout_s": 120,
			"workspace_ttl_s": 3600, "environment_ttl_s": null, "command_timeout_s": 30, "max_read_bytes": 1000, "default_runtime": "x",
			"limits": {"memory_bytes": 536870912, "swap_bytes": 1073741824, "cpus": 1.5, "cpu_shares": 200, "pids": 99, "tmp_bytes": 16777216},
			"runtimes": {"x": {"memory_bytes": 1073741824, "pids": 7, "cpus": null}, "y": null}}`},
		"null is the default": {`{"execute_timeout": null, "max_read_bytes": null, "mem_limit": null, "memswap_limit": null}`,
			`{"command_timeout_s": 300, "max_read_bytes": 8388608, "limits": {"memory_bytes": 1073741824, "swap_bytes": 0}}`},
		"our own words": {`{"max_running": 3, "limits": {"pids": 9}, "runtimes": {"x": {"pids": 7}}}`,
			`{"max_running": 3, "limits": {"pids": 9}, "runtimes": {"x": {"pids": 7}}}`},
		"what nobody knows is for Merge to name": {`{"network_mode": "host"}`, `{"network_mode": "host"}`},
	} {
		got, err := Overrides([]byte(row[0]))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var is, want any
		if err := json.Unmarshal(got, &is); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(row[1]), &want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, is); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	for _, bad := range []string{`[]`, `{"mem_limit": "much"}`, `{"runtimes": {"x": {"mem_limit": "-1"}}}`, `{"mem_limit": "1g", "limits": {"pids": 9}}`} {
		if got, err := Overrides([]byte(bad)); sandboxd.ClassOf(err) != sandboxd.ClassInvalid {
			t.Errorf("%s: %s, %v", bad, got, err)
		}
	}
}
