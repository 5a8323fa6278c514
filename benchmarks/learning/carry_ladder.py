"""Carries ladder tasks and their environments to another machine: one file, each distinct content once.

    python benchmarks/learning/carry_ladder.py pack TASKS CARRIED.tar.xz
    python benchmarks/learning/carry_ladder.py unpack CARRIED.tar.xz TASKS

`pack` takes the task folders and, from the store (`$ETUDE_STORE`, or the user's cache), the layers of the environments
that they name, without bytecode. `unpack` writes the tasks, and makes the environments again in the store of the
machine that it runs on: a layer names the interpreter and the folders of the machine that it was made on (pyvenv.cfg,
links in bin/, `shows` in layer.json), so these are written anew for the interpreter that unpacks. Task folders name an
environment by its digest, which stays. Needs no network. Compiled extensions of another Python are left out.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import io
import json
import py_compile
import re
import sys
import tarfile
import tempfile
import time
from pathlib import Path, PurePosixPath
from typing import Any

from etude.core import durable
from etude.core.errors import EtudeError
from etude.forge.install.pip_settings import interpreter
from etude.forge.leaks.minimal_host import minimal_host_folders
from etude.sandbox.store.layers import Store, default_store
from etude.tasks.format.task import Task, task_folders

Tree = dict[str, list[str]]  # path -> ["f" or "x", digest of the content] or ["l", target]
MANIFEST = "manifest.json"
DIGEST = re.compile(r"[0-9a-f]{16,128}")
LIBRARY = re.compile(r"^opt/env/(lib|include)/python\d+\.\d+")


def listed(root: Path, blobs: dict[str, bytes]) -> Tree:
    """The files below a folder; their contents go into `blobs`."""
    found: Tree = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            found[name] = ["l", str(path.readlink())]
        elif path.is_file() and "__pycache__" not in path.parts:
            data = path.read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            blobs.setdefault(digest, data)
            found[name] = ["x" if path.stat().st_mode & 0o100 else "f", digest]
    return found


def write_tree(root: Path, tree: Tree, blobs: dict[str, bytes]) -> None:
    """Writes a tree of the archive; nothing below a link, and no link that leads out of the folder."""
    root.mkdir(parents=True, exist_ok=True)
    top = root.resolve()
    # Links last: a file is never written through one.
    for name, (kind, content) in sorted(tree.items(), key=lambda each: each[1][0] == "l"):
        path = root / plain(name)
        if kind != "l" and content not in blobs:
            raise EtudeError(f"the archive lacks the content of {name!r}, or has another: pack it again")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.parent.resolve() != top / PurePosixPath(name).parent:
                raise EtudeError(f"the archive names a path below a link: {name!r}")
            if kind == "l":
                path.symlink_to(content)
            else:
                path.write_bytes(blobs[content])
                path.chmod(0o755 if kind == "x" else 0o644)
        except OSError as error:  # a file below a file
            raise EtudeError(f"the archive has no tree of files: {name!r}: {error.strerror}") from None
    for name, (kind, content) in tree.items():  # when all are there: a link may go through another
        if kind == "l" and not (root / name).resolve().is_relative_to(top):
            raise EtudeError(f"the archive has a link that leaves its folder: {name!r} to {content!r}")


def plain(name: str) -> str:
    """A path of the archive as it is, unless it could mean a place outside of the folder it is written to."""
    if not name or name != PurePosixPath(name).as_posix() or name.startswith("/") or ".." in name.split("/"):
        raise EtudeError(f"the archive names a path outside of its folder: {name!r}")
    return name


def pack(tasks: Path, archive: Path) -> dict[str, Any]:
    store = Store(default_store())
    blobs: dict[str, bytes] = {}
    manifest: dict[str, Any] = {
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "tasks": {},
        "environments": {},
    }
    folders = task_folders(tasks)
    digests: set[str] = set()
    for folder in folders:
        facts = Task.load(folder).facts
        if facts.environment is not None:
            digests.add(facts.environment.digest)
        manifest["tasks"][folder.relative_to(tasks).as_posix()] = listed(folder, blobs)
    for digest in sorted(digests):
        facts = json.loads((store.root / "environments" / f"{digest}.json").read_text())
        tree = listed(store.layer(facts["layer"]).path, blobs)
        manifest["environments"][digest] = {"facts": facts, "tree": tree}
    archive.parent.mkdir(parents=True, exist_ok=True)
    working = archive.with_name(f".{archive.name}.new")
    with tarfile.open(working, "w:xz", preset=6) as packed:
        for name, data in [(MANIFEST, json.dumps(manifest).encode()), *blobs.items()]:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            packed.addfile(entry, io.BytesIO(data))
    working.replace(archive)
    sizes = {"files": len(blobs), "bytes": archive.stat().st_size}
    return {"tasks": len(folders), "environments": len(digests)} | sizes


def unpack(archive: Path, tasks: Path) -> dict[str, Any]:
    started = time.monotonic()
    with tarfile.open(archive, "r:xz") as packed:
        contents = {entry.name: packed.extractfile(entry).read() for entry in packed if entry.isfile()}  # type: ignore[union-attr]
    manifest = json.loads(contents.pop(MANIFEST))
    blobs = {digest: data for digest, data in contents.items() if hashlib.sha256(data).hexdigest() == digest}
    store = Store(default_store())
    left_out: list[str] = []
    for digest, carried in manifest["environments"].items():
        if DIGEST.fullmatch(digest) is None:
            raise EtudeError(f"the archive names an environment by {digest!r}, which is no digest")
        facts = carried["facts"]
        with store.scratch() as folder:
            left_out += _here(folder / "root", carried["tree"], blobs, manifest["python"])
            layer = store.add(folder / "root", at="/", shows=minimal_host_folders())
        facts |= {"layer": layer.digest}
        target = store.root / "environments" / f"{digest}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        durable.write_whole(target, json.dumps(facts, indent=1) + "\n")
    for name, tree in manifest["tasks"].items():
        if not (tasks / plain(name)).exists():
            with tempfile.TemporaryDirectory(dir=_made(tasks / name).parent) as folder:
                write_tree(Path(folder) / "task", tree, blobs)
                (Path(folder) / "task").rename(tasks / name)
    counts = {"tasks": len(manifest["tasks"]), "environments": len(manifest["environments"])}
    return counts | {"left_out": left_out, "seconds": round(time.monotonic() - started, 1), "store": str(store.root)}


def _made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _here(root: Path, tree: Tree, blobs: dict[str, bytes], made_by: str) -> list[str]:
    """The environment as this machine's interpreter would have it; compiled files that it cannot load, by name."""
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    bin_folder = "opt/env/bin"
    moved: Tree = {}
    left_out = []
    for name, entry in tree.items():
        if name == "opt/env/pyvenv.cfg" or (name.startswith(f"{bin_folder}/python") and entry[0] == "l"):
            continue
        if name.endswith(".so") and ours != made_by:
            left_out.append(name)
            continue
        moved[LIBRARY.sub(rf"opt/env/\1/python{ours}", name)] = entry
    write_tree(root, moved, blobs)
    python = interpreter()
    for link, target in ((f"python{ours}", python), ("python3", f"python{ours}"), ("python", f"python{ours}")):
        (root / bin_folder / link).symlink_to(target)
    settings = f"home = {Path(python).parent}\ninclude-system-site-packages = false\nversion = {ours}\n"
    (root / "opt/env/pyvenv.cfg").write_text(f"{settings}executable = {python}\n")
    library = root / f"opt/env/lib/python{ours}"
    # Checked by content, as the forge compiles them: the same files give the same layer.
    mode = py_compile.PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(library, quiet=2, stripdir=str(root), prependdir="/", invalidation_mode=mode)
    return left_out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("verb", choices=("pack", "unpack"))
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    given = parser.parse_args()
    done = pack(given.source, given.target) if given.verb == "pack" else unpack(given.source, given.target)
    print(json.dumps(done))


if __name__ == "__main__":
    main()
