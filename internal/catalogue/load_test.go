package catalogue

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sandboxd"
)

const small = `[
  {"alias": "docs", "description": "Reads documents", "base_image": "python:3.12-slim", "apt_packages": ["jq"],
   "setup_commands": ["echo \"$$ $HOME 'x'\" \\"], "packages": ["pypdf>=4,<6", "httpx[http2]"], "npm_packages": ["@scope/x@^1.2.0"],
   "env_vars": {"B": "2", "A": "it's $5 \"<&>\""}, "tools": ["jq"], "briefing": ["Use jq."], "mem_limit": "1536m", "cpus": 1.5,
   "pids_limit": 100, "needs_network": true, "root": "readonly"},
  {"alias": "ready", "description": "As it is", "image": "registry.example:5000/x/y@sha256:` + "0000000000000000000000000000000000000000000000000000000000000000" + `",
   "env_vars": {"LANG": "C"}, "memswap_limit": "2g", "cpu_shares": 512, "tmpfs_size": "100k", "oci_runtime": "runsc"},
  {"alias": "plain", "description": "Nothing else", "image": "node:20-slim"}
]`

func load(t *testing.T, text string) []Entry {
	t.Helper()
	entries, err := Load([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func TestLoad(t *testing.T) {
	want := []Entry{
		{Alias: "docs", Description: "Reads documents", BaseImage: "python:3.12-slim", APTPackages: []string{"jq"},
			SetupCommands: []string{`echo "$$ $HOME 'x'" \`}, Packages: []string{"pypdf>=4,<6", "httpx[http2]"}, NPMPackages: []string{"@scope/x@^1.2.0"},
			Env: map[string]string{"A": `it's $5 "<&>"`, "B": "2"}, Tools: []string{"jq"}, Briefing: []string{"Use jq."},
			Ceilings: Ceilings{MemoryBytes: 1536 << 20, CPUs: 1.5, PIDs: 100}, NeedsNetwork: true, Root: RootReadonly},
		{Alias: "ready", Description: "As it is", Image: "registry.example:5000/x/y@sha256:" + strings.Repeat("0", 64), Env: map[string]string{"LANG": "C"},
			Ceilings: Ceilings{SwapBytes: 2 << 30, CPUShares: 512, TmpBytes: 100 << 10, OCIRuntime: "runsc"}, Root: RootWritable},
		{Alias: "plain", Description: "Nothing else", Image: "node:20-slim", Root: RootWritable},
	}
	if diff := cmp.Diff(want, load(t, small)); diff != "" {
		t.Error(diff)
	}
}

// TestTheFormsMeanTheSame: a file, what a compose file has of it, and what is written
// anew are one catalogue.
func TestTheFormsMeanTheSame(t *testing.T) {
	for name, text := range map[string]string{"small": small, "shipped": string(shippedText)} {
		want := load(t, text)
		object := string(Object(want))
		if strings.Contains(object, "\n") {
			t.Errorf("%s: the object has more than one line", name)
		}
		// What compose makes of the value in its file.
		value := Compose(want)
		value = strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(value, "'"), "'"), "''", "'")
		for i := 0; i < len(value); i++ {
			if value[i] == '$' {
				if i++; i == len(value) || value[i] != '$' {
					t.Fatalf("%s: compose would replace a variable at byte %d", name, i)
				}
			}
		}
		value = strings.ReplaceAll(value, "$$", "$")
		for form, text := range map[string]string{"object": object, "compose": value, "file": string(File(want, ""))} {
			if diff := cmp.Diff(want, load(t, text)); diff != "" {
				t.Errorf("%s, %s: %s", name, form, diff)
			}
		}
	}
}

func TestLoadOfTheVariable(t *testing.T) {
	for _, row := range []struct {
		name, text string
		want       []Entry
	}{
		{"compact", " py=python:3.12-slim;mem_limit=1g; cpus=1.5;pids_limit=64;network_mode=bridge , , node=node:20-slim", []Entry{
			{Alias: "py", Image: "python:3.12-slim", Ceilings: Ceilings{MemoryBytes: 1 << 30, CPUs: 1.5, PIDs: 64}, NeedsNetwork: true, Root: RootWritable},
			{Alias: "node", Image: "node:20-slim", Root: RootWritable},
		}},
		{"strings and order", `{"z":"a:1","a":"b:2"}`, []Entry{{Alias: "z", Image: "a:1", Root: RootWritable}, {Alias: "a", Image: "b:2", Root: RootWritable}}},
		{"a runtime of another maker", `{"x":{"runtime":{"name":"x","description":"d","image":null,"base_image":"node:20-slim","packages":["tsx"],` +
			`"package_manager":"npm","setup_commands":[],"env_vars":{},"work_dir":"/workspace","cache_image":true,"run_as_uid":null},` +
			`"description":"","mem_limit":null,"memswap_limit":null,"cpus":2.0,"cpu_shares":null,"pids_limit":null,"network_mode":null,"oci_runtime":null}}`,
			[]Entry{{Alias: "x", Description: "", BaseImage: "node:20-slim", NPMPackages: []string{"tsx"}, SetupCommands: []string{}, Ceilings: Ceilings{CPUs: 2}, Root: RootWritable}}},
	} {
		if diff := cmp.Diff(row.want, load(t, row.text)); diff != "" {
			t.Errorf("%s: %s", row.name, diff)
		}
	}
	// A built-in entry under another name, with fields of its own, however they are ordered.
	workbench, _ := Find(Shipped(), "workbench")
	want := workbench
	want.Alias, want.NeedsNetwork, want.Ceilings.MemoryBytes = "mine", false, 4<<30
	for _, text := range []string{
		`{"mine":{"mem_limit":"4g","network_mode":"none","runtime":"workbench"}}`, "mine=@workbench;mem_limit=4g;network_mode=none",
	} {
		if diff := cmp.Diff([]Entry{want}, load(t, text)); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
}

func TestProblemsNameEntryAndField(t *testing.T) {
	entry := func(fields string) string {
		return `[{"alias":"a","description":"d","base_image":"b"` + fields + `}]`
	}
	for _, row := range []struct {
		text string
		want []string // the beginnings of all problems
	}{
		{"", []string{"there is no runtime"}},
		{"[]", []string{"there is no runtime"}},
		{"{}", []string{"there is no runtime"}},
		{" , ", []string{"there is no runtime"}},
		{"[{},\n{]", []string{"line 2 is not JSON"}},
		{`[{"alias":"a"`, []string{"it is not JSON"}},
		{`[] x`, []string{"something follows"}},
		{`{"a":"x:1","a":"y:1"}`, []string{`"a" is there twice`}},
		{strings.Repeat(" x", MaxText), []string{"more than"}},
		{`["x"]`, []string{"entry 1: an object is expected"}},
		{`[{"alias":"A b","description":"d","image":"x"}]`, []string{"A b: alias: it must be"}},
		{`[{"alias":"machine","description":"d","image":"x"}]`, []string{"machine: alias: machine is"}},
		{`[{"alias":"a","description":"d","image":"x"},{"alias":"a","description":"d","image":"y"}]`, []string{"a: alias: it is there twice"}},
		{`[{"alias":"a","description":"d","image":"x","base_image":"y"}]`, []string{"a: image: image and base_image exclude"}},
		{`[{"alias":"a","description":"d","image":"UPPER"}]`, []string{"a: image: it is no name"}},
		{`[{"alias":"a","description":"d","image":"x","packages":["p"],"setup_commands":["c"]}]`, []string{"a: setup_commands: nothing is installed", "a: packages: nothing is installed"}},
		{`[{"alias":"a","description":"d","image":"x","apps":true}]`, []string{"every runtime is for apps"}},
		{entry(`,"colour":"red"`), []string{"a: colour: there is no such field"}},
		{entry(`,"mem_limit":"2g","mem_limit":"3g"`), []string{`a: an object is expected: "mem_limit" is there twice`}},
		{entry(`,"network_mode":"bridge"`), []string{"a: network_mode: there is no such field"}},
		{entry(`,"needs_network":"yes"`), []string{"a: needs_network: true or false is expected"}},
		{entry(`,"mem_limit":"lots"`), []string{"a: mem_limit: it must be a size"}},
		{entry(`,"mem_limit":"0g"`), []string{"a: mem_limit: it must be a size"}},
		{entry(`,"mem_limit":"99999999999g"`), []string{"a: mem_limit: it must be a size"}},
		{entry(`,"mem_limit":2`), []string{"a: mem_limit: a size"}},
		{entry(`,"mem_limit":"1k"`), []string{"a: mem_limit: it must be between 16m and"}},
		{entry(`,"mem_limit":"2g","memswap_limit":"1g"`), []string{"a: memswap_limit: it counts"}},
		{entry(`,"cpus":-1`), []string{"a: cpus: it must be more than 0"}},
		{entry(`,"cpus":5000`), []string{"a: cpus: it must be between"}},
		{entry(`,"pids_limit":1.5`), []string{"a: pids_limit: a whole number"}},
		{entry(`,"oci_runtime":"a b"`), []string{"a: oci_runtime: it is no name"}},
		{entry(`,"root":"none"`), []string{"a: root: it must be"}},
		{entry(`,"env_vars":{"A-B":"1"}`), []string{`a: env_vars: "A-B" is no name`}},
		{entry(`,"env_vars":{"A":"1\n2"}`), []string{"a: env_vars.A: it contains a newline"}},
		{entry(`,"env_vars":{"A":1}`), []string{"a: env_vars.A: a string is expected"}},
		{entry(`,"env_vars":{"A":"1","A":"2"}`), []string{`a: env_vars: an object of strings is expected: "A" is there twice`}},
		{entry(`,"env_vars":{"PATH":"/x"}`), []string{"a: env_vars.PATH: it follows"}},
		{entry(`,"setup_commands":["a\rb",""]`), []string{"a: setup_commands: it contains a newline", "a: setup_commands: a command is empty"}},
		{entry(`,"briefing":["a\u0000b"]`), []string{"a: briefing: it contains a control character"}},
		{entry(`,"tools":["a b"]`), []string{"a: tools: invalid name"}},
		{`{"a":{"image":"x","runtime":{"name":"n"}}}`, []string{"a: image: give either"}},
		{`{"a":{}}`, []string{"a: image: give either"}},
		{`{"a":""}`, []string{"a: image: it is empty"}},
		{`a=`, []string{"a: image: it is empty"}},
		{`just-a-word`, []string{`"just-a-word" is not alias=image`}},
		{`a=x;y`, []string{`a: "y" is not field=value`}},
		{`a=x;pids_limit=many`, []string{"a: pids_limit: a whole number"}},
		{`{"a":"@coding"}`, []string{`a: there is no built-in runtime "coding"; there are workbench, app`}},
		{`{"a":{"runtime":{"base_image":"x"}}}`, []string{"a: runtime.name: it is missing"}},
		{`{"a":{"runtime":{"name":"a","package_manager":"cargo"}}}`, []string{"a: runtime.package_manager: it must be"}},
		{`{"a":{"runtime":{"name":"a","cache_image":false}}}`, []string{"a: runtime.cache_image: images are kept"}},
		{`{"a":{"runtime":{"name":"a","run_as_uid":0}}}`, []string{"a: runtime.run_as_uid: the user"}},
		{`{"a":{"runtime":{"name":"a","colour":1}}}`, []string{"a: runtime.colour: there is no such field"}},
		{`{"a":{"image":"x","network_mode":"host"}}`, []string{"a: network_mode: it must be none or bridge"}},
	} {
		_, problems := Check([]byte(row.text))
		for i := range max(len(problems), len(row.want)) {
			if i >= len(problems) || i >= len(row.want) || !strings.HasPrefix(problems[i].String(), row.want[i]) {
				t.Errorf("%.80s:\ngot  %v\nwant %v", row.text, problems, row.want)
				break
			}
		}
	}
}

// TestNamesThatAShellWouldReadAreRefused: what is a package, and what is more.
func TestNamesThatAShellWouldReadAreRefused(t *testing.T) {
	for _, row := range []struct {
		field     string
		good, bad []string
	}{
		{"packages", []string{"pandas", "a", "uv==0.9.1", "x[a,b]~=1.0,!=1.0.3", "y>=1,<2", "z==1.*"},
			[]string{"", "-r", "--index-url=x", "a b", "a;id", "$(id)", "`id`", "a|b", "a&b", "./a", "/a", "https://x/y.whl", "git+https://x", "a@b", "a\nb", "a'b", `a"b`, "a\\b", "a>", "x[]", "ä"}},
		{"npm_packages", []string{"tsx", "tsx@4.1.0", "@a/b", "@a/b@^1.0", "x@latest", "x@~2"},
			[]string{"", "-g", "../x", "@/x", "x@", "x@file:y", "x@https://y", "a b", "x;id", "x@>1", "x@$(id)", "X"}},
		{"apt_packages", []string{"jq", "g++", "libfoo1.2", "git=1:2.39.5-0+deb12u2"},
			[]string{"", "a", "-y", "jq:arm64", "jq/testing", "jq;id", "JQ", "a b", "./x.deb", "jq="}},
	} {
		for ok, names := range map[bool][]string{true: row.good, false: row.bad} {
			for _, name := range names {
				text := `[{"alias":"a","description":"d","base_image":"b","` + row.field + `":[` + jsonText(name) + `]}]`
				if _, problems := Check([]byte(text)); (len(problems) == 0) != ok {
					t.Errorf("%s %q: %v", row.field, name, problems)
				} else if !ok && (problems[0].Field != row.field || problems[0].Entry != "a") {
					t.Errorf("%s %q: %v", row.field, name, problems)
				}
			}
		}
	}
}

func TestEveryMistakeIsInTheError(t *testing.T) {
	_, err := Load([]byte(`[{"alias":"a","description":"d","base_image":"b","mem_limit":"x"},{"alias":"c","description":"d","base_image":"b","pids_limit":0}]`))
	if sandboxd.ClassOf(err) != sandboxd.ClassInvalid {
		t.Fatalf("%v", err)
	}
	for _, want := range []string{"2 mistakes", "a: mem_limit", "c: pids_limit"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
}

// TestNoMistakeShowsAValueOfTheEnvironment: it may be a secret.
func TestNoMistakeShowsAValueOfTheEnvironment(t *testing.T) {
	for _, value := range []string{`"hush\nhush"`, `["hush"]`, `{"hush":1}`} {
		_, err := Load([]byte(`[{"alias":"a","description":"d","base_image":"b","env_vars":{"A":` + value + `}}]`))
		if err == nil || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v", value, err)
		}
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{"1": 1, "512b": 512, "64k": 64 << 10, "64K": 64 << 10, "100m": 100 << 20, "2g": 2 << 30, "2G": 2 << 30} {
		got, ok := ParseSize(text)
		if !ok || got != want {
			t.Errorf("%s: %d, %v", text, got, ok)
		}
		if again, ok := ParseSize(FormatSize(got)); !ok || again != got {
			t.Errorf("%s: %s is %d", text, FormatSize(got), again)
		}
	}
	for _, text := range []string{"", "g", "-1", "1.5g", "1t", "0", " 1g", "1 g", "4611686018427387905g", "+1g", "0x1g"} {
		if n, ok := ParseSize(text); ok {
			t.Errorf("%q is %d", text, n)
		}
	}
}

func TestDrift(t *testing.T) {
	entries := load(t, small)
	file := "services:\n  sandboxd:\n    environment:\n      SANDBOXD_DATA: /x\n      SANDBOXD_RUNTIMES: ''\n    ports: []\n"
	err := Drift("deploy/compose.yaml", []byte(file), entries)
	if err == nil || !strings.Contains(err.Error(), "deploy/compose.yaml") || !strings.Contains(err.Error(), "make sandbox-runtimes") {
		t.Fatalf("%v", err)
	}
	fresh, err := Refresh("deploy/compose.yaml", []byte(file), entries)
	if err != nil {
		t.Fatal(err)
	}
	if err := Drift("deploy/compose.yaml", fresh, entries); err != nil {
		t.Error(err)
	}
	if want := strings.Replace(file, "SANDBOXD_RUNTIMES: ''", "SANDBOXD_RUNTIMES: "+Compose(entries), 1); string(fresh) != want {
		t.Errorf("got %s", fresh)
	}
	if err := Drift("x.yaml", []byte("services: {}\n"), entries); sandboxd.ClassOf(err) != sandboxd.ClassInvalid {
		t.Errorf("a file without the line: %v", err)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte(small))
	f.Add(shippedText)
	f.Add([]byte(`{"x":{"runtime":{"name":"x","packages":["a"],"package_manager":"npm"},"network_mode":"bridge"}}`))
	f.Add([]byte("a=b;cpus=1,c=@workbench"))
	f.Fuzz(func(t *testing.T, text []byte) {
		entries, err := Load(text)
		if err != nil {
			return
		}
		again, err := Load(Object(entries))
		if err != nil {
			t.Fatalf("its object is refused: %v", err)
		}
		if diff := cmp.Diff(entries, again, cmpopts.EquateEmpty()); diff != "" {
			t.Error(diff)
		}
		if _, err := Load(File(entries, "base")); err != nil {
			t.Errorf("its file is refused: %v", err)
		}
	})
}
