#!/usr/bin/env python3
"""Asks apt, pip and npm whether everything that the shipped runtimes name exists for
another architecture, with all that it depends on. Nothing is installed, and hardly more
than lists and descriptions are fetched.

  scripts/arm64.py [ARCHITECTURE ...]     arm64 by default; amd64 is the other
"""

import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "bin/sandboxd"
# As the three of them call the same thing.
NAMES = {"arm64": {"wheel": "aarch64", "npm": "arm64"}, "amd64": {"wheel": "x86_64", "npm": "x64"}}
PYTHON = os.environ.get("PYTHON_VERSION", "3.12")  # that of the shipped base


def output(argv, **kw):
    done = subprocess.run([str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kw)
    if done.returncode != 0:
        raise LookupError((done.stderr or done.stdout).strip()[-1500:])
    return done.stdout


def attempts(what, ask):
    """Registries are far away: what fails is asked again, and the last answer counts."""
    for attempt in range(3):
        try:
            return ask()
        except LookupError as e:
            problem = e
    raise LookupError(f"{what}: {problem}")


def apt(packages, arch, scratch):
    """Resolves the packages on an empty system of that architecture."""
    suite = platform.freedesktop_os_release()["VERSION_CODENAME"]
    uris = output(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Origin: Debian", f"Codename: {suite}"]).split()
    if not uris:
        raise LookupError("apt knows no Debian archive here; its lists may be empty (apt-get update)")
    for name in ("lists/partial", "archives/partial", "etc"):
        (scratch / name).mkdir(parents=True)
    (scratch / "status").touch()
    (scratch / "sources.list").write_text(f"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {uris[0]} {suite} main\n")
    options = [f"APT::Architecture={arch}", f"APT::Architectures={arch}", f"Dir::State={scratch}", f"Dir::State::status={scratch}/status",
               f"Dir::Cache={scratch}", f"Dir::Etc::sourcelist={scratch}/sources.list", f"Dir::Etc::sourceparts={scratch}/etc",
               f"Dir::Etc::preferencesparts={scratch}/etc", "APT::Sandbox::User=root", "APT::Install-Recommends=false"]
    argv = ["apt-get", "-qq"] + [x for o in options for x in ("-o", o)]
    attempts("apt-get update", lambda: output(argv + ["update"]))
    planned = output(argv + ["install", "--simulate", *packages])
    return len(re.findall(r"(?m)^Inst ", planned))


def pip(packages, arch, scratch):
    """Resolves the packages for a machine of that architecture, from wheels alone."""
    platforms = [f"manylinux_{glibc}_{NAMES[arch]['wheel']}" for glibc in ("2_17", "2_24", "2_26", "2_27", "2_28", "2_31", "2_34", "2_35", "2_36")]
    platforms.append(f"manylinux2014_{NAMES[arch]['wheel']}")
    argv = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed", "--disable-pip-version-check",
            "--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp", "--target", scratch / "nothing", "--report", "-"]
    report = json.loads(attempts("pip", lambda: output(argv + [x for p in platforms for x in ("--platform", p)] + packages)))
    return len(report["install"])


def npm(packages, arch, scratch):
    """Resolves the packages into a lock file, and looks that whoever brings programs for
    single architectures brings them for this one."""
    scratch.mkdir()
    (scratch / "package.json").write_text("{}")
    argv = ["npm", "install", "--package-lock-only", "--ignore-scripts", "--no-audit", "--no-fund", "--cache", scratch / "cache",
            "--os", "linux", "--cpu", NAMES[arch]["npm"], *packages]
    attempts("npm", lambda: output(argv, cwd=scratch))
    locked = json.loads((scratch / "package-lock.json").read_text())["packages"]
    for where, one in locked.items():
        optional = [name for name in one.get("optionalDependencies", {}) if not name.startswith("fsevents")]
        # They are found beside the package or above it.
        choices = [v for k, v in locked.items() if v.get("cpu") and any(k.endswith("node_modules/" + o) for o in optional)]
        fits = [c for c in choices if NAMES[arch]["npm"] in c["cpu"] and "linux" in c.get("os", ["linux"])]
        if choices and not fits:
            raise LookupError(f"npm: {where} has programs for some architectures and none for {arch}")
    return len(locked) - 1


def named_in(commands):
    """The Python packages that set-up commands install by themselves."""
    return [w for c in commands for w in (re.split(r"[;&|]", c.partition(" pip install ")[2])[0].split() if " pip install " in c else []) if "==" in w]


def main():
    wanted = sys.argv[1:] or ["arm64"]
    entries = json.loads(output([PROGRAM, "runtimes", "print", "--catalogue", "shipped", "--apps"]))
    failed = False
    for arch in wanted:
        for entry in entries:
            python = entry.get("packages", [])
            setup = named_in(entry.get("setup_commands", []))
            for name, ask, packages in (("apt", apt, entry.get("apt_packages", [])), ("pip", pip, python), ("pip of set-up", pip, setup), ("npm", npm, entry.get("npm_packages", []))):
                if not packages:
                    continue
                scratch = pathlib.Path(tempfile.mkdtemp(prefix="arch-"))
                try:
                    count = ask(packages, arch, scratch / "x")
                    print(f"ok    {arch} {entry['alias']}: {name}, {len(packages)} named, {count} with what they need", flush=True)
                except LookupError as e:
                    failed = True
                    print(f"FAIL  {arch} {entry['alias']}: {name}: {e}", flush=True)
                finally:
                    shutil.rmtree(scratch)
    sys.exit(failed)


if __name__ == "__main__":
    main()
