#!/usr/bin/env python3
"""Builds the shipped runtimes with the shipped program and uses each of their tools once,
as an agent would: through the API's command line. It ends with 1 when one does not work.

  scripts/workbench.py [RUNTIME ...]   builds, tries, and prints what it measured of
                                       workbench and app, or of those that are named
  scripts/workbench.py --write ...     also into docs/runtimes.md

It starts a container engine of its own, or uses the one in SANDBOXD_TEST_DOCKER. The
base is made with mmdebstrap, so that nothing but package registries is needed; name
another with BASE_IMAGE. Certificates that the machine trusts are taken from
SSL_CERT_FILE, as programs do.
"""

import datetime
import ipaddress
import json
import os
import pathlib
import platform
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "bin/sandboxd"
PAGE = ROOT / "docs/runtimes.md"
BASE = "sandboxd-test/workbench-base:latest"
# Both, as ordinary ones: the runtime app is otherwise offered only where apps are.
CATALOGUE = '{"workbench": "@workbench", "app": {"runtime": "app", "apps": false}}'


def say(text):
    print(text, flush=True)


def run(*argv, check=True, **kw):
    return subprocess.run([str(a) for a in argv], check=check, text=True, **kw)


def output(*argv, **kw):
    return run(*argv, stdout=subprocess.PIPE, **kw).stdout.strip()


def os_release(name):
    return platform.freedesktop_os_release().get(name, "")


def base_image(address):
    """Makes the base once, and gives it to the engine."""
    suite, arch = os_release("VERSION_CODENAME"), output("dpkg", "--print-architecture")
    cache = pathlib.Path(os.environ.get("SANDBOXD_TEST_CACHE") or pathlib.Path.home() / ".cache/sandboxd-test")
    archive = cache / f"workbench-base-{suite}-{arch}.tar"
    if not archive.exists():
        say(f"making the base ({suite}, {arch})")
        cache.mkdir(parents=True, exist_ok=True)
        unfinished = cache / f"new-{os.getpid()}.tar"
        run("mmdebstrap", "--quiet", "--variant=apt", "--include=python3,python3-venv,ca-certificates", suite, unfinished)
        unfinished.rename(archive)
    run("docker", "-H", address, "import", archive, BASE, stdout=subprocess.DEVNULL)
    return BASE


class Server:
    """`sandboxd serve` with the shipped runtimes on the docker driver."""

    def __init__(self, scratch, address, base, allow=()):
        self.data = scratch / "data"
        self.log = open(scratch / "serve.log", "w+")
        env = {k: v for k, v in os.environ.items() if not k.startswith("SANDBOXD_")}
        env["DOCKER_HOST"] = address
        argv = [PROGRAM, "serve", "--data", self.data, "--listen", "127.0.0.1:0", "--driver", "docker", "--runtimes", CATALOGUE,
                "--base-image", base, "--no-prewarm", "--ready", "0", "--stop-on-interrupt"]
        if os.environ.get("SSL_CERT_FILE"):
            argv += ["--ca-bundle", os.environ["SSL_CERT_FILE"]]
        for name in ("HTTPS_PROXY", "https_proxy"):
            if os.environ.get(name):
                argv += ["--egress-upstream", os.environ[name]]
                break
        for one in allow:
            argv += ["--egress-allow-address", one]
        self.process = subprocess.Popen([str(a) for a in argv], stdout=subprocess.PIPE, stderr=self.log, text=True, env=env)
        first = self.process.stdout.readline()
        found = re.search(r"http://\S+", first)
        if not found:
            self.log.seek(0)
            raise SystemExit("the server did not start:\n" + self.log.read())
        self.url = found.group()

    def argv(self, command, *rest):
        return [PROGRAM, command, "--url", self.url, "--data", self.data, *rest]

    def ask(self, command, *rest, **kw):
        return output(*self.argv(command, *rest), **kw)

    def open(self, name, *options):
        """Opens a sandbox and answers how long that took."""
        began = time.monotonic()
        self.ask("create", name, *options)
        return time.monotonic() - began

    def close(self, how=signal.SIGINT):
        self.process.send_signal(how)
        self.process.wait(timeout=60)
        self.log.close()


class Proof:
    """The steps, each with what it must print and how long it took."""

    def __init__(self, server, sandbox):
        self.server, self.sandbox, self.rows, self.failed = server, sandbox, [], []

    def note(self, what, good, took, problem=""):
        say(f"{'ok  ' if good else 'FAIL'} {took:7.2f} s  {what}")
        self.rows.append((what, took))
        if not good:
            self.failed.append(what)
            say("     " + problem)

    def step(self, what, command, expect, attempts=1, sandbox=""):
        for attempt in range(attempts):
            began = time.monotonic()
            done = run(*self.server.argv("exec", sandbox or self.sandbox, "--shell", command), check=False,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            took = time.monotonic() - began
            good = done.returncode == 0 and re.search(expect, done.stdout)
            if good:
                break
        self.note(what, good, took, f"exit {done.returncode}, wanted {expect!r} in:\n{done.stdout[-2000:]}")

    def fetched(self, what, path, begins):
        argv = self.server.argv("cp", f"{self.sandbox}:{path}", "-")
        data = subprocess.run([str(a) for a in argv], stdout=subprocess.PIPE).stdout
        good = data.startswith(begins) and len(data) > 1000
        say(f"{'ok  ' if good else 'FAIL'}            {what}: {len(data)} bytes")
        if not good:
            self.failed.append(what)

    def served(self, what, command, port, path, expect):
        """Starts a server in the sandbox, in the background, unless the command is empty,
        and asks it through `sandboxd port` until it says what it must."""
        began = time.monotonic()
        if command:
            self.server.ask("exec", "--background", "--timeout", "0", self.sandbox, "--shell", command)
        while not re.search(rf"(?m)^{port}\b", self.server.ask("port", self.sandbox)) and time.monotonic() - began < 60:
            time.sleep(0.05)
        forward = subprocess.Popen([str(a) for a in self.server.argv("port", self.sandbox, str(port), "0")], stdout=subprocess.PIPE, text=True)
        try:
            address = forward.stdout.readline().partition(" ")[0]
            got = ""
            while not re.search(expect, got) and time.monotonic() - began < 60:
                got = page_at(f"http://{address}{path}")
            self.note(what, re.search(expect, got), time.monotonic() - began, f"wanted {expect!r} in:\n{got[-2000:]}")
        finally:
            forward.send_signal(signal.SIGINT)
            forward.wait(timeout=30)


def page_at(url):
    """What is there, or why nothing is. It is this machine's: no proxy is asked."""
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5) as answer:
            return answer.read().decode()
    except OSError as e:
        time.sleep(0.05)
        return str(e)


def python(code):
    return "python3 -c " + shlex.quote(code)


def documents(p):
    p.server.ask("cp", ROOT / "scripts/workbench/documents.py", "workbench:documents.py")
    p.step("make the documents", "python3 documents.py && ls", r"old\.doc\b")
    p.step("read a PDF of 40 pages", "pdftotext -layout report.pdf report.txt && rg -n 'page 33' -A 2 report.txt && sed -n '1,3p' report.txt", "3663 containers")
    p.step("say what a PDF is", "pdfinfo report.pdf", r"Pages:\s+40")
    p.step("read a PDF in Python", python("import pypdf; print(pypdf.PdfReader('report.pdf').pages[6].extract_text())"), "777 containers")
    p.step("read a scan of two pages with OCR", "lit parse -q -o scan.txt scan.pdf && rg -n 'Invoice' scan.txt", r"Invoice 4711[\s\S]*Invoice 4712")
    p.step("the same, one page of it", "lit parse -q --target-pages 2 scan.pdf", r"^(?![\s\S]*4711)[\s\S]*Invoice 4712")
    p.step("the same without OCR: it succeeds, empty", "lit parse -q --no-ocr scan.pdf", r"^(?![\s\S]*Invoice)")
    p.step("read a .docx", "lit parse -q letter.docx", "oranges to Gdańsk")
    p.step("read a .docx in Python", python("import docx; print([p.text for p in docx.Document('letter.docx').paragraphs])"), "oranges to Gdańsk")
    p.step("read a .doc of 1997", "soffice --headless --convert-to txt:Text:UTF8 old.doc >/dev/null && cat old.txt", "lemons to Málaga")
    p.step("read an .xlsx", python("import pandas; print(pandas.read_excel('stock.xlsx').to_markdown())"), r"\| Köln +\| +17 \|")
    p.step("turn a .pptx into PDF", "soffice --headless --convert-to pdf talk.pptx >/dev/null && pdftotext talk.pdf - ", "Übersicht 京都")
    p.step("and into PNG", "pdftoppm -png -r 60 talk.pdf talk && ls talk*.png", r"talk-1\.png")
    p.fetched("copy the picture out", "talk-1.png", b"\x89PNG")
    p.step("draw a chart with umlauts", python(
        "import warnings; warnings.simplefilter('error')\n"
        "import matplotlib.pyplot as plt\n"
        "plt.bar(['Köln', 'Gdańsk', 'Málaga'], [17, 40, 25]); plt.title('Größe'); plt.savefig('chart.png'); print('drawn')"), "drawn")
    p.fetched("copy the chart out", "chart.png", b"\x89PNG")


def data_and_web(p):
    p.step("query a CSV with duckdb", python("import duckdb; print(duckdb.sql(\"select city, count(*) n from 'sales.csv' group by 1 order by 1\"))"), r"Gdańsk[^\n]*33333")
    p.step("take HTML apart", python(
        "import bs4, lxml, markdownify; print(markdownify.markdownify(str(bs4.BeautifulSoup('<p><b>Größe</b> 4', 'lxml').p)))"), r"\*\*Größe\*\* 4")
    p.step("JSON, archives, searches", "echo '{\"a\":[1,2]}' | jq -c .a && zip -q x.zip sales.csv && unzip -l x.zip && fd -e csv && ps -e | head -2 | less", r"\[1,2\][\s\S]*sales\.csv[\s\S]*PID")
    p.step("run TypeScript", "printf 'const n: number = 42; console.log(\"n is\", n)' >x.ts && tsx x.ts", "n is 42")
    p.step("keep a history", "git init -q repo && cd repo && echo x >f && git add f && git -c user.name=a -c user.email=a@b.c commit -qm one && git log --oneline", "one")
    p.step("know the time zones", python("import zoneinfo, datetime; print(datetime.datetime(2026, 7, 1, tzinfo=zoneinfo.ZoneInfo('Europe/Warsaw')).utcoffset())"), "2:00:00")
    p.step("start the agents", "claude --version && codex --version", r"Claude Code[\s\S]*codex")


def installs(p):
    p.step("whoami", "whoami && id -u && test -w ~ && echo home", r"sandbox\n\d+\nhome")
    p.step("there is no C compiler", "! command -v cc gcc make", "")
    p.step("pip install", "pip install -q humanize && python3 -c 'import humanize; print(humanize.intcomma(1000000))'", "1,000,000", attempts=3)
    p.step("uv pip install", "uv pip install -q roman && python3 -c 'import roman; print(roman.toRoman(42))'", "XLII", attempts=3)
    p.step("npm i -g", "npm i -g --no-audit --no-fund cowsay && cowsay moo", "moo", attempts=3)


def workbench_again(p):
    p.server.ask("stop", p.sandbox)  # an environment that is kept has what was installed in it
    p.step("reopened: the files are there", "ls", r"chart\.png[\s\S]*report\.txt")
    p.step("reopened: what was installed is there", "python3 -c 'import humanize, roman' && cowsay moo", "moo")


def user_and_tools(p):
    p.step("whoami", "whoami && id -u && test -w ~ && echo home", r"sandbox\n10001\nhome")
    p.step("the root is read-only, HOME is on disk, /tmp has its size",
           "for d in / /usr /opt/venv /opt/npm; do ! touch $d/x || exit 1; done; df --output=fstype ~ | tail -n 1; df --output=size -h /tmp",
           r"Read-only file system\n(?!tmpfs)\w+\n\s*Size\n\s*512M")
    p.server.open("offline", "--runtime", "app", "--net", "none")
    p.step("start the agents, without a network", "claude --version && codex --version && opencode --version", r"Claude Code[\s\S]*codex[\s\S]*\d+\.\d+\.\d+\s*$", sandbox="offline")
    p.server.ask("rm", "offline")
    p.step("compile C with make", "mkdir c && cd c && printf '#include <stdio.h>\nint main(void) { puts(\"compiled\"); }\n' >hello.c && make -s hello && ./hello", "compiled")
    p.step("keep a history", "git init -q repo && cd repo && echo x >f && git add f && git -c user.name=a -c user.email=a@b.c commit -qm one && git log --oneline", "one")
    p.step("JSON, archives, searches", "echo '{\"a\":[1,2]}' | jq -c .a && zip -q x.zip c/hello.c && unzip -l x.zip && fd -e c && rg -n compiled c && ps -e | head -2 | less && ssh -V",
           r"\[1,2\][\s\S]*hello\.c[\s\S]*PID[\s\S]*OpenSSH")


def node_apps(p):
    p.step("npm create vite, with React", "rm -rf web && npm create -y vite@latest web -- --template react-ts </dev/null && ls web", r"vite\.config\.ts", attempts=3)
    p.step("npm install", "cd web && npm install --no-audit --no-fund", "added", attempts=3)
    p.step("build it", "cd web && npm run build && ls dist", r"index\.html")
    p.served("start the development server and reach its port", "cd web && npm run dev", 5173, "/", "/src/main.tsx")
    p.step("change a source", "cd web && sed -i 's/Get started/Größe 4711/' src/App.tsx && rg -c 4711 src/App.tsx", "1")
    p.served("the server has the change", "", 5173, "/src/App.tsx", "Größe 4711")
    p.step("curl inside sees it, too", "curl -fsS http://localhost:5173/src/App.tsx", "Größe 4711")
    p.step("pnpm create, install and build", "rm -rf shop && pnpm create vite shop --template vanilla-ts </dev/null && cd shop && pnpm install && pnpm build && ls dist", r"index\.html", attempts=3)
    p.step("yarn add", "mkdir -p api && cd api && yarn init -y && yarn add express", "success Saved", attempts=3)
    p.served("start a server and reach its port",
             "cd api && node -e 'require(\"express\")().get(\"/\", (q, s) => s.send(\"from express\")).listen(3000, \"0.0.0.0\")'", 3000, "/", "from express")
    p.step("a package that is compiled", "mkdir -p native && cd native && npm init -y && npm i --no-audit --no-fund cpu-features && node -e 'console.log(\"arch\", require(\"cpu-features\")().arch)'", "arch \\w+", attempts=3)
    p.step("npx", "npx -y cowsay moo", "moo", attempts=3)
    p.step("npm i -g", "npm i -g --no-audit --no-fund cowsay && cowsay moo", "moo", attempts=3)
    p.step("pnpm add -g", "pnpm add -g serve && serve --version", r"\d+\.\d+", attempts=3)


def python_apps(p):
    p.step("uv venv, uv pip install", "mkdir -p py && cd py && uv venv -q --clear && uv pip install -q fastapi uvicorn && printf '%s\\n' 'import fastapi' 'app = fastapi.FastAPI()' '@app.get(\"/\")' 'def root(): return {\"from\": \"fastapi\"}' >main.py && ls", r"main\.py", attempts=3)
    p.served("start a server of it and reach its port", "cd py && .venv/bin/uvicorn main:app --host 0.0.0.0 --port 8000", 8000, "/", '"fastapi"')
    p.step("uv init, uv add", "rm -rf uvp && mkdir uvp && cd uvp && uv init -q . && uv add -q roman && uv run python -c 'import roman; print(roman.toRoman(42))'", "XLII", attempts=3)
    p.step("python3 -m venv and its pip", "python3 -m venv own && own/bin/pip install -q roman && own/bin/python -c 'import roman; print(roman.toRoman(42))'", "XLII", attempts=3)
    p.step("pip install", "pip install -q humanize && python3 -c 'import humanize; print(humanize.intcomma(1000000))'", "1,000,000", attempts=3)


def app_again(p):
    p.server.ask("close", p.sandbox)  # only the work directory and HOME stay
    p.step("reopened: the files are there", "cd web && npm run build && ls dist", r"index\.html")
    p.step("reopened: what was installed is there", "cowsay moo && serve --version && python3 -c 'import humanize' && py/.venv/bin/python -c 'import fastapi; print(\"fastapi\")'", r"moo[\s\S]*fastapi")
    p.served("reopened: the development server is started and reached", "cd web && npm run dev", 5173, "/src/App.tsx", "Größe 4711")


REGISTRIES = python("from pip._internal.models.index import PyPI; print(PyPI.netloc, PyPI.file_storage_domain)") + "; npm config get registry"


def refused(server, sandbox):
    """The addresses of the package registries that no sandbox may reach by itself, as those
    of a mirror in the operator's own network."""
    names = [re.sub(r"^\w+://|[:/].*", "", n) for n in server.ask("exec", sandbox, "--shell", REGISTRIES).split()]
    found = {a[4][0] for n in names for a in socket.getaddrinfo(n, 443, proto=socket.IPPROTO_TCP)}
    return sorted(a for a in found if not ipaddress.ip_address(a).is_global)


# Of each runtime: with what it is opened beside its own limits, what is done in it, what
# is done when it is opened again, and the programs that are asked for their versions.
RUNTIMES = {
    "workbench": (("--tmp", "256M"), (documents, data_and_web, installs), workbench_again, """python3 --version; echo "Node $(node --version)"
echo "npm $(npm --version)"; claude --version; codex --version; tsx --version | sed -n 1p; lit --version; soffice --version; uv --version
pdftotext -v 2>&1 | sed -n 1p; git --version; rg --version | sed -n 1p; jq --version; pip list --format=freeze 2>/dev/null"""),
    "app": ((), (user_and_tools, node_apps, python_apps), app_again, """python3 --version; echo "Node $(node --version)"; echo "npm $(npm --version)"
echo "pnpm $(pnpm --version)"; echo "yarn $(yarn --version)"; uv --version; cc --version | sed -n 1p; make --version | sed -n 1p; git --version
rg --version | sed -n 1p; jq --version; claude --version; codex --version; echo "opencode $(opencode --version)" """),
}


def page(name, size, opening, proof, versions):
    lines = versions.splitlines()
    programs = [l.strip() for l in lines if l.strip() and "==" not in l]
    packages = [l.strip().replace("==", " ") for l in lines if "==" in l]
    out = ["", f"**{name}**, measured on {datetime.date.today()}: {os_release('PRETTY_NAME')}, {platform.machine()}, {os.cpu_count()} processors, "
           f"on a base made with mmdebstrap (`make workbench`). The image has {size / 1e9:.2f} GB; {opening}."]
    out += ["", "| step | s |", "|---|---|"]
    out += [f"| {what} | {took:.2f} |" for what, took in proof.rows]
    out += ["", "Programs: " + ", ".join(programs) + "."]
    if packages:
        out += ["", "Python packages: " + ", ".join(packages) + "."]
    return "\n".join(out) + "\n\n"


def write(name, text):
    begin, end = f"<!-- measured {name}: begin -->\n", f"<!-- measured {name}: end -->"
    before, found, rest = PAGE.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise SystemExit(f"{PAGE.relative_to(ROOT)} has no place for what was measured of {name}")
    PAGE.write_text(before + begin + text + end + after)
    say(f"written into {PAGE.relative_to(ROOT)}")


def prove(scratch, address, base, name):
    options, steps, again, versions = RUNTIMES[name]
    there = output("docker", "-H", address, "images", "--no-trunc", "--quiet", "--filter", "label=sandboxd.runtime").split()
    server = Server(scratch, address, base)
    try:
        opened = server.open(name, "--runtime", name, *options)
        say(f"{name}: opened after {opened:.0f} s")
        allow = refused(server, name)
        if allow:
            say(f"the package registries are at {', '.join(allow)}: the server is started again and lets these through")
            server.close(signal.SIGTERM)
            server = Server(scratch, address, base, allow)
        found = server.ask("exec", name, "--shell", versions)
        proof = Proof(server, name)
        for step in steps:
            step(proof)
        again(proof)
        image = json.loads(server.ask("get", name, "--json"))["sandbox"]["image"]
        made, size = output("docker", "-H", address, "image", "inspect", "--format", "{{.Id}} {{.Size}}", image).split()
        opening = f"the open found it built and took {opened:.1f} s" if made in there else f"the first open, which built it, took {opened:.0f} s"
        text = page(name, int(size), opening, proof, found)
        say(text)
        server.ask("rm", name)
    finally:
        server.close()
    if proof.failed:
        raise SystemExit(f"{name}: these steps failed: " + ", ".join(proof.failed))
    return text


def main():
    names = [a for a in sys.argv[1:] if a != "--write"] or list(RUNTIMES)
    unknown = [n for n in names if n not in RUNTIMES]
    if unknown:
        raise SystemExit(f"there is no {unknown[0]}; there are {', '.join(RUNTIMES)}")
    address, own = os.environ.get("SANDBOXD_TEST_DOCKER", ""), ""
    with tempfile.TemporaryDirectory(prefix="workbench-") as scratch:
        scratch = pathlib.Path(scratch)
        if not address:
            own = str(scratch / "engine")
            address = output(ROOT / "scripts/engine.sh", "start", own)
            if not address:
                raise SystemExit("there is no container engine here to start")
        try:
            base = os.environ.get("BASE_IMAGE") or base_image(address)
            for name in names:
                text = prove(scratch, address, base, name)
                if "--write" in sys.argv[1:]:
                    write(name, text)
        finally:
            if own:
                run(ROOT / "scripts/engine.sh", "stop", own, check=False)


if __name__ == "__main__":
    main()
