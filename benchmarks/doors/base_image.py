"""An image for containers, made of this machine's own shell and programs, as no registry may be within reach."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

PROGRAMS = (
    *("sh", "bash", "cat", "chmod", "env", "find", "grep", "head", "id", "ln", "ls", "mkdir", "mkfifo"),
    *("rm", "setsid", "sleep", "stat", "tail", "touch", "true", "wc"),
)


def write_base(target: Path) -> None:
    """A root with a shell and a few programs, and the libraries that they need."""
    programs = [f"/usr/bin/{name}" for name in PROGRAMS]
    told = [subprocess.run(["ldd", each], capture_output=True, text=True, check=True).stdout for each in programs]
    libraries = {word for text in told for word in text.split() if word.startswith("/")}
    with tarfile.open(target, "w") as out:
        for path, mode in ((".", 0o755), ("tmp", 0o1777), ("root", 0o700), ("etc", 0o755)):
            info = tarfile.TarInfo(path)
            info.type, info.mode = tarfile.DIRTYPE, mode
            out.addfile(info)
        for name in ("bin", "lib", "lib64", "sbin"):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, f"usr/{name}"
            out.addfile(info)
        for path in sorted({*programs, *libraries}):
            real = Path(path).resolve()
            info = out.gettarinfo(real, path.lstrip("/") if path.startswith("/usr") else f"usr{path}")
            info.type, info.uid, info.gid, info.size = tarfile.REGTYPE, 0, 0, real.stat().st_size
            with real.open("rb") as file:
                out.addfile(info, file)
