package network

import (
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/captest"
)

// tool is one that fetches packages.
type tool struct {
	program string
	// asks says where the tool would go: a script, run on the machine, that prints
	// URLs and names as the tool's own configuration has them.
	asks string
	// env hands what the machine's configuration says to the tool inside.
	env map[string]string // name of a variable: script on the machine that prints it
	// brings is run on the machine and prints a tar that is unpacked in the workspace.
	brings  string
	prepare string // run inside before both
	idle    string // does nothing, for the time that a start of the tool takes
	install string
	proves  string // fails unless it was installed
}

// registryOfPip prints what pip is configured to ask: the index, and where the
// index that is built in keeps its files.
const registryOfPip = `url=$(pip config get global.index-url 2>/dev/null) && echo "$url" ||
	/usr/bin/python3 -c 'from pip._internal.models.index import PyPI as p; print(p.netloc, p.file_storage_domain)'`

const aptConfig = `mkdir -p apt/etc/preferences.d apt/etc/apt.conf.d apt/state/lists/partial apt/cache/archives/partial
cat >apt.conf <<E
Dir::Etc "/workspace/apt/etc";
Dir::State "/workspace/apt/state";
Dir::State::status "/dev/null";
Dir::Cache "/workspace/apt/cache";
Acquire::Languages "none";
Acquire::Retries "0";
E
`

var tools = map[string]tool{
	"pip": {program: "pip", asks: registryOfPip, env: map[string]string{"PIP_INDEX_URL": "pip config get global.index-url 2>/dev/null"},
		idle: "pip --version", install: "pip install --target lib six", proves: "PYTHONPATH=lib /usr/bin/python3 -c 'import six; print(six.__version__)'"},
	"npm": {program: "npm", asks: "npm config get registry", env: map[string]string{"npm_config_registry": "npm config get registry"},
		idle: "npm --version", install: "npm install is-number", proves: `node -e 'process.exit(require("is-number")(7) ? 0 : 1)'`},
	"apt": {program: "apt-get", asks: "apt-get indextargets --format '$(SITE)'", brings: "cd /etc && tar c apt/sources.list.d apt/trusted.gpg.d $(ls -d apt/sources.list 2>/dev/null)",
		prepare: "mv apt copied && " + aptConfig + "mv copied/* apt/etc/", idle: "apt-get --version",
		install: "export APT_CONFIG=/workspace/apt.conf; apt-get update && apt-get download hello", proves: "dpkg-deb -x hello_*.deb out && out/usr/bin/hello"},
	"go": {program: "go", asks: "go env GOPROXY | tr ',|' '\\n\\n' | grep -v -e direct -e off", env: map[string]string{"GOPROXY": "go env GOPROXY"},
		prepare: "go mod init try 2>&1", idle: "go version", install: "go get golang.org/x/sync@v0.11.0", proves: "grep -q golang.org/x/sync go.sum"},
}

// words runs a script on the machine, as its administrator would.
func words(t *testing.T, script string) string {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/local/go/bin")
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	return strings.TrimRight(string(out), "\n")
}

// hosts are the names in what a tool's configuration says.
func hosts(t *testing.T, says string) []string {
	t.Helper()
	var names []string
	for _, w := range strings.Fields(says) {
		if !strings.Contains(w, "://") {
			w = "https://" + w
		}
		if u, err := url.Parse(w); err == nil && u.Hostname() != "" {
			names = append(names, u.Hostname())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

const goPath = "export PATH=$PATH:/usr/local/go/bin GOTOOLCHAIN=local GOFLAGS=-modcacherw; "

func (tl tool) vars(t *testing.T) (list []string) {
	for name, script := range tl.env {
		if value := words(t, script); value != "" {
			list = append(list, name+"="+value)
		}
	}
	return list
}

func (tl tool) bring(t *testing.T, b *box) {
	t.Helper()
	if tl.brings != "" {
		files, err := b.c.Files(t.Context(), b.id)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := files.TarIn(t.Context(), "", strings.NewReader(words(t, tl.brings)), sandboxd.TarLimits{}); err != nil {
			t.Fatal(err)
		}
	}
	if tl.prepare != "" {
		b.ok(goPath + tl.prepare)
	}
}

// TestTools installs a real package with each tool while exactly the names of its
// configuration are allowed, and then without one of them: that fails within a
// second, and says why.
func TestTools(t *testing.T) {
	for name, tl := range tools {
		t.Run(name, func(t *testing.T) {
			long(t)
			captest.Need(t, name, words(t, goPath+"command -v "+tl.program) != "", tl.program+" is not installed")
			names := hosts(t, words(t, tl.asks))
			if len(names) == 0 {
				t.Fatalf("%s says of no place that it would ask", name)
			}
			s := serve(t, append(operator(addresses(t, names...)), trustOfTheMachine()...)...)
			b := open(t, s, names...)
			captest.Need(t, name, b.run(goPath+"command -v "+tl.program).code == 0, tl.program+" is not where sandboxes see it")
			tl.try(b, open(t, s), names)
		})
	}
}

// try installs in a sandbox that may reach the names, and in one that may not.
func (tl tool) try(with, without *box, names []string) {
	with.Helper()
	tl.bring(with.T, with)
	vars := tl.vars(with.T)
	with.ok(goPath+tl.install, vars...)
	with.ok(goPath + tl.proves)

	tl.bring(without.T, without)
	idle := without.run(goPath + tl.idle).took
	got := without.run(goPath+tl.install, vars...)
	if got.code == 0 || !strings.Contains(got.text, "is not in the allow list of this sandbox") {
		with.Errorf("without its names: exit code %d\n%s", got.code, got.text)
	}
	// Within a second of the tool's own work, which is more than its start; under gVisor, or
	// on a busy machine, that takes longer than a second.
	if got.took > idle+max(time.Second, idle) {
		with.Errorf("without its names it took %s; its start alone takes %s", got.took, idle)
	}
	if all := without.denials(); len(all) == 0 || !slices.Contains(names, strings.Split(all[0].Host, ":")[0]) {
		with.Errorf("the log: %+v", all)
	}
	with.Logf("refused in %s; a start of the tool takes %s", got.took, idle)
}

// long marks a test that wants other machines and takes seconds.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		captest.Need(t, "patience", false, "not in the short run: make test")
	}
}

// trustOfTheMachine hands the certificates of the machine's administrator to the
// sandboxes, where there are such.
func trustOfTheMachine() []string {
	if file := os.Getenv("SSL_CERT_FILE"); file != "" {
		return []string{"--ca-bundle", file}
	}
	return nil
}

// TestUV installs uv with pip, and then a package with uv.
func TestUV(t *testing.T) {
	long(t)
	names := hosts(t, words(t, registryOfPip))
	captest.Need(t, "pip", len(names) > 0, "pip is not installed")
	s := serve(t, append(operator(addresses(t, names...)), trustOfTheMachine()...)...)
	b := open(t, s, names...)
	b.program("pip")
	vars := tools["pip"].vars(t)
	for _, v := range vars {
		vars = append(vars, strings.Replace(v, "PIP_INDEX_URL", "UV_DEFAULT_INDEX", 1))
	}
	b.ok("pip install -q --target tools uv", vars...)
	b.ok("tools/bin/uv pip install --target lib six && PYTHONPATH=lib /usr/bin/python3 -c 'import six'", vars...)
	if got := b.run("tools/bin/uv pip install --target lib --default-index https://index.example/simple idna", vars...); got.code == 0 {
		t.Errorf("an index that is not allowed: %s", got.text)
	}
	b.refused("index.example:443", sandboxd.DenyNotAllowed)
}

// TestNodeFetch installs, with npm, a Node that asks proxies, unless the machine's
// own is one, and calls fetch.
func TestNodeFetch(t *testing.T) {
	long(t)
	names := hosts(t, words(t, tools["npm"].asks))
	captest.Need(t, "npm", len(names) > 0, "npm is not installed")
	s := serve(t, append(operator(addresses(t, names...)), trustOfTheMachine()...)...)
	b := open(t, s, names...)
	b.program("npm")
	vars := tools["npm"].vars(t)
	node := "node"
	if b.run("node --use-env-proxy -e 0").code != 0 {
		b.ok("npm install node@24", vars...)
		node = "node_modules/.bin/node"
	}
	b.ok(node+` -e 'fetch(process.env.npm_config_registry).then(r => process.exit(r.ok ? 0 : 1))'`, vars...)
	if got := b.run(node + ` -e 'fetch("https://denied.example/").then(r => console.log(r.status))'`); got.code == 0 {
		t.Errorf("fetch of a host that is not allowed: %s", got.text)
	}
	b.refused("denied.example:443", sandboxd.DenyNotAllowed)
}
