"""A package's source distribution, fetched and unpacked inside a sandbox with network, taken out as plain files.

pip asks a source distribution for its metadata by running its build, which is why even the download happens inside.
The archive is opened there too: whatever it does to its reader, it does to a sandbox that is thrown away.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from etude.core.errors import EtudeError
from etude.forge.install.pip_settings import PackageIndex, interpreter, shown_folders
from etude.forge.install.rules.missing_packages import last_error
from etude.forge.install.sandbox_files import plain_folder, unpacked_snapshot
from etude.sandbox.base import CommandResult, Sandbox, SandboxLimits, Snapshot
from etude.sandbox.hosts import open_host
from etude.sandbox.store.layers import Store

NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")
_LIMITS = SandboxLimits(memory=2 << 30, disk=2 << 30)
_SECONDS = 600.0
_UNPACK_SECONDS = 120.0
_ARCHIVES = "/fetched/sdist"
Fetched = tuple[Snapshot, str]  # what changed in the sandbox that fetched it, and the version that came

# Leaves /fetched/tree, and prints the archive's name. Links stay as they are, for whoever checks the tree.
_UNPACK = """
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


async def fetch_package(name: str, version: str, index: PackageIndex, store: Store) -> Fetched:
    """A source distribution, by pip."""
    what = f"the source distribution of {name}=={version}" if version else f"the source distribution of {name}"

    async def download(sandbox: Sandbox) -> CommandResult:
        pip = [interpreter(), "-m", "pip", "-vv", "download", "--no-deps", "--no-cache-dir"]
        spec = f"{name}=={version}" if version else name
        got = await sandbox.run([*pip, "--no-binary", name, "-d", _ARCHIVES, "--", spec], timeout=_SECONDS)
        # pip keeps nothing of a package whose build fails, but has said where the archive is.
        if not got.ok and (link := _link(got)):
            return await sandbox.run([interpreter(), "-I", "-c", _GET, link], timeout=_SECONDS)
        return got

    snapshot, archive = await fetch_archive(what, download, index, store)
    return snapshot, _version_of(archive, name)


async def fetch_archive(
    what: str, download: Callable[[Sandbox], Awaitable[CommandResult]], index: PackageIndex, store: Store
) -> Fetched:
    """The changes of a sandbox with the unpacked archive at /fetched/tree, and the name of the archive.

    `download` puts one archive into /fetched/sdist.
    """
    async with await open_host("local", store) as host:
        layer = host.store.add_files({}, shows=(*shown_folders(), *index.shows))
        async with await host.start([layer], limits=_LIMITS, network=True, env=index.variables) as sandbox:
            got = await download(sandbox)
            if not got.ok:
                raise EtudeError(f"{what} cannot be fetched: {_why(got)}")
            opened = await sandbox.run([interpreter(), "-I", "-c", _UNPACK], timeout=_UNPACK_SECONDS)
            if not opened.ok:
                raise EtudeError(f"{what} cannot be unpacked: {_why(opened)}")
            # The archive is a second copy, and goes with the snapshot otherwise.
            await sandbox.run(["rm", "-rf", _ARCHIVES, "/home/agent/.npm"])
            return await sandbox.snapshot(), opened.stdout.decode("utf-8", "replace").strip()


@contextmanager
def fetched_tree(snapshot: Snapshot, store: Store) -> Iterator[Path]:
    """The package's files as they came, unchecked."""
    with unpacked_snapshot(snapshot, store) as root:
        tree = plain_folder(root, "/fetched/tree")
        if tree is None:
            raise EtudeError("the source distribution holds no folder of files")
        yield tree


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
