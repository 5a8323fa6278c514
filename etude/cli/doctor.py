"""What this machine can and cannot do for us, and what to do about it.

Every row is found out by trying (namespaces are entered, an overlay is mounted, in a child that exits), not by
guessing from versions. Reports; changes nothing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from etude.core.errors import EtudeError
from etude.core.process import available_cores
from etude.sandbox.docker.engine import Engine

GIB = 1 << 30
DEADLINE = 30.0  # seconds for each child that tries something


@dataclass(frozen=True)
class Row:
    what: str
    state: Literal["ok", "limited", "missing"]
    found: str
    advice: str = ""  # empty when there is nothing to do
    needed: bool = False  # without it Etude does not work at all


def examine(folder: Path) -> list[Row]:
    """Every row; `folder` is where runs would be written."""
    python = Row("python", "ok", platform.python_version(), needed=True)  # an older one cannot install us
    return [python, *_compute(), *_space(folder), *_isolation(), *_programs(), *_extras()]


def _row(
    what: str,
    fine: bool,
    found: str,
    advice: str,
    *,
    otherwise: Literal["limited", "missing"] = "limited",
    needed: bool = False,
) -> Row:
    """A row that is well, or one with advice."""
    return Row(what, "ok", found, needed=needed) if fine else Row(what, otherwise, found, advice, needed)


def _compute() -> Iterator[Row]:
    cores = available_cores()
    yield _row("cores", cores >= 2, str(cores), "training and sampling will share one core; expect half the speed")
    try:
        import torch
    except ImportError as error:
        yield Row("torch", "missing", str(error), "pip install 'torch>=2.11'", needed=True)
        return
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    release = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    found = f"{torch.__version__}, {build}"
    yield _row("torch", release >= (2, 11), found, "pip install 'torch>=2.11'", otherwise="missing", needed=True)
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found = f"{torch.cuda.device_count()} x {properties.name}, {properties.total_memory / GIB:.0f} GiB"
        yield Row("gpu", "ok", f"{found}; use it with run.device=cuda")
    elif torch.version.cuda:
        yield Row("gpu", "missing", "none usable", "check nvidia-smi and the driver; the CPU is used until then")
    else:
        advice = "none needed for the nano recipe; for a GPU install a CUDA build of torch (docs/start/install.md)"
        yield Row("gpu", "missing", "torch is a CPU build", advice)
    flags = set(re.findall(r"\b(amx_bf16|avx512_bf16|avx2|avx512f)\b", _read("/proc/cpuinfo")))
    fast = bool(flags & {"amx_bf16", "avx512_bf16"})
    found = ", ".join(sorted(flags)) if fast else "emulated"
    yield _row("bf16 on cpu", fast, found, "stay with fp32 on this CPU; bf16 would be slower")


def _space(folder: Path) -> Iterator[Row]:
    memory = dict(re.findall(r"(\w+):\s+(\d+) kB", _read("/proc/meminfo")))
    if memory:
        total, free = (int(memory[key]) * 1024 / GIB for key in ("MemTotal", "MemAvailable"))
        # Inside a container the machine's memory is not what we may use.
        limit = _read("/sys/fs/cgroup/memory.max").strip()
        if limit.isdigit():
            total = min(total, int(limit) / GIB)
            free = min(free, total)
        found = f"{free:.1f} of {total:.1f} GiB free"
        yield _row("memory", free >= 2, found, "close other programs; the nano recipe wants 2 GiB")
    here = folder.resolve()
    # The folder of runs need not exist yet.
    while not here.exists():
        here = here.parent
    free = shutil.disk_usage(here).free / GIB
    if not os.access(here, os.W_OK):
        yield Row("disk", "missing", f"{here} is not writable", "choose a writable folder with --run", needed=True)
    else:
        found = f"{free:.1f} GiB free in {here}"
        yield _row("disk", free >= 2, found, "make room, or choose another --run", needed=True)
    shared = Path("/dev/shm")  # noqa: S108 (we look at it and write nothing)
    if not shared.is_dir():
        advice = "learner and engine exchange weights through it; without it a file in the temporary folder is used"
        yield Row("shared memory", "missing", "no /dev/shm", advice)
    else:
        size = shutil.disk_usage(shared).total
        advice = "enough for nano; for larger models enlarge it (docker run --shm-size=4g)"
        yield _row("shared memory", size >= GIB / 2, f"{size / GIB:.2g} GiB in /dev/shm", advice)


# Tried in a child: unsharing is for good, and a failure must not touch us.
_TRY_NAMESPACES = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
flags = {"user": 0x10000000, "mount": 0x00020000, "pid": 0x20000000, "net": 0x40000000}
uid, gid, found = os.getuid(), os.getgid(), {}
for name, flag in flags.items():
    found[name] = "" if libc.unshare(flag) == 0 else os.strerror(ctypes.get_errno())
    if name == "user" and not found[name]:
        for file, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            try:
                with open(f"/proc/self/{file}", "w") as f: f.write(text)
            except OSError as error:
                found[name] = error.strerror
work = sys.argv[1]
for name in ("lower", "upper", "work", "merged"): os.mkdir(f"{work}/{name}")
layers = f"lowerdir={work}/lower,upperdir={work}/upper,workdir={work}/work,userxattr".encode()
private = libc.mount(b"none", b"/", None, 0x44000, None)
done = libc.mount(b"overlay", f"{work}/merged".encode(), b"overlay", 0, layers)
found["overlay"] = "" if private == 0 and done == 0 else os.strerror(ctypes.get_errno())
if not found["overlay"]: libc.umount2(f"{work}/merged".encode(), 2)
print(json.dumps(found))
"""


def _isolation() -> Iterator[Row]:
    weaker = "the weaker sandbox backend must be asked for by name"
    if platform.system() != "Linux":
        yield Row("namespaces", "missing", platform.system(), f"Linux only: use docker or a Linux machine, or {weaker}")
        return
    # Tried in a child that exits: asking for versions says nothing about what a container forbids.
    with tempfile.TemporaryDirectory() as work:
        answer = _output([sys.executable, "-I", "-c", _TRY_NAMESPACES, work])
    try:
        found = json.loads(answer)
    except ValueError:
        found = dict.fromkeys(("user", "mount", "pid", "net", "overlay"), "could not be tried")
    remedies = {
        "user": "sysctl kernel.unprivileged_userns_clone=1 (or user.max_user_namespaces), or run outside the container",
        "mount": "follows from user namespaces",
        "pid": "follows from user namespaces",
        "net": "follows from user namespaces; without it code under test is not cut off from the network",
        "overlay": "sandboxes need a kernel of 6.6 or newer",
    }
    for name in remedies:
        what = "overlayfs" if name == "overlay" else f"{name} namespaces"
        problem = found.get(name, "could not be tried")
        advice = f"{remedies[name]}; or {weaker}"
        yield _row(what, not problem, problem or "tried and works", advice, otherwise="missing")
    controllers = _read("/sys/fs/cgroup/cgroup.controllers").split()
    if not controllers:
        yield Row("cgroups", "missing", "no unified hierarchy", "limits fall back to rlimits; boot with cgroup v2")
    else:
        writable = os.access("/sys/fs/cgroup/cgroup.procs", os.W_OK)
        advice = "limits fall back to rlimits; delegate a group (systemd-run --user --scope) for exact ones"
        yield _row("cgroups", writable, f"v2: {', '.join(controllers)}" if writable else "v2, not writable", advice)
    filters = "errno" in _read("/proc/sys/kernel/seccomp/actions_avail")
    advice = "a kernel with CONFIG_SECCOMP_FILTER narrows what a sandbox can call"
    yield _row("seccomp", filters, "filters available" if filters else "no filters", advice)


def _programs() -> Iterator[Row]:
    git = _output(["git", "--version"]).removeprefix("git version ").strip()
    advice = "install git to read repositories as corpus sources"
    yield _row("git", bool(git), git or "not found", advice, otherwise="missing")
    compiler = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), "")
    found = _output([compiler, "--version"]).partition("\n")[0] if compiler else "no cc, gcc or clang"
    yield _row("compiler", bool(compiler), found, "install one for torch.compile and for tasks in C")
    try:
        yield Row("container engine", "ok", Engine.find().name)
    except EtudeError as error:
        found, _, advice = str(error).removeprefix("there is no container engine: ").rpartition(": ")
        yield Row("container engine", "missing", found, f"only for tasks with a Dockerfile: {advice}")


def _extras() -> Iterator[Row]:
    there = importlib.util.find_spec("transformers") is not None
    advice = "pip install 'etude[hf]' for checking checkpoints against Hugging Face"
    yield _row("transformers", there, "installed" if there else "optional", advice, otherwise="missing")


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
