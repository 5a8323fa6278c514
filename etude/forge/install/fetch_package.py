"""A package's source distribution, fetched and unpacked inside a sandbox with network, taken out as plain files.

pip asks a source distribution for its metadata by running its build, which is why even the download happens inside.
The archive is opened there too: whatever it does to its reader, it does to a sandbox that is thrown away.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from etude.core.errors import EtudeError
from etude.forge.install.package_index import PackageIndex, interpreter, shown_folders
from etude.forge.install.rules.missing_packages import last_error
from etude.forge.install.sandbox_files import drop, plain_folder, unpacked_snapshot
from etude.sandbox.base import CommandResult, SandboxLimits, Snapshot
from etude.sandbox.hosts import open_host
from etude.sandbox.store.layers import Store

NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")
_LIMITS = SandboxLimits(memory=2 << 30, disk=2 << 30)
_SECONDS = 600.0
_UNPACK_SECONDS = 120.0

# Leaves /fetched/tree, and prints the archive's name. Links stay as they are, for whoever checks the tree.
UNPACK = """
import pathlib, shutil, sys, tarfile, zipfile
folder = pathlib.Path("/fetched/sdist")
archive, = [each for each in folder.iterdir() if each.name.endswith((".tar.gz", ".tgz", ".zip", ".tar.bz2", ".tar.xz"))]
target = pathlib.Path("/fetched/all")
target.mkdir(parents=True)
if archive.suffix == ".zip":
    zipfile.ZipFile(archive).extractall(target)
else:
    with tarfile.open(archive) as packed:
        packed.extractall(target, filter="tar")
tops = list(target.iterdir())
(tops[0] if len(tops) == 1 and tops[0].is_dir() else target).rename("/fetched/tree")
print(archive.name)
"""

_GET = """
import pathlib, shutil, sys, urllib.parse, urllib.request
name = pathlib.PurePosixPath(urllib.parse.unquote(urllib.parse.urlsplit(sys.argv[1]).path)).name
target = pathlib.Path("/fetched/sdist")
target.mkdir(parents=True, exist_ok=True)
with urllib.request.urlopen(sys.argv[1], timeout=60) as source, (target / name).open("wb") as file:
    shutil.copyfileobj(source, file)
"""
_TAKEN = re.compile(
    r"(?:Downloading|Processing|Using cached) (?:\S*/)?([\w.+!-]+\.(?:tar\.gz|tgz|zip|tar\.bz2|tar\.xz))"
)


async def fetch(name: str, version: str, index: PackageIndex, store: Store) -> tuple[Snapshot, str]:
    """The changes of a sandbox that holds the package's tree at /fetched/tree, and the version that came."""
    wanted = f"{name}=={version}" if version else name
    async with await open_host("local", store) as host:
        layer = host.store.add_files({}, shows=(*shown_folders(), *index.shows))
        async with await host.start([layer], limits=_LIMITS, network=True, env=index.variables) as sandbox:
            pip = [interpreter(), "-m", "pip", "-vv", "download", "--no-deps", "--no-cache-dir"]
            command = [*pip, "--no-binary", name, "-d", "/fetched/sdist", "--", wanted]
            got = await sandbox.run(command, timeout=_SECONDS)
            # pip keeps nothing of a package whose build fails, but has said where the archive is.
            if not got.ok and not (link := _link(got)):
                raise EtudeError(f"the source distribution of {wanted} cannot be fetched: {_why(got)}")
            if not got.ok:
                again = await sandbox.run([interpreter(), "-I", "-c", _GET, link], timeout=_SECONDS)
                if not again.ok:
                    raise EtudeError(f"the source distribution of {wanted} cannot be fetched: {_why(again)}")
            opened = await sandbox.run([interpreter(), "-I", "-c", UNPACK], timeout=_UNPACK_SECONDS)
            if not opened.ok:
                raise EtudeError(f"the source distribution of {wanted} cannot be unpacked: {_why(opened)}")
            archive = opened.stdout.decode("utf-8", "replace").strip()
            await sandbox.run(["rm", "-rf", "/fetched/sdist"])
            return await sandbox.snapshot(), _version_of(archive, name)


@contextmanager
def fetched_tree(snapshot: Snapshot, store: Store) -> Iterator[Path]:
    """The package's files as they came, unchecked."""
    try:
        with unpacked_snapshot(snapshot, store) as root:
            tree = plain_folder(root, "/fetched/tree")
            if tree is None:
                raise EtudeError("the source distribution holds no folder of files")
            yield tree
    finally:
        drop(snapshot)


def _version_of(archive: str, name: str) -> str:
    """`a_name-1.2.tar.gz` -> 1.2; what a hostile sandbox may print is checked like any name."""
    stem = re.sub(r"\.(tar\.gz|tgz|zip|tar\.bz2|tar\.xz)$", "", archive)
    version = stem[len(name) + 1 :]
    return version if VERSION.fullmatch(version) else ""


def _link(result: CommandResult) -> str:
    """The address of the archive that pip took, from what it said about all that it found."""
    said = result.stdout.decode("utf-8", "replace")
    taken = _TAKEN.search(said)
    found = re.findall(rf"Found link (\S+?/{re.escape(taken[1])})(?=[#,\s])", said) if taken else []
    return found[-1] if found and not result.timed_out else ""


def _why(result: CommandResult) -> str:
    if result.timed_out:
        return "it took too long"
    return last_error((result.stdout + b"\n" + result.stderr).decode("utf-8", "replace"))
