#!/usr/bin/env python3
"""Builds the runtime workbench with the shipped program and uses each of its tools once,
as an agent would: through the API's command line. It ends with 1 when one does not work.

  scripts/workbench.py            builds, tries, and prints what it measured
  scripts/workbench.py --write    also into docs/runtimes.md

It starts a container engine of its own, or uses the one in SANDBOXD_TEST_DOCKER. The
base is made with mmdebstrap, so that nothing but package registries is needed; name
another with BASE_IMAGE. Certificates that the machine trusts are taken from
SSL_CERT_FILE, as programs do.
"""

import datetime
import ipaddress
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

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "bin/sandboxd"
PAGE = ROOT / "docs/runtimes.md"
BASE = "sandboxd-test/workbench-base:latest"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


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
    """`sandboxd serve` with the shipped catalogue on the docker driver."""

    def __init__(self, scratch, address, base, allow=()):
        self.data = scratch / "data"
        self.log = open(scratch / "serve.log", "w+")
        env = {k: v for k, v in os.environ.items() if not k.startswith("SANDBOXD_")}
        env["DOCKER_HOST"] = address
        argv = [PROGRAM, "serve", "--data", self.data, "--listen", "127.0.0.1:0", "--driver", "docker", "--catalogue", "shipped",
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

    def close(self, how=signal.SIGINT):
        self.process.send_signal(how)
        self.process.wait(timeout=60)
        self.log.close()


class Proof:
    """The steps, each with what it must print and how long it took."""

    def __init__(self, server, sandbox):
        self.server, self.sandbox, self.rows, self.failed = server, sandbox, [], []

    def step(self, what, command, expect, attempts=1):
        for attempt in range(attempts):
            began = time.monotonic()
            done = run(*self.server.argv("exec", self.sandbox, "--shell", command), check=False,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            took = time.monotonic() - began
            good = done.returncode == 0 and re.search(expect, done.stdout)
            if good:
                break
        say(f"{'ok  ' if good else 'FAIL'} {took:7.2f} s  {what}")
        self.rows.append((what, command, took))
        if not good:
            self.failed.append(what)
            say(f"     exit {done.returncode}, wanted {expect!r} in:\n{done.stdout[-2000:]}")
        return done.stdout.strip()

    def fetched(self, what, path, begins):
        argv = self.server.argv("cp", f"{self.sandbox}:{path}", "-")
        data = subprocess.run([str(a) for a in argv], stdout=subprocess.PIPE).stdout
        good = data.startswith(begins) and len(data) > 1000
        say(f"{'ok  ' if good else 'FAIL'}            {what}: {len(data)} bytes")
        if not good:
            self.failed.append(what)


def python(code):
    return "python3 -c " + shlex.quote(code)


def documents(p):
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


def as_its_user(p):
    p.step("whoami", "whoami && id -u && test -w ~ && echo home", r"sandbox\n\d+\nhome")
    p.step("there is no C compiler", "! command -v cc gcc make", "")
    p.step("pip install", "pip install -q humanize && python3 -c 'import humanize; print(humanize.intcomma(1000000))'", "1,000,000", attempts=3)
    p.step("uv pip install", "uv pip install -q roman && python3 -c 'import roman; print(roman.toRoman(42))'", "XLII", attempts=3)
    p.step("npm i -g", "npm i -g --no-audit --no-fund cowsay && cowsay moo", "moo", attempts=3)


def reopened(p):
    """Stops and uses the sandbox again. What was installed stays where the environment
    is kept; a server that removes it with the stop keeps the files only."""
    p.server.ask("stop", p.sandbox)
    kept = '"state": "stopped"' in p.server.ask("create", "workbench", "--no-start", "--json", stderr=subprocess.DEVNULL)
    p.step("reopened: the files are there", "ls", r"chart\.png[\s\S]*report\.txt")
    if kept:
        p.step("reopened: what was installed is there", "python3 -c 'import humanize, roman' && cowsay moo", "moo")
    else:
        say("          this server keeps no stopped environment: that what was installed stays is not tried")
    return kept


REGISTRIES = python("from pip._internal.models.index import PyPI; print(PyPI.netloc, PyPI.file_storage_domain)") + "; npm config get registry"


def refused(server):
    """The addresses of the package registries that no sandbox may reach by itself, as those
    of a mirror in the operator's own network."""
    names = [re.sub(r"^\w+://|[:/].*", "", n) for n in server.ask("exec", "workbench", "--shell", REGISTRIES).split()]
    found = {a[4][0] for n in names for a in socket.getaddrinfo(n, 443, proto=socket.IPPROTO_TCP)}
    return sorted(a for a in found if not ipaddress.ip_address(a).is_global)


VERSIONS = """python3 --version; echo "Node $(node --version)"; echo "npm $(npm --version)"; claude --version; codex --version; tsx --version | sed -n 1p
lit --version; soffice --version; uv --version; pdftotext -v 2>&1 | sed -n 1p; git --version; rg --version | sed -n 1p; jq --version
pip list --format=freeze 2>/dev/null"""


def page(size, opening, proof, versions, kept):
    lines = versions.splitlines()
    programs = [l.strip() for l in lines if l.strip() and "==" not in l]
    packages = [l.strip().replace("==", " ") for l in lines if "==" in l]
    cpu = os.cpu_count()
    out = [BEGIN, "", f"Measured on {datetime.date.today()}: {os_release('PRETTY_NAME')}, {platform.machine()}, {cpu} processors, "
           f"on a base made with mmdebstrap (`make workbench`). The image has {size / 1e9:.2f} GB; {opening}."]
    if not kept:
        out += ["", "This version ends an environment with its stop, so what was installed in it was not looked for again."]
    out += ["", "| step | s |", "|---|---|"]
    out += [f"| {what} | {took:.2f} |" for what, _, took in proof.rows]
    out += ["", "Programs: " + ", ".join(programs) + ".", "", "Python packages: " + ", ".join(packages) + ".", "", END]
    return "\n".join(out)


def write(text):
    old = PAGE.read_text()
    before, _, rest = old.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + text + after)


def held(address):
    """The image of the workbench that the engine has, or nothing."""
    return output("docker", "-H", address, "images", "--filter", "label=sandboxd.runtime=workbench", "--format", "{{.ID}}").partition("\n")[0]


def prove(scratch, address):
    base = os.environ.get("BASE_IMAGE") or base_image(address)
    there = held(address)
    server = Server(scratch, address, base)
    try:
        began = time.monotonic()
        server.ask("create", "workbench", "--runtime", "workbench", "--tmp", "256M")
        opened = time.monotonic() - began
        say(f"opened after {opened:.0f} s")
        allow = refused(server)
        if allow:
            say(f"the package registries are at {', '.join(allow)}: the server is started again and lets these through")
            server.close(signal.SIGTERM)
            server = Server(scratch, address, base, allow)
        server.ask("cp", ROOT / "scripts/workbench/documents.py", "workbench:documents.py")
        proof = Proof(server, "workbench")
        versions = server.ask("exec", "workbench", "--shell", VERSIONS)
        documents(proof)
        data_and_web(proof)
        as_its_user(proof)
        kept = reopened(proof)
        image = held(address)
        size = int(output("docker", "-H", address, "image", "inspect", "--format", "{{.Size}}", image))
        opening = f"the open found it built and took {opened:.1f} s" if there else f"the first open, which built it, took {opened:.0f} s"
        text = page(size, opening, proof, versions, kept)
        say("")
        say(text)
        server.ask("rm", "workbench")
        if proof.failed:
            raise SystemExit("these steps failed: " + ", ".join(proof.failed))
        if "--write" in sys.argv[1:]:
            write(text)
            say(f"written into {PAGE.relative_to(ROOT)}")
    finally:
        server.close()


def main():
    address, own = os.environ.get("SANDBOXD_TEST_DOCKER", ""), ""
    with tempfile.TemporaryDirectory(prefix="workbench-") as name:
        scratch = pathlib.Path(name)
        if not address:
            own = str(scratch / "engine")
            address = output(ROOT / "scripts/engine.sh", "start", own)
            if not address:
                raise SystemExit("there is no container engine here to start")
        try:
            prove(scratch, address)
        finally:
            if own:
                run(ROOT / "scripts/engine.sh", "stop", own, check=False)


if __name__ == "__main__":
    main()
