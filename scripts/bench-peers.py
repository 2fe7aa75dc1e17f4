#!/usr/bin/env python3
"""Measures this host beside the service whose wire it speaks, as published in the package
index: one engine, one image, the same limits, and the published client for both.

  scripts/bench-peers.py               prints what it measured
  scripts/bench-peers.py --write       also into docs/bench.md
  scripts/bench-peers.py --step open   measures that step and takes the others from last time

The services take turns in each of the rounds, there and back, and what is reported is the
median of the rounds' ratios with their range. It starts a container engine of its own, or
uses the one in SANDBOXD_TEST_DOCKER. Samples are kept in bench/results/peers.json.
"""

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import platform
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/bench.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
KEPT = ROOT / "bench/results/peers.json"
LOCKS = [ROOT / "test/sessions/python/generation2.lock", ROOT / "bench/peers.lock"]
IMAGE = "sandboxd-test/base:latest"
READONLY = json.dumps({"base": {"description": "base", "image": IMAGE, "root": "readonly"}})
TOKEN = "bench-" + "0" * 32
MIB = 1 << 20


def environment():
    """Runs this script again in an environment that has what the locks name."""
    cache = pathlib.Path(os.environ.get("SANDBOXD_TEST_CACHE") or pathlib.Path.home() / ".cache/sandboxd-test")
    locked = hashlib.sha256(b"".join(lock.read_bytes() for lock in LOCKS)).hexdigest()
    place = cache / f"peers-{locked[:12]}"
    if not (place / "complete").exists():
        print("installing the published package", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        pip = [place / "bin/pip", "install", "-q", "--disable-pip-version-check", "--require-hashes", "--no-deps"]
        subprocess.run([*pip, *(word for lock in LOCKS for word in ("-r", lock))], check=True)
        (place / "complete").touch()
    if pathlib.Path(sys.prefix) != place:
        os.execv(place / "bin/python", [place / "bin/python", __file__, *sys.argv[1:]])


environment()

import asyncio  # noqa: E402
import importlib.metadata  # noqa: E402
import uuid  # noqa: E402

import httpx  # noqa: E402
from pydantic_ai_backends.workspaces import SandboxdWorkspace  # noqa: E402


def pss(pid):
    text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(text.split("Pss:")[1].split()[0]) / 1024 if "Pss:" in text else 0.0


def processes():
    """Those that belong to sandboxes: by process, what they have in MiB."""
    parents, found = {}, {}
    for proc in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parents[int(proc.name)] = int((proc / "stat").read_text().rpartition(")")[2].split()[1])
            if "containerd-shim" in (proc / "cmdline").read_text() or "/sandboxd-" in (proc / "cgroup").read_text():
                found[int(proc.name)] = None
        except (FileNotFoundError, ProcessLookupError):
            continue
    for pid in list(parents):
        at = pid
        while at not in found and at in parents:
            at = parents[at]
        if at not in found:
            continue
        try:
            found[pid] = pss(pid)
        except (FileNotFoundError, ProcessLookupError):
            found.pop(pid, None)
    return {pid: mib for pid, mib in found.items() if mib is not None}


class Service:
    """One host and the client's connection to it."""

    def __init__(self, name, argv, env, scratch):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.name, self.url = name, f"http://127.0.0.1:{port}"
        self.log = open(scratch / f"{name}.log", "w+")
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SANDBOXD_")}
        common = {"SANDBOXD_TOKEN": TOKEN, "SANDBOXD_RUNTIMES": f"base={IMAGE}", "SANDBOXD_MAX_SESSIONS": "50", "SANDBOXD_MAX_SESSIONS_PER_TENANT": "",
                  "SANDBOXD_NETWORK_MODE": "none", "SANDBOXD_MEM_LIMIT": "1g", "SANDBOXD_CPUS": "2", "SANDBOXD_PIDS_LIMIT": "512",
                  "SANDBOXD_PREWARM": "false", "SANDBOXD_HOST": "127.0.0.1", "SANDBOXD_PORT": str(port)}
        argv = [str(a).replace("PORT", str(port)) for a in argv]
        self.process = subprocess.Popen(argv, stdout=self.log, stderr=self.log, env={**kept, **common, **env})
        for _ in range(200):
            try:
                if httpx.get(self.url + "/healthz").status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        else:
            self.process.kill()
        if self.process.poll() is not None:
            self.log.seek(0)
            raise SystemExit(f"{name} did not start:\n{self.log.read()[-3000:]}")
        self.http, self.failed, self.open = httpx.AsyncClient(headers={"X-Sandbox-Token": TOKEN}, limits=httpx.Limits(max_connections=200), timeout=120), [], {}
        self.idle = self.pss()

    def pss(self):
        """Memory of the service's process, in MiB."""
        return pss(self.process.pid)

    def backend(self, name=None, ref=None):
        capability = SandboxdWorkspace(service_url=self.url, token=TOKEN, session_name=name, client=self.http)
        return capability.backend(ref) if ref else capability.backend()

    async def shut(self, backend, purge):
        (await self.http.delete(f"{self.url}/sessions/{backend.ref.id}", params={"purge": str(purge).lower()})).raise_for_status()

    async def purge(self, backend):
        self.open.pop(backend.ref.id, None)
        await self.shut(backend, purge=True)

    def close(self):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()


async def took(awaitable):
    began = time.perf_counter()
    result = await awaitable
    return (time.perf_counter() - began) * 1000, result


async def opened(s):
    backend = s.backend(f"bench-{uuid.uuid4().hex[:12]}")
    ms, result = await took(backend.run(["true"]))
    s.open[backend.ref.id] = backend
    assert result.exit_code == 0, result
    return ms, backend


PAUSE = 0.3  # so that the removal of one session is not in the next one's opening


async def step_open(s):
    ms, backend = await opened(s)
    again, _ = await took(s.backend(ref=backend.ref).run(["true"]))
    await s.shut(backend, purge=False)
    await asyncio.sleep(PAUSE)
    closed, result = await took(s.backend(ref=backend.ref).run(["true"]))
    assert result.exit_code == 0, result
    await s.purge(backend)
    await asyncio.sleep(PAUSE)
    return {"open a new session, first result": ms, "attach to an open one, first result": again, "open a closed one, first result": closed}


def p99(samples):
    return sorted(samples)[int(0.99 * len(samples)) - 1]


async def step_run(s):
    _, backend = await opened(s)
    spent = [(await took(backend.run(["true"])))[0] for _ in range(100)]
    await s.purge(backend)
    return {"run `true` 100 times, p50": statistics.median(spent), "p99": p99(spent)}


BODY = random.Random(1).randbytes(8 * MIB)
DIGEST = hashlib.sha256(BODY).hexdigest()


async def step_files(s):
    _, backend = await opened(s)
    write, _ = await took(backend.write_bytes("/workspace/large", BODY))
    there = (await backend.run(["sha256sum", "large"])).stdout.split()[0]
    read, data = await took(backend.read_bytes("/workspace/large"))
    assert there == hashlib.sha256(data).hexdigest() == DIGEST
    await s.purge(backend)
    return {"write 8 MiB": write, "read 8 MiB back": read}


async def step_many(s):
    _, backend = await opened(s)
    each = await took(asyncio.gather(*(took(backend.run(["sh", "-c", f"echo {i}"])) for i in range(40))))
    wrong = {i: (r.exit_code, r.stdout, r.stderr) for i, (_, r) in enumerate(each[1]) if r.stdout != f"{i}\n"}
    assert not wrong, f"{len(wrong)} of 40 have another output, one of them {next(iter(wrong.values()))}"
    await s.purge(backend)
    return {"40 commands at once, p50 of a command": statistics.median(ms for ms, _ in each[1]), "all of them": each[0]}


async def step_beside(s):
    _, backend = await opened(s)
    sleepers = [asyncio.create_task(backend.run(["sleep", "1.5"])) for _ in range(40)]
    await asyncio.sleep(0.4)
    spent = {"/policy": [], "/sessions": []}
    for _ in range(100):
        for route, samples in spent.items():
            ms, answer = await took(s.http.get(s.url + route))
            assert answer.status_code == 200
            samples.append(ms)
    await asyncio.gather(*sleepers)
    await s.purge(backend)
    return {f"while 40 sleep: `{route}`, p99 of 100": p99(samples) for route, samples in spent.items()}


async def step_turn(s):
    async def turn():
        _, backend = await opened(s)
        for i in range(20):
            await backend.run(["sh", "-c", f"echo {i}; ls"])
        for i in range(10):
            await backend.write_bytes(f"/workspace/dir/f{i}", b"x" * 1024)
        await backend.write_bytes("/workspace/large", BODY)
        return backend

    ms, backend = await took(turn())
    await s.purge(backend)
    await asyncio.sleep(PAUSE)
    return {"one turn: open, 20 commands, 10 files, 8 MiB": ms}


async def step_memory(s):
    """With six sessions that have each run a command, after a second's rest."""
    before, backends = processes(), [(await opened(s))[1] for _ in range(6)]
    await asyncio.sleep(1)
    of_sessions = sum(mib for pid, mib in processes().items() if pid not in before and pid != s.process.pid)
    busy = s.pss()
    for backend in backends:
        await s.purge(backend)
    await asyncio.sleep(PAUSE)
    return {"MiB: service, just started": s.idle, "service, six sessions open": busy, "processes of a session": of_sessions / 6}


STEPS = {f.__name__.removeprefix("step_"): f for f in (step_open, step_run, step_files, step_many, step_beside, step_turn, step_memory)}


async def measure(services, step, rounds):
    """Rows by label, each the samples by service: None for one that failed, which is told."""
    kept = {s.name: [] for s in services}
    for _ in range(rounds):
        for s in [*services, *reversed(services)]:
            try:
                kept[s.name].append(await STEPS[step](s))
            except Exception as error:  # whatever it is, it is shown
                kept[s.name].append(None)
                s.failed.append(f"{step}: {type(error).__name__}: {(str(error) or '-').splitlines()[0][:300]}")
                for backend in list(s.open.values()):
                    await s.purge(backend)
    labels = next((list(sample) for samples in kept.values() for sample in samples if sample), [step])
    return {label: {name: [sample and sample[label] for sample in samples] for name, samples in kept.items()} for label in labels}


def cell(samples):
    good = [ms for ms in samples if ms is not None]
    if not good:
        return "failed"
    text = f"{statistics.median(good):.1f}"
    if len(good) < len(samples):
        text += f" ({len(samples) - len(good)} of {len(samples)} failed)"
    return text


def table(rows):
    theirs, *ours = next(iter(rows.values()))
    lines = ["| ms | " + " | ".join([theirs, *ours]) + " |", "|---" * (2 + len(ours)) + "|"]
    for label, samples in rows.items():
        cells = [cell(samples[theirs])]
        for name in ours:
            ratios = [o / b for o, b in zip(samples[name], samples[theirs]) if o is not None and b is not None]
            cells.append(cell(samples[name]) + (f", {statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else ""))
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def machine(engine, rounds):
    """What samples were taken on and of; those of another are not mixed with these."""
    versions = ", ".join(f"{n} {importlib.metadata.version(n)}" for n in ("pydantic-ai-backend", "pydantic-ai-slim", "httpx", "uvicorn", "docker"))
    return (
        f"Measured on {datetime.date.today()}, {2 * rounds} samples a step and service (`make bench-peers`): "
        f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {platform.machine()}, {os.cpu_count()} processors, kernel {platform.release()}, "
        f"Docker {engine}, Python {platform.python_version()}, {versions}; sandboxd {(ROOT / 'VERSION').read_text().strip()}."
    )


def report(where, steps):
    text = [where, table({label: samples for step in STEPS if step in steps for label, samples in steps[step]["rows"].items()})]
    failures = [f"- {failure}" for step in STEPS if step in steps for failure in steps[step]["failed"]]
    if failures:
        text.append("What failed:\n\n" + "\n".join(failures))
    return "\n\n".join(text)


async def all_steps(services, wanted, rounds, steps):
    for step in wanted:
        rows = await measure(services, step, rounds)
        steps[step] = {"rows": rows, "failed": [f"{s.name}: {f}" for s in services for f in s.failed]}
        for s in services:
            s.failed.clear()
        print(table(rows), flush=True)
    for s in services:
        await s.http.aclose()


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--write", action="store_true")
    options.add_argument("--step", choices=STEPS, action="append")
    options.add_argument("--rounds", type=int, default=5)
    options = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        address, own = os.environ.get("SANDBOXD_TEST_DOCKER"), None
        if not address:
            own = scratch / "engine"
            address = subprocess.run([ROOT / "scripts/engine.sh", "start", own], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
            if not address:
                raise SystemExit("there is no container engine to start: see above")
        services = []
        try:
            docker = {"DOCKER_HOST": address}
            host = [ROOT / "bin/sandboxd", "host", "--listen", "127.0.0.1:PORT", "--stop-on-interrupt"]
            services.append(Service("the original", [sys.executable, "-m", "pydantic_ai_backends.remote.server"],
                                    {**docker, "SANDBOXD_WORKSPACE_ROOT": str(scratch / "theirs")}, scratch))
            services.append(Service("sandboxd, docker", [*host, "--driver", "docker", "--data", scratch / "docker"], docker, scratch))
            services.append(Service("the same, root read-only", [*host, "--driver", "docker", "--data", scratch / "readonly"], {**docker, "SANDBOXD_RUNTIMES": READONLY}, scratch))
            services.append(Service("sandboxd, process", [*host, "--driver", "process", "--data", scratch / "process"], docker, scratch))
            engine = subprocess.run(["docker", "-H", address, "version", "-f", "{{.Server.Version}}"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
            where = machine(engine, options.rounds)
            kept = json.loads(KEPT.read_text()) if options.step and KEPT.exists() else {}
            steps = kept["steps"] if kept.get("where") == where else {}
            asyncio.run(all_steps(services, options.step or list(STEPS), options.rounds, steps))
            KEPT.write_text(json.dumps({"where": where, "steps": steps}) + "\n")
            text = report(where, steps)
        finally:
            for s in services:
                s.close()
            if own:
                subprocess.run([ROOT / "scripts/engine.sh", "stop", own], check=True)
    print(text)
    if options.write:
        page = PAGE.read_text()
        PAGE.write_text(page[: page.index(BEGIN) + len(BEGIN)] + "\n\n" + text + "\n\n" + page[page.index(END) :])
        print("written into", PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
