"""Files on their way into and out of containers, as tar streams: what goes in, what is there, what differs.

A stream out of a container was written by the engine from files of a hostile program: no name in it is trusted, and
nothing is ever written through a link. Times are whole seconds, as engines' streams have no more. Knows no engine.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import stat
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final, Literal

from etude.sandbox.base import Layer
from etude.sandbox.environment import HOME
from etude.sandbox.identity import INSIDE
from etude.sandbox.store.overlay_changes import (
    Row,
    below,
    check_depth,
    is_opaque,
    is_whiteout,
    merged,
    opened,
    opened_parent,
)

_MAX_ENTRIES: Final = 1_000_000
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Written by engines, not by programs: mounted over the image, or a sign that this is a container.
_ENGINES_FILES: Final = frozenset(
    ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/mtab", "/run/.containerenv", "/.dockerenv")
)
_ENGINES_FOLDERS: Final = ("/dev", "/proc", "/sys", "/run/secrets")
_PASSWD: Final = f"root:x:0:0::/:/bin/sh\nagent:x:{INSIDE}:{INSIDE}::{HOME}:/bin/sh\n"
_GROUP: Final = f"root:x:0:\nagent:x:{INSIDE}:\n"


@dataclass(frozen=True)
class ContainerPath:
    """One path of a container."""

    what: Literal["file", "folder", "link", "other"]
    size: int
    mode: int
    target: str
    digest: bytes

    def row(self, path: str, kind: str) -> Row:
        return path, kind, self.what, self.size, self.mode, "" if kind == "deleted" else self.target


# Into a container


def write_root(layers: Sequence[Layer], shows: Sequence[str], workdir: str, target: Path) -> None:
    """A root for programs that use the host's own: the layers, a home, and places to mount what they show."""
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as out:
        _add_layers(out, layers)
        made = {member.name for member in out.getmembers()}  # engines refuse a path that comes twice

        def add(path: str, mode: int, data: bytes | None = None, owner: int = 0) -> None:
            if path not in made:
                made.add(path)
                _add(out, path, data, mode, (owner, owner))

        def add_folders(path: PurePosixPath) -> None:
            for folder in [*reversed(path.parents), path]:
                add(str(folder), 0o755)

        # Only these and the layers' own are the program's to write in.
        for folder, mode in (("tmp", 0o1777), (HOME.strip("/"), 0o755), (workdir.strip("/"), 0o755)):
            add(folder, mode, owner=INSIDE)
        for folder in ("etc", "dev", "proc", "sys", "run", "home"):
            add_folders(PurePosixPath(folder))
        add("etc/passwd", 0o644, _PASSWD.encode())
        add("etc/group", 0o644, _GROUP.encode())
        for shown in shows:
            place = PurePosixPath(shown.strip("/"))
            add_folders(place if Path(shown).is_dir() else place.parent)
            add(str(place), 0o644, b"")


def write_layers(layers: Sequence[Layer], target: Path) -> None:
    """Only the layers, to lie over an image."""
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as out:
        _add_layers(out, layers)


def has_deletions(layer: Layer) -> bool:
    """Whether a layer takes away what lies below it, which nothing laid over an image can."""

    def walk(folder: int) -> bool:
        for name in os.listdir(folder):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if is_whiteout(status):
                return True
            if stat.S_ISDIR(status.st_mode):
                with opened(name, folder) as inner:
                    if is_opaque(inner) or walk(inner):
                        return True
        return False

    with opened(str(layer.path)) as root:
        return walk(root)


def write_tree(root: Path, target: Path, owner: tuple[int, int]) -> None:
    """A folder's content, all of it belonging to one user."""
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as out, opened(str(root)) as folder:
        _add_merged(out, [folder], "", owner, {})


def write_files(
    files: Mapping[str, tuple[bytes, int]], folders: Sequence[str], target: Path, owner: tuple[int, int]
) -> None:
    """Files by absolute path, with bytes and mode, and folders. Those above the files are left as they are."""
    now = int(time.time())
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as out:
        for folder in folders:
            _add(out, folder.lstrip("/"), None, 0o755, owner, now)
        for path, (data, mode) in files.items():
            _add(out, path.lstrip("/"), data, mode, owner, now)


def _add(
    out: tarfile.TarFile, path: str, data: bytes | None, mode: int, owner: tuple[int, int], modified: int = 0
) -> None:
    """One file, or a folder where there is no data."""
    info = tarfile.TarInfo(path)
    info.type = tarfile.DIRTYPE if data is None else tarfile.REGTYPE
    info.size, info.mode, info.mtime = len(data or b""), mode, modified
    info.uid, info.gid = owner
    out.addfile(info, io.BytesIO(data or b""))


def _add_layers(out: tarfile.TarFile, layers: Sequence[Layer]) -> None:
    with ExitStack() as stack:
        lowers = [stack.enter_context(opened(str(layer.path))) for layer in reversed(layers)]
        _add_merged(out, lowers, "", (INSIDE, INSIDE), {})


def _add_merged(
    out: tarfile.TarFile, lowers: list[int], path: str, owner: tuple[int, int], seen: dict[tuple[int, int], str]
) -> None:
    for name, found in sorted(merged(lowers).items()):
        whole = f"{path}{name}"
        source, status = lowers[found.layer], found.status
        info = tarfile.TarInfo(whole)
        info.mode, info.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
        info.uid, info.gid = owner
        if stat.S_ISDIR(status.st_mode):
            info.type = tarfile.DIRTYPE
            out.addfile(info)
            with below(lowers, name) as inner:
                _add_merged(out, inner, f"{whole}/", owner, seen)
        elif stat.S_ISLNK(status.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=source)
            out.addfile(info)
        elif stat.S_ISFIFO(status.st_mode):
            info.type = tarfile.FIFOTYPE
            out.addfile(info)
        elif stat.S_ISREG(status.st_mode):
            first = seen.setdefault((status.st_dev, status.st_ino), whole) if status.st_nlink > 1 else whole
            # Written once and linked: a hard link that becomes two files would show up as a change.
            if first != whole:
                info.type, info.linkname = tarfile.LNKTYPE, first
                out.addfile(info)
                continue
            info.size = status.st_size
            with os.fdopen(os.open(name, _FILE, dir_fd=source), "rb") as file:
                out.addfile(info, file)


# Out of a container


def index(stream: Path, root: str) -> dict[str, ContainerPath]:
    """What a stream of the folder `root` holds, by absolute path."""
    found: dict[str, ContainerPath] = {}
    for path, member, archive in _members(stream, root):
        if member.isreg():
            entry = ContainerPath("file", member.size, member.mode & 0o7777, "", _digest(archive.extractfile(member)))
        elif member.islnk():
            first = found.get(_beside(root, member.linkname))
            if first is None:
                continue  # its first name is no part of this folder, and engines then write it out
            entry = first
        elif member.isdir():
            entry = ContainerPath("folder", 0, member.mode & 0o7777, "", b"")
        elif member.issym():
            entry = ContainerPath("link", 0, 0o777, member.linkname, b"")
        else:
            entry = ContainerPath("other", 0, member.mode & 0o7777, "", member.type)
        found[path] = entry
    return found


def differences(
    now: Mapping[str, ContainerPath], base: Mapping[str, ContainerPath], skip: Sequence[str] = ()
) -> list[Row]:
    """What differs, sorted by path, without what engines write themselves and what lies below `skip`."""
    rows: list[Row] = []
    hidden = (*_ENGINES_FOLDERS, *skip)
    for path in sorted({*now, *base}):
        new, old = now.get(path), base.get(path)
        # Engines write these while a container starts, also into one that nothing ever ran in.
        if new == old or path in _ENGINES_FILES or any(path == each or path.startswith(f"{each}/") for each in hidden):
            continue
        if new is None and old is not None:
            rows.append(old.row(path, "deleted"))
        elif new is not None:
            rows.append(new.row(path, "added" if old is None else "modified"))
    return rows


def changed_roots(listing: str, shows: Sequence[str]) -> list[str]:
    """The largest folders with something changed in them and none of the host's in them.

    From the engine's own list of changes, in which a hostile name can add a line but not hide one.
    """
    # Lines of other shapes come from names with a line break in them.
    paths = [line[2:] for line in listing.splitlines() if line[:3] in ("A /", "C /", "D /")]
    holding = {str(above) for shown in shows for above in PurePosixPath(shown).parents}
    found: dict[str, None] = {}
    for path in paths:
        parts = path.split("/")
        tops = ("/".join(parts[:end]) for end in range(2, len(parts) + 1))
        top = next((top for top in tops if top not in holding), None)
        if top is not None and top not in shows and top not in _ENGINES_FOLDERS:
            found[top] = None
    return list(found)


def extract(streams: Iterable[tuple[str, Path]], rows: Sequence[Row], target: Path) -> None:
    """The changed paths of some streams as files below `target`, for `pack`."""
    wanted = {path for path, kind, *_ in rows if kind != "deleted"}
    kept = wanted | {str(above) for path in wanted for above in PurePosixPath(path).parents}
    with opened(str(target)) as folder:
        for root, stream in streams:
            late: list[tuple[str, tarfile.TarInfo]] = []
            for path, member, archive in _members(stream, root):
                if path not in kept:
                    continue
                if member.isdir():
                    late.append((path, member))
                _make(folder, path, member, archive, root, wanted)
            for path, member in reversed(late):  # a folder's mode and time, once nothing is made in it any more
                with opened_parent(folder, path) as (parent, name), opened(name, parent) as made:
                    os.fchmod(made, member.mode & 0o1777)
                    os.utime(made, (member.mtime, member.mtime))
        os.utime(folder, (0, 0))  # the root's own is nobody's change, and equal changes get equal names


def _make(
    folder: int, path: str, member: tarfile.TarInfo, archive: tarfile.TarFile, root: str, wanted: set[str]
) -> None:
    with opened_parent(folder, path) as (parent, name):
        if member.isdir():
            os.mkdir(name, 0o700, dir_fd=parent)
        elif member.issym():
            os.symlink(member.linkname, name, dir_fd=parent)
            os.utime(name, (member.mtime, member.mtime), dir_fd=parent, follow_symlinks=False)
        elif member.isfifo():
            os.mkfifo(name, member.mode & 0o777, dir_fd=parent)
        elif member.islnk() and _beside(root, member.linkname) in wanted:
            with opened_parent(folder, _beside(root, member.linkname)) as (place, first):
                os.link(first, name, src_dir_fd=place, dst_dir_fd=parent, follow_symlinks=False)
        elif member.isreg() or member.islnk():
            source = archive.extractfile(member)  # of a link: what it is a second name of
            with os.fdopen(os.open(name, _NEW, 0o600, dir_fd=parent), "wb") as file:
                if source is not None:
                    shutil.copyfileobj(source, file)
                file.flush()
                os.fchmod(file.fileno(), member.mode & 0o1777)
                os.utime(file.fileno(), (member.mtime, member.mtime))


def _members(stream: Path, root: str) -> Iterator[tuple[str, tarfile.TarInfo, tarfile.TarFile]]:
    """Entries of a stream by absolute path; names that no folder can hold make it damaged."""
    try:
        with tarfile.open(stream, "r:", errors="surrogateescape") as archive:
            for number, member in enumerate(archive):
                path = _beside(root, member.name)
                check_depth(path)
                if number > _MAX_ENTRIES:
                    raise OSError(errno.EFBIG, f"there are more than {_MAX_ENTRIES} files", root)
                yield path, member, archive
    except tarfile.TarError as error:
        raise OSError(errno.EIO, f"the engine's copy cannot be read: {error}", root) from None


def _beside(root: str, name: str) -> str:
    """A name of a stream, which starts with the last part of its root, as an absolute path."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    above, _, last = root.rpartition("/")
    # The engine names its entries from the copied folder on. Anything else would be written beside our target.
    if ".." in parts or not parts or parts[0] != last:
        raise OSError(errno.EINVAL, "the engine's copy holds a path of another folder", name)
    return "/".join([above, *parts])


def _digest(file: IO[bytes] | None) -> bytes:
    total = hashlib.sha256()
    while file is not None and (block := file.read(1 << 20)):
        total.update(block)
    return total.digest()
