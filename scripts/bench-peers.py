#!/usr/bin/env python3
"""Measures this host beside the service whose wire it speaks, as published in the package
index: one engine, one image, the same limits, and the published client for both.

  scripts/bench-peers.py            prints what it measured
  scripts/bench-peers.py --write    also into docs/bench.md

The services take turns in each of the rounds, there and back, and what is reported is the
median of the rounds' ratios with their range. It starts a container engine of its own, or
uses the one in SANDBOXD_TEST_DOCKER.
"""

import argparse
import datetime
import os
import pathlib
import platform
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
PACKAGE = "pydantic-ai-backend[server,workspaces]==0.2.37"
IMAGE = "sandboxd-test/base:latest"
TOKEN = "bench-" + "0" * 32
MIB = 1 << 20


def environment():
    """Runs this script again in an environment that has the package."""
    cache = pathlib.Path(os.environ.get("SANDBOXD_TEST_CACHE") or pathlib.Path.home() / ".cache/sandboxd-test")
    place = cache / ("peers-" + PACKAGE.rpartition("=")[2])
    if not (place / "complete").exists():
        print("installing", PACKAGE, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        subprocess.run([place / "bin/pip", "install", "-q", "--disable-pip-version-check", PACKAGE], check=True)
        (place / "complete").touch()
    if pathlib.Path(sys.prefix) != place:
        os.execv(place / "bin/python", [place / "bin/python", __file__, *sys.argv[1:]])


environment()

import asyncio  # noqa: E402
import hashlib  # noqa: E402
import importlib.metadata  # noqa: E402
import uuid  # noqa: E402

import httpx  # noqa: E402
from pydantic_ai_backends.workspaces import SandboxdWorkspace  # noqa: E402


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
        self.http = httpx.AsyncClient(headers={"X-Sandbox-Token": TOKEN}, limits=httpx.Limits(max_connections=200), timeout=120)
        self.idle = self.pss()
        self.failed, self.open = [], {}

    def pss(self):
        """Memory of the service's process, in MiB."""
        text = pathlib.Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        return int(text.split("Pss:")[1].split()[0]) / 1024

    def backend(self, name=None, ref=None):
        capability = SandboxdWorkspace(service_url=self.url, token=TOKEN, session_name=name, client=self.http)
        return capability.backend(ref) if ref else capability.backend()

    async def purge(self, backend):
        self.open.pop(backend.ref.id, None)
        await self.http.delete(f"{self.url}/sessions/{backend.ref.id}?purge=true")

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
    """open a session, first result"""
    ms, backend = await opened(s)
    await s.purge(backend)
    await asyncio.sleep(PAUSE)
    return ms


async def step_attach(s):
    """attach to an open session, first result"""
    _, backend = await opened(s)
    ms, _ = await took(s.backend(ref=backend.ref).run(["true"]))
    await s.purge(backend)
    await asyncio.sleep(PAUSE)
    return ms


async def runs(s, n=60):
    _, backend = await opened(s)
    spent = sorted([(await took(backend.run(["true"])))[0] for _ in range(n)])
    await s.purge(backend)
    return spent


async def step_run(s):
    """run `true`, median of 60"""
    return statistics.median(await runs(s))


async def step_run_slowest(s):
    """run `true`, slowest of 60"""
    return (await runs(s))[-1]


BODY = bytes(range(256)) * (8 * MIB // 256)


async def step_write(s):
    """write 8 MiB"""
    _, backend = await opened(s)
    ms, _ = await took(backend.write_bytes("/workspace/large", BODY))
    there = (await backend.run(["sha256sum", "large"])).stdout.split()[0]
    assert there == hashlib.sha256(BODY).hexdigest()
    await s.purge(backend)
    return ms


async def step_read(s):
    """read 8 MiB"""
    _, backend = await opened(s)
    await backend.run(["sh", "-c", "head -c 8388608 /dev/urandom > large"])
    ms, data = await took(backend.read_bytes("/workspace/large"))
    assert len(data) == 8 * MIB
    await s.purge(backend)
    return ms


async def step_many(s):
    """40 commands at once"""
    _, backend = await opened(s)
    ms, results = await took(asyncio.gather(*(backend.run(["sh", "-c", f"echo {i}"]) for i in range(40))))
    wrong = {i: (r.exit_code, r.stdout, r.stderr) for i, r in enumerate(results) if r.stdout != f"{i}\n"}
    assert not wrong, f"{len(wrong)} of 40 have another output, one of them {next(iter(wrong.values()))}"
    await s.purge(backend)
    return ms


async def step_beside(s):
    """`/policy`, slowest of 50 while 40 commands sleep"""
    _, backend = await opened(s)
    sleepers = [asyncio.create_task(backend.run(["sleep", "3"])) for _ in range(40)]
    await asyncio.sleep(0.5)
    spent = []
    for _ in range(50):
        ms, answer = await took(s.http.get(s.url + "/policy"))
        assert answer.status_code == 200
        spent.append(ms)
    await asyncio.gather(*sleepers)
    await s.purge(backend)
    return max(spent)


async def step_turn(s):
    """one turn: open, 20 commands, 10 files, 8 MiB"""

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
    return ms


STEPS = [step_open, step_attach, step_run, step_run_slowest, step_write, step_read, step_many, step_beside, step_turn]


async def measure(services, rounds):
    """Samples by step and service, None for one that failed, which is told."""
    samples = {(step, s.name): [] for step in STEPS for s in services}
    for step in STEPS:
        for _ in range(rounds):
            for s in [*services, *reversed(services)]:
                try:
                    samples[step, s.name].append(await step(s))
                except Exception as error:  # whatever it is, it is shown
                    samples[step, s.name].append(None)
                    s.failed.append(f"{step.__doc__}: {type(error).__name__}: {str(error).splitlines()[0][:300]}")
                    for backend in list(s.open.values()):
                        await s.purge(backend)
        print(step.__doc__, {s.name: cell(samples[step, s.name]) for s in services}, flush=True)
    for s in services:
        await s.http.aclose()
    return samples


def cell(samples):
    good = [ms for ms in samples if ms is not None]
    if not good:
        return "failed"
    text = f"{statistics.median(good):.1f}"
    if len(good) < len(samples):
        text += f" ({len(samples) - len(good)} of {len(samples)} failed)"
    return text


def table(services, samples):
    theirs, *ours = services
    lines = ["| step, ms | " + theirs.name + " | " + " | ".join(f"{s.name} | ratio" for s in ours) + " |", "|---" * (2 + 2 * len(ours)) + "|"]
    for step in STEPS:
        base = samples[step, theirs.name]
        cells = [cell(base)]
        for s in ours:
            own = samples[step, s.name]
            ratios = [o / b for o, b in zip(own, base) if o is not None and b is not None]
            cells += [cell(own), f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "-"]
        lines.append(f"| {step.__doc__} | " + " | ".join(cells) + " |")
    memory = [f"{theirs.idle:.0f}, {theirs.pss():.0f}"]
    for s in ours:
        memory += [f"{s.idle:.0f}, {s.pss():.0f}", f"{s.idle / theirs.idle:.2f}x, {s.pss() / theirs.pss():.2f}x"]
    lines.append("| memory of the service in MiB (PSS), idle and after all this | " + " | ".join(memory) + " |")
    return "\n".join(lines)


def report(services, samples, rounds, engine):
    versions = ", ".join(f"{n} {importlib.metadata.version(n)}" for n in ("pydantic-ai-backend", "pydantic-ai-slim", "httpx", "uvicorn", "docker"))
    text = [
        f"Measured on {datetime.date.today()}, {2 * rounds} samples a step and service (`make bench-peers`): "
        f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {platform.machine()}, {os.cpu_count()} processors, kernel {platform.release()}, "
        f"Docker {engine}, Python {platform.python_version()}, {versions}; sandboxd {(ROOT / 'VERSION').read_text().strip()}.",
        table(services, samples),
    ]
    failures = [f"- {s.name}: {f}" for s in services for f in s.failed]
    if failures:
        text.append("What failed:\n\n" + "\n".join(failures))
    return "\n\n".join(text)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--write", action="store_true")
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
            services.append(Service("sandboxd, process", [*host, "--driver", "process", "--data", scratch / "process"], docker, scratch))
            samples = asyncio.run(measure(services, options.rounds))
            engine = subprocess.run(["docker", "-H", address, "version", "-f", "{{.Server.Version}}"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
            text = report(services, samples, options.rounds, engine)
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
