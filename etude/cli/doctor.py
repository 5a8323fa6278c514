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
    return [
        *_python(),
        *_compute(),
        *_space(folder),
        *_isolation(),
        *_programs(),
        *_extras(),
    ]


def _python() -> Iterator[Row]:
    yield Row("python", "ok", platform.python_version(), needed=True)  # an older one cannot install us


def _compute() -> Iterator[Row]:
    cores = available_cores()
    if cores >= 2:
        yield Row("cores", "ok", str(cores))
    else:
        yield Row("cores", "limited", str(cores), "training and sampling will share one core; expect half the speed")
    try:
        import torch
    except ImportError as error:
        yield Row("torch", "missing", str(error), "pip install 'torch>=2.11'", needed=True)
        return
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    release = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if release >= (2, 11):
        yield Row("torch", "ok", f"{torch.__version__}, {build}", needed=True)
    else:
        yield Row("torch", "missing", f"{torch.__version__}, {build}", "pip install 'torch>=2.11'", needed=True)
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found = f"{torch.cuda.device_count()} x {properties.name}, {properties.total_memory / GIB:.0f} GiB"
        yield Row("gpu", "ok", f"{found}; use it with run.device=cuda")
    elif torch.version.cuda:
        yield Row("gpu", "missing", "none usable", "check nvidia-smi and the driver; the CPU is used until then")
    else:
        advice = "none needed for the nano recipe; for a GPU install a CUDA build of torch (see the README)"
        yield Row("gpu", "missing", "torch is a CPU build", advice)
    flags = set(re.findall(r"\b(amx_bf16|avx512_bf16|avx2|avx512f)\b", _read("/proc/cpuinfo")))
    if flags & {"amx_bf16", "avx512_bf16"}:
        yield Row("bf16 on cpu", "ok", ", ".join(sorted(flags)))
    else:
        yield Row("bf16 on cpu", "limited", "emulated", "stay with fp32 on this CPU; bf16 would be slower")


def _space(folder: Path) -> Iterator[Row]:
    memory = dict(re.findall(r"(\w+):\s+(\d+) kB", _read("/proc/meminfo")))
    if memory:
        total, free = (int(memory[key]) * 1024 / GIB for key in ("MemTotal", "MemAvailable"))
        limit = _read("/sys/fs/cgroup/memory.max").strip()
        if limit.isdigit():
            total = min(total, int(limit) / GIB)
            free = min(free, total)
        found = f"{free:.1f} of {total:.1f} GiB free"
        if free >= 2:
            yield Row("memory", "ok", found)
        else:
            yield Row("memory", "limited", found, "close other programs; the nano recipe wants 2 GiB")
    here = folder.resolve()
    while not here.exists():
        here = here.parent
    free = shutil.disk_usage(here).free / GIB
    if not os.access(here, os.W_OK):
        yield Row("disk", "missing", f"{here} is not writable", "choose a writable folder with --run", needed=True)
    elif free >= 2:
        yield Row("disk", "ok", f"{free:.1f} GiB free in {here}", needed=True)
    else:
        yield Row(
            "disk", "limited", f"{free:.1f} GiB free in {here}", "make room, or choose another --run", needed=True
        )
    shared = Path("/dev/shm")  # noqa: S108 (we look at it and write nothing)
    if not shared.is_dir():
        advice = "learner and engine exchange weights through it; without it a file in the temporary folder is used"
        yield Row("shared memory", "missing", "no /dev/shm", advice)
    elif (size := shutil.disk_usage(shared).total / GIB) >= 0.5:
        yield Row("shared memory", "ok", f"{size:.1f} GiB in /dev/shm")
    else:
        advice = "enough for nano; for larger models enlarge it (docker run --shm-size=4g)"
        yield Row("shared memory", "limited", f"{size * 1024:.0f} MiB in /dev/shm", advice)


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
    for name in ("user", "mount", "pid", "net", "overlay"):
        what = "overlayfs" if name == "overlay" else f"{name} namespaces"
        problem = found.get(name, "could not be tried")
        if problem:
            yield Row(what, "missing", problem, f"{remedies[name]}; or {weaker}")
        else:
            yield Row(what, "ok", "tried and works")
    controllers = _read("/sys/fs/cgroup/cgroup.controllers").split()
    if not controllers:
        yield Row("cgroups", "missing", "no unified hierarchy", "limits fall back to rlimits; boot with cgroup v2")
    elif os.access("/sys/fs/cgroup/cgroup.procs", os.W_OK):
        yield Row("cgroups", "ok", f"v2: {', '.join(controllers)}")
    else:
        advice = "limits fall back to rlimits; delegate a group (systemd-run --user --scope) for exact ones"
        yield Row("cgroups", "limited", "v2, not writable", advice)
    if "errno" in _read("/proc/sys/kernel/seccomp/actions_avail"):
        yield Row("seccomp", "ok", "filters available")
    else:
        yield Row(
            "seccomp", "limited", "no filters", "a kernel with CONFIG_SECCOMP_FILTER narrows what a sandbox can call"
        )


def _programs() -> Iterator[Row]:
    git = _output(["git", "--version"]).removeprefix("git version ").strip()
    if git:
        yield Row("git", "ok", git)
    else:
        yield Row("git", "missing", "not found", "install git to read repositories as corpus sources")
    compiler = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    if compiler:
        yield Row("compiler", "ok", _output([compiler, "--version"]).partition("\n")[0])
    else:
        yield Row("compiler", "limited", "no cc, gcc or clang", "install one for torch.compile and for tasks in C")
    try:
        yield Row("container engine", "ok", Engine.find().name)
    except EtudeError as error:
        found, _, advice = str(error).removeprefix("there is no container engine: ").rpartition(": ")
        yield Row("container engine", "missing", found, f"only for tasks with a Dockerfile: {advice}")


def _extras() -> Iterator[Row]:
    for module, extra, use in (("transformers", "hf", "checking checkpoints against Hugging Face"),):
        if importlib.util.find_spec(module):
            yield Row(module, "ok", "installed")
        else:
            yield Row(module, "missing", "optional", f"pip install 'etude[{extra}]' for {use}")


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
