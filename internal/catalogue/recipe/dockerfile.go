package recipe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"sandboxd"
	"sandboxd/internal/catalogue"
)

// What a build that trusts more than its base brings along. Only the build has it: the
// variables are arguments, which an image does not keep, and the last step removes the
// directory.
const (
	trustDir  = "/opt/sandboxd-build"
	caFile    = "ca.pem"
	aptFile   = "apt.conf"
	aptConfig = "Acquire::https::CaInfo \"" + trustDir + "/" + caFile + "\";\n"
)

// trusted are the names under which programs look for certificates.
var trusted = []string{"CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"}

// writer collects the lines of a Dockerfile.
type writer struct{ bytes.Buffer }

func (w *writer) line(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }

// run adds a step of our own, which ends at the first thing that fails.
func (w *writer) run(script string) { w.shell("-euc", script) }

// shell adds a step of /bin/sh. It is written in the form of a list, which no builder
// splits, continues or substitutes: the script arrives as it is.
func (w *writer) shell(how, script string) {
	var list bytes.Buffer
	enc := json.NewEncoder(&list)
	enc.SetEscapeHTML(false)
	if err := enc.Encode([]string{"/bin/sh", how, script}); err != nil {
		panic("recipe: a script has no JSON form: " + err.Error())
	}
	w.line("RUN %s", strings.TrimSpace(list.String()))
}

// dockerfile is the text of an entry. The order is that of how seldom things change,
// because a builder keeps the layers before the first difference.
func dockerfile(e catalogue.Entry, o Options, trusting bool) []byte {
	w := &writer{}
	w.line("# The runtime %s, as sandboxd builds it.", e.Alias)
	w.line("FROM %s", o.BaseImage)
	w.line("USER 0:0")
	w.line("ARG DEBIAN_FRONTEND=noninteractive")
	if trusting {
		w.line("COPY %s %s %s/", caFile, aptFile, trustDir)
		w.line("ARG APT_CONFIG=%s/%s", trustDir, aptFile)
		for _, name := range trusted {
			w.line("ARG %s=%s/%s", name, trustDir, caFile)
		}
	}
	if len(e.APTPackages) > 0 {
		w.run(apt(e.APTPackages...))
	}
	w.run(account(o))
	w.run(virtualEnv(e, o))
	w.line("ENV PATH=%s:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1", firstOnPath)
	places := "ENV" // where installs go, in the sandbox as in the build
	if e.Root == catalogue.RootReadonly {
		places = "ARG"
	}
	w.line("%s VIRTUAL_ENV=%s", places, VirtualEnv)
	w.line("%s NPM_CONFIG_PREFIX=%s", places, NPMPrefix)
	for _, c := range e.SetupCommands {
		w.shell("-c", c) // as engines run them, so that one that works there works here
	}
	if len(e.SetupCommands) > 0 {
		// What root installed into the user's places is the user's, too.
		w.run(fmt.Sprintf("for d in %s %s; do [ ! -d $d ] || find $d ! -user %d -exec chown -h %d:%d {} +; done", VirtualEnv, NPMPrefix, o.UID, o.UID, o.UID))
	}
	w.line("USER %d:%d", o.UID, o.UID)
	if len(e.Packages) > 0 {
		w.run("python3 -m pip install --no-cache-dir " + shellWords(e.Packages))
	}
	if len(e.NPMPackages) > 0 {
		w.run("npm install -g --no-audit --no-fund --no-update-notifier --cache /tmp/npm " + shellWords(e.NPMPackages) + " && rm -rf /tmp/npm ~/.npm")
	}
	if len(e.Tools) > 0 {
		w.run("missing=; for t in " + shellWords(e.Tools) + `; do command -v "$t" >/dev/null || missing="$missing $t"; done; ` +
			`[ -z "$missing" ] || { echo "these tools are not there:$missing" >&2; exit 1; }`)
	}
	if trusting {
		w.line("USER 0:0")
		w.run("rm -rf " + trustDir)
		w.line("USER %d:%d", o.UID, o.UID)
	}
	if e.Root == catalogue.RootReadonly {
		w.line("ENV NPM_CONFIG_PREFIX=%s", localPrefix)
	}
	if env := environ(e.Env); len(env) > 0 {
		w.line("ENV %s", strings.Join(env, " "))
	}
	w.line("WORKDIR %s", o.WorkDir)
	return w.Bytes()
}

func apt(packages ...string) string {
	return "apt-get update && apt-get install -y --no-install-recommends " + shellWords(packages) + " && rm -rf /var/lib/apt/lists/*"
}

const firstOnPath = VirtualEnv + "/bin:" + NPMPrefix + "/bin"

// localPrefix is where a sandbox with a read-only root installs: HOME. Its programs are
// on PATH, before the image's, whatever the root is.
const localPrefix = sandboxd.HomeDir + "/.local"

// account makes the user by hand: not every base has a program for it, and those there
// are differ. One that has the name or the number already goes. Login shells make a
// PATH of their own and are told.
func account(o Options) string {
	return fmt.Sprintf(`sed -i -e '/^sandbox:/d' -e '/^[^:]*:[^:]*:%[1]d:/d' /etc/passwd /etc/group
shell=/bin/sh; [ ! -x /bin/bash ] || shell=/bin/bash
echo "sandbox:x:%[1]d:%[1]d::/home/sandbox:$shell" >>/etc/passwd
echo "sandbox:x:%[1]d:" >>/etc/group
mkdir -p /home/sandbox %[2]s %[3]s
[ ! -d /etc/skel ] || cp -r /etc/skel/. /home/sandbox/
chown -R %[1]d:%[1]d /home/sandbox %[2]s %[3]s
[ ! -d /etc/profile.d ] || echo 'PATH=%[5]s/bin:%[4]s:$PATH' >/etc/profile.d/sandboxd.sh`, o.UID, o.WorkDir, NPMPrefix, firstOnPath, localPrefix)
}

// virtualEnv makes the place for Python's packages, where the base has Python or a
// package asks for it. Below a read-only root pip falls back to the user's packages in
// HOME, which it does only in an environment that sees more than itself.
func virtualEnv(e catalogue.Entry, o Options) string {
	how := ""
	if e.Root == catalogue.RootReadonly {
		how = "--system-site-packages "
	}
	create := fmt.Sprintf("python3 -m venv %[1]s%[2]s && chown -R %[3]d:%[3]d %[2]s", how, VirtualEnv, o.UID)
	const able = "python3 -c 'import ensurepip' 2>/dev/null"
	if len(e.Packages) == 0 {
		return "if " + able + "; then " + create + "; fi"
	}
	return able + " || { " + apt("python3", "python3-venv") + "; }\n" + create
}

// shellWords are texts as words of a shell.
func shellWords(texts []string) string {
	quoted := make([]string, len(texts))
	for i, t := range texts {
		quoted[i] = "'" + strings.ReplaceAll(t, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}

// word is a text as one word of a Dockerfile, in which nothing is substituted.
func word(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`).Replace(text) + `"`
}
