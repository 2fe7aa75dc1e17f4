package sessions

import (
	"encoding/json"
	"strings"
	"testing"

	"sandboxd"
)

func TestPolicyIsShownInTheWiresWords(t *testing.T) {
	r := newRig(t)
	got := r.do("GET", "/policy", serviceToken, nil)
	var p map[string]any
	got.json(t, &p)
	for name, want := range map[string]string{
		"default_runtime": `"machine"`, "max_sessions": `20`, "max_open_sessions": `null`, "max_sessions_per_tenant": `10`, "evict_idle_after": `null`,
		"mem_limit": `"1g"`, "memswap_limit": `null`, "cpus": `2`, "cpu_shares": `null`, "pids_limit": `512`, "work_dir": `"/workspace"`,
		"idle_timeout": `1800`, "execute_timeout": `300`, "max_read_bytes": `8388608`, "persist_containers": `false`, "workspace_ttl": `null`,
		"container_ttl": `86400`, "tmpfs_size": `"64m"`, "native_files": `true`, "native_writes": `true`, "native_realpath": `true`,
	} {
		value, there := p[name]
		if text, _ := json.Marshal(value); string(text) != want || !there {
			t.Errorf("%s is %s", name, text)
		}
	}
	if list := p["runtimes"].([]any); len(list) != 2 || list[0].(m)["alias"] != "machine" || list[1].(m)["alias"] != "python" || list[0].(m)["mem_limit"] != "1g" {
		t.Errorf("%v", p["runtimes"])
	}
}

// Containers persist where a runtime's root takes writes and the driver keeps it.
func TestPersistentContainers(t *testing.T) {
	r := newRig(t)
	for _, try := range []struct {
		root string
		keep bool
	}{{sandboxd.RootReadonly, true}, {sandboxd.RootWritable, false}, {sandboxd.RootWritable, true}} {
		r.lifetimes.root = try.root
		r.restart(func(c *Config) { c.Keeps = try.keep })
		var p servicePolicy
		r.do("GET", "/policy", serviceToken, nil).json(t, &p)
		if want := try.keep && try.root == sandboxd.RootWritable; p.PersistContainers != want {
			t.Errorf("%+v: %v", try, p.PersistContainers)
		}
	}
}

func TestPutPolicy(t *testing.T) {
	r := newRig(t)
	before, _ := r.Policy(t.Context())
	put := func(body string) reply { return r.do("PUT", "/policy", serviceToken, body) }
	unchanged := func(what string) {
		t.Helper()
		after, _ := r.Policy(t.Context())
		was, _ := json.Marshal(before)
		is, _ := json.Marshal(after)
		if string(was) != string(is) {
			t.Errorf("%s changed it to %s", what, is)
		}
	}
	// One wrong field, and nothing is changed; it is named.
	for field, body := range map[string]string{
		"network_mode":              `{"max_sessions":1,"network_mode":"host"}`,
		"token":                     `{"token":"x","cpus":1}`,
		"image":                     `{"max_sessions":1,"runtimes":{"machine":{"image":"evil"}}}`,
		"max_sessions":              `{"max_open_sessions":40,"max_sessions":-1}`,
		"max_open_sessions":         `{"max_open_sessions":1.5}`,
		"execute_timeout":           `{"execute_timeout":0}`,
		"max_read_bytes":            `{"max_read_bytes":0}`,
		"cpus":                      `{"cpus":0}`,
		"pids_limit":                `{"pids_limit":0,"max_sessions":3}`,
		"mem_limit":                 `{"mem_limit":"lots"}`,
		"tmpfs_size":                `{"tmpfs_size":64}`,
		"cpu_shares":                `{"runtimes":{"machine":{"cpu_shares":0,"cpus":1}}}`,
		"memswap_limit":             `{"memswap_limit":"lots"}`,
		`"runtimes","python","cpu"`: `{"runtimes":{"python":{"cpu":1}}}`,
	} {
		got := put(body)
		if got.status != 422 || !strings.Contains(got.body, strings.Trim(field, `"`)) {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
		unchanged(body)
	}
	for body, want := range map[string]string{
		`{"default_runtime":"evil","cpus":1}`:                   `Unknown runtime 'evil'. The default has to be one of: machine, python`,
		`{"max_sessions":1,"runtimes":{"invented":{"cpus":8}}}`: `Unknown runtime 'invented'. Ceilings can be changed for an allowed runtime; a new one is a deployment change, because it names an image.`,
		`{"max_open_sessions":5}`:                               `max_open: less than max_running`,
	} {
		if got := put(body); got.status != 400 || got.detail(t) != want {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
		unchanged(body)
	}
	got := put(`{"max_sessions":0,"max_open_sessions":"30","max_sessions_per_tenant":null,"evict_idle_after":60,"idle_timeout":null,"workspace_ttl":3600,
		"execute_timeout":20,"max_read_bytes":1000,"mem_limit":"512MB","cpus":0.5,"pids_limit":100,"tmpfs_size":"1.5g","memswap_limit":"1g","cpu_shares":200,"default_runtime":"python",
		"runtimes":{"machine":{"mem_limit":"2g","memswap_limit":"3g","cpus":1,"cpu_shares":512,"pids_limit":9},"python":{"cpus":4}}}`)
	if got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	var p servicePolicy
	got.json(t, &p)
	if *p.MaxSessions != 0 || *p.MaxOpenSessions != 30 || p.MaxSessionsPerTenant != nil || *p.EvictIdleAfter != 60 || p.IdleTimeout != nil || *p.WorkspaceTTL != 3600 ||
		p.ExecuteTimeout != 20 || p.MaxReadBytes != 1000 || *p.MemLimit != "512m" || *p.CPUs != 0.5 || *p.PIDsLimit != 100 || *p.TmpfsSize != "1536m" || *p.MemswapLimit != "1g" || *p.CPUShares != 200 || p.DefaultRuntime != "python" {
		t.Errorf("%s", got.body)
	}
	if m := p.Runtimes[0]; *m.MemLimit != "2g" || *m.MemswapLimit != "3g" || *m.CPUs != 1 || *m.CPUShares != 512 || *m.PIDsLimit != 9 {
		t.Errorf("%+v", m)
	}
	// What is not named stays; null takes the entry's own again. Both are what GET shows.
	got = put(`{"runtimes":{"machine":{"mem_limit":null}},"execute_timeout":null}`)
	got.json(t, &p)
	if *p.Runtimes[0].MemLimit != "1g" || *p.Runtimes[0].CPUs != 1 || *p.Runtimes[1].CPUs != 4 || p.ExecuteTimeout != 300 {
		t.Errorf("%s", got.body)
	}
	if got := put(`{}`); got.status != 200 || got.body != r.do("GET", "/policy", serviceToken, nil).body {
		t.Errorf("%d %s", got.status, got.body)
	}
	// The next opening goes by it.
	if got := r.do("POST", "/sessions", serviceToken, m{}); got.status != 429 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{"1g": 1 << 30, "512M": 512 << 20, "64mb": 64 << 20, " 100 ": 100, "1.5k": 1536, "2t": 2 << 40, "10b": 10} {
		if got, ok := sizeOf(text); !ok || got != want {
			t.Errorf("%q: %d %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "g", "-1", "0", "1x", "NaN", "inf", "1e99g", "1 g g"} {
		if got, ok := sizeOf(text); ok {
			t.Errorf("%q: %d", text, got)
		}
	}
	for n, want := range map[int64]string{1 << 30: "1g", 1536: "1536", 3 << 10: "3k", 1<<30 + 1<<20: "1025m"} {
		if got := sizeText(n); *got != want {
			t.Errorf("%d: %s", n, *got)
		}
	}
	if sizeText(0) != nil {
		t.Error("0 is a size")
	}
}
