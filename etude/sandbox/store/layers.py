"""The store of layers and snapshots: read-only trees and packed changes, named by their content, made once.

    layers/DIGEST/tree/        a layer's files, as they appear from the sandbox's root
    layers/DIGEST/layer.json   the host's folders that it shows, its size, and the boot it was last known whole in
    snapshots/DIGEST.changes   everything a sandbox changed, packed; DIGEST.json names its layers
    memory/DIGEST/             frozen sandboxes, which `frozen_sandboxes.py` writes and reads
    partial/                   what is being made; removed by the next store when its maker died

What is made gets its name by one rename. Nothing is forced to the disk: a layer from before a reboot is read and
compared with its name once instead. Knows no sandbox; what a hostile tree may not bring stands in `importing.py`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from etude.core.errors import EtudeError
from etude.sandbox.base import WORKSPACE, Layer, SandboxFailure, Snapshot
from etude.sandbox.identity import outside_identity
from etude.sandbox.store.importing import Bounds, TreeEntry, Walk, check_path, digest_of
from etude.sandbox.store.overlay_changes import opened
from etude.sandbox.store.packed_changes import BadChanges, pack, unpack

_SYSTEM: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),
    *("/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl/certs", "/etc/mime.types"),
)
# No limits: it was inside them when it was made, perhaps under other bounds.
_ANY: Final = Bounds(bytes=1 << 62, file_bytes=1 << 62, entries=1 << 62, hard_links_out=True, link_loops=True)


def system_folders() -> tuple[str, ...]:
    """The host's programs and libraries, as far as it has them."""
    return tuple(path for path in _SYSTEM if Path(path).exists())


def interpreter_folders() -> tuple[str, ...]:
    """The installation and the virtual environment that the running Python belongs to."""
    found = [path for path in dict.fromkeys((sys.base_prefix, sys.prefix)) if path != "/usr"]
    return tuple(path for path in found if not any(path.startswith(f"{above}/") for above in ("/usr", *found)))


def default_store() -> Path:
    """The store that commands share, where environments are installed: `$ETUDE_STORE`, or in the user's cache."""
    if chosen := os.environ.get("ETUDE_STORE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "etude" / "store"


class Store:
    """A folder of layers and snapshots. Several processes may use it at once."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        identity = outside_identity()
        # Layers belong to the user that the sandbox's programs are outside, or those could not change them.
        self._owner = None if identity.is_own else (identity.uid, identity.gid)
        try:
            for name in ("layers", "snapshots", "partial"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
            made_for = self.root / "store.json"
            if not made_for.exists():
                made_for.write_text(json.dumps({"owner": identity.uid}))
        except OSError as error:
            raise EtudeError(
                f"the layer store {root} cannot be used: {error.strerror}; choose another folder"
            ) from None
        # A store of root and one of an ordinary user hold files of different owners; mixed, neither could write in its
        # sandboxes.
        owner = json.loads(made_for.read_text())["owner"]
        if owner != identity.uid:
            text = f"the layer store {root} holds files for user {owner}, but sandboxes here run as {identity.uid}"
            raise EtudeError(f"{text}; choose another folder, one for each user")
        self._remove_dead()

    def add(
        self, tree: Path, *, at: str = WORKSPACE, shows: Sequence[str] | None = None, bounds: Bounds | None = None
    ) -> Layer:
        """A layer with a copy of `tree` at `at`. Hostile trees are refused with an `EtudeError`, and leave nothing."""
        shown = _shown(shows)
        with self._explained(), self.scratch() as folder:
            target = self._make_base(folder / "tree", at)
            walk = Walk(tree, at, bounds or Bounds(), self._owner)
            try:
                entries = walk.into(target)
            finally:
                os.close(target)
            return self._publish(folder, _bases(at) + entries, shown, walk.bytes)

    def add_files(
        self, files: Mapping[str, bytes], *, at: str = WORKSPACE, shows: Sequence[str] | None = None
    ) -> Layer:
        """A layer of files given by their relative paths. Making one that exists costs no more than its digest."""
        shown = _shown(shows)
        base = at.rstrip("/")
        entries = {entry.path: entry for entry in _bases(at)}
        for path, content in files.items():
            check_path(path)
            parts = path.split("/")
            for end in range(1, len(parts)):
                folder = "/".join([base, *parts[:end]])
                entries[folder] = TreeEntry(folder, "d", 0o755)
            entries[f"{base}/{path}"] = TreeEntry(f"{base}/{path}", "f", 0o644, hashlib.sha256(content).hexdigest())
        digest = digest_of(list(entries.values()), shown)
        # Known by its digest before anything is written: most starts use a layer that is there.
        with suppress(FileNotFoundError):
            return self._load(digest)
        with self._explained(), self.scratch() as partial:
            os.close(self._make_base(partial / "tree", at))
            for path, content in files.items():
                file = partial / "tree" / f"{base}/{path}".lstrip("/")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
            for made in (partial / "tree").rglob("*"):
                # The umask must not be part of a layer.
                made.chmod(0o755 if made.is_dir() else 0o644)
                self._give(made)
            return self._publish(partial, list(entries.values()), shown, sum(map(len, files.values())))

    def add_snapshot(self, snapshot: Snapshot) -> Layer:
        """A snapshot's changes as a layer of their own, to lie over the layers that it belongs to."""
        with self._explained(), self.scratch() as partial:
            tree = partial / "tree"
            tree.mkdir()
            try:
                with opened(str(tree)) as target, snapshot.path.open("rb") as source:
                    unpack(source.fileno(), target, owner=self._owner)
            except BadChanges as error:
                raise EtudeError(f"snapshot {snapshot.digest[:12]} cannot be unpacked: {error}") from None
            return self._publish(partial, None, (), snapshot.size, _digest_of_changes(snapshot.digest))

    def add_packed(self, file: int, digest: str, shows: tuple[str, ...], *, listed: bool) -> Layer:
        """A layer that another store packed; refused where its content is not what its digest says."""
        with suppress(FileNotFoundError):
            return self._load(digest)
        with self._explained(), self.scratch() as partial:
            tree = partial / "tree"
            tree.mkdir()
            self._give(tree)
            try:
                with opened(str(tree)) as target:
                    unpack(file, target, owner=self._owner)
            except BadChanges as error:
                raise EtudeError(f"layer {digest[:12]} cannot be unpacked: {error}") from None
            entries = Walk(tree, "/", _ANY).into(None) if listed else None
            found = _digest_of_changes(_file_digest(file)) if entries is None else digest_of(entries, shows)
            if found != digest:
                raise EtudeError(f"layer {digest[:12]} came with another content than its name says; send it again")
            return self._publish(partial, entries, shows, os.fstat(file).st_size, digest)

    def pack_layer(self, layer: Layer) -> tuple[int, bool]:
        """A file without a name that `add_packed` of another store takes, which the caller closes; whether listed."""
        listed = bool(_facts(layer.path.parent)["listed"])
        file = self.unnamed_file()
        try:
            with opened(str(layer.path)) as root:
                pack(root, file)
            if not listed and _digest_of_changes(_file_digest(file)) != layer.digest:
                # Its name is of the bytes that a sandbox's changes were packed into, and other file systems have holes
                # elsewhere.
                raise EtudeError(f"layer {layer.digest[:12]} cannot be packed as it was; make it again in this store")
        except BaseException as error:
            os.close(file)
            if isinstance(error, OSError | BadChanges):
                raise SandboxFailure("store", f"layer {layer.digest[:12]} cannot be packed: {error}") from error
            raise
        return file, listed

    def layer(self, digest: str) -> Layer:
        try:
            return self._load(digest)
        except FileNotFoundError:
            raise EtudeError(f"the store {self.root} has no layer {digest[:12]}; make it again") from None

    def snapshot(self, digest: str) -> Snapshot:
        path = self.root / "snapshots" / f"{digest}.changes"
        try:
            _check_digest(digest)
            facts = json.loads(path.with_suffix(".json").read_text())
            with path.open("rb") as file:
                # Snapshots are read in full here: a damaged one would fail in the middle of a start.
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            raise EtudeError(f"the store {self.root} has no snapshot {digest[:12]}") from None
        if found != digest:
            raise EtudeError(f"snapshot {path} is damaged: its content does not match its name; remove it")
        return Snapshot(digest, path, tuple(self.layer(each) for each in facts["layers"]), path.stat().st_size)

    @contextmanager
    def writing_snapshot(self, layers: tuple[Layer, ...]) -> Iterator[tuple[int, list[Snapshot]]]:
        """A descriptor to write packed changes to; the list holds the snapshot after the block.

        Only the store's own trouble becomes a `SandboxFailure`; what the block raises is raised.
        """
        made: list[Snapshot] = []
        with ExitStack() as stack:
            with _as_failure("a snapshot cannot be written"):
                partial = stack.enter_context(self.scratch())
                file = stack.enter_context((partial / "changes").open("w+b", buffering=0))
            yield file.fileno(), made
            with _as_failure("a snapshot cannot be kept"):
                file.seek(0)
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                size = os.fstat(file.fileno()).st_size
                final = self.root / "snapshots" / f"{digest}.changes"
                facts = partial / "facts"
                facts.write_text(json.dumps({"layers": [layer.digest for layer in layers], "bytes": size}))
                # Facts first: a snapshot without its layers' names could never be used.
                facts.replace(final.with_suffix(".json"))
                (partial / "changes").replace(final)
            made.append(Snapshot(digest, final, layers, size))

    def unnamed_file(self) -> int:
        """A file without a name, for changes on their way from one sandbox to another. The caller closes it.

        On disk and not in memory, where it would count against the sandbox that writes it.
        """
        with _as_failure("a fork cannot be written"):
            if hasattr(os, "O_TMPFILE"):
                return os.open(self.root, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
            with tempfile.TemporaryFile(dir=self.root) as file:
                return os.dup(file.fileno())

    def hold(self, layer: Layer) -> int:
        """Keep a layer from being pruned for as long as the descriptor is open."""
        folder, handle = layer.path.parent, -1
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            # Shared: many sandboxes hold a layer, and a prune needs the lock alone.
            fcntl.flock(handle, fcntl.LOCK_SH)
            # The time of last use, which `prune` sorts by. It is not there where a prune had the lock first.
            os.utime(folder / "layer.json")
        except OSError as error:
            if handle >= 0:
                os.close(handle)
            text = f"layer {layer.digest[:12]} is not in the store any more ({error.strerror}: {folder})"
            raise SandboxFailure("store", text) from None
        return handle

    def prune(self, max_bytes: int) -> list[str]:
        """Remove what was used longest ago until the rest fits; layers in use or named by a snapshot stay."""
        snapshots = sorted((self.root / "snapshots").glob("*.changes"), key=lambda path: path.stat().st_mtime)
        layers = sorted((self.root / "layers").iterdir(), key=lambda path: (path / "layer.json").stat().st_mtime)
        frozen = sorted((self.root / "memory").glob("*/facts.json"), key=lambda path: path.stat().st_mtime)
        total = sum(path.stat().st_size for path in snapshots) + sum(_facts(path)["bytes"] for path in layers)
        total += sum(_bytes_in(path.parent) for path in frozen)
        removed: list[str] = []
        for path in frozen:  # the largest, and of no use after the machine's next start
            if total > max_bytes:
                total -= _bytes_in(path.parent)
                with self.scratch() as partial:
                    path.parent.rename(partial / "forgotten")
                removed.append(path.parent.name)
        for path in snapshots:
            if total > max_bytes:
                total -= path.stat().st_size
                path.unlink()
                path.with_suffix(".json").unlink(missing_ok=True)
                removed.append(path.stem)
        # After the removals above: only what is still there names layers.
        naming = [*(self.root / "snapshots").glob("*.json"), *(self.root / "memory").glob("*/facts.json")]
        named = {digest for path in naming for digest in _facts(path)["layers"]}
        for path in layers:
            size = _facts(path)["bytes"]
            if total > max_bytes and path.name not in named and self._forget(path):
                total -= size
                removed.append(path.name)
        return removed

    def _forget(self, folder: Path) -> bool:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        else:
            with self.scratch() as partial:
                # Renamed first, so that nobody can start from a tree that is half removed.
                folder.rename(partial / "forgotten")
            return True
        finally:
            os.close(handle)

    def _load(self, digest: str) -> Layer:
        _check_digest(digest)
        folder = self.root / "layers" / digest
        facts = _facts(folder)
        layer = Layer(digest, folder / "tree", tuple(facts["shows"]))
        if facts["boot"] != boot():
            # The machine went down since; only a layer that was on the disk by then still matches its name.
            if facts["listed"]:
                entries = Walk(folder / "tree", "/", _ANY).into(None)
                if digest_of(entries, layer.shows) != digest:
                    with self.scratch() as partial:
                        folder.rename(partial / "damaged")
                    raise FileNotFoundError(digest)
            _write_facts(folder, facts | {"boot": boot()})
        return layer

    def _publish(
        self, partial: Path, entries: list[TreeEntry] | None, shows: tuple[str, ...], size: int, digest: str = ""
    ) -> Layer:
        name = digest if entries is None else digest_of(entries, shows)
        _write_facts(partial, {"shows": shows, "bytes": size, "boot": boot(), "listed": entries is not None})
        final = self.root / "layers" / name
        with suppress(OSError):  # somebody else made the same one: theirs is as good
            partial.rename(final)
        return self._load(name)

    def _make_base(self, tree: Path, at: str) -> int:
        """The empty tree with the folders that lead to a layer's place; a descriptor of that place."""
        folders = [tree, *(tree / entry.path[1:] for entry in _bases(at))]
        for folder in folders:
            folder.mkdir()
            folder.chmod(0o755)
            self._give(folder)
        return os.open(folders[-1], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _give(self, path: Path) -> None:
        if self._owner is not None:
            os.chown(path, *self._owner, follow_symlinks=False)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            text = f"a layer cannot be made: {error.strerror or error}"
            raise EtudeError(f"{text}; look at {error.filename or self.root}") from error

    # Work in progress lies under a locked name, so that what a dead process left differs from what is being made.

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """An empty folder that is gone afterwards, or at the latest when the next store is opened."""
        name = secrets.token_hex(8)
        folder, lock = self.root / "partial" / name, self.root / "partial" / f"{name}.lock"
        # The folder and its lock appear together: `_remove_dead` of another process must not see one without the other.
        with self._alone():
            handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(handle, fcntl.LOCK_EX)
            os.write(handle, json.dumps({"pid": os.getpid(), "boot": boot()}).encode())
            folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)
            os.close(handle)

    def _remove_dead(self) -> None:
        with self._alone():
            for lock in (self.root / "partial").glob("*.lock"):
                handle = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
                with suppress(OSError):
                    # A lock that can be had has no living owner.
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                    lock.unlink()
                os.close(handle)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        handle = os.open(self.root / "partial", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _check_digest(digest: str) -> None:
    """A name that is no digest is not there: another machine may send one that is a path out of the store."""
    if not re.fullmatch(r"[0-9a-f]{64}", digest, re.ASCII):
        raise FileNotFoundError(digest)


def _digest_of_changes(packed: str) -> str:
    """The name of a layer that is a snapshot's changes."""
    return hashlib.sha256(b"changes\0" + packed.encode()).hexdigest()


def _file_digest(file: int) -> str:
    with open(os.dup(file), "rb") as stream:  # noqa: PTH123 - a descriptor
        stream.seek(0)
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _shown(shows: Sequence[str] | None) -> tuple[str, ...]:
    if shows is None:
        return (*system_folders(), *interpreter_folders())
    # A path with '..' would mount another host folder than the one that was named.
    for path in shows:
        if not path.startswith("/") or ".." in path.split("/"):
            raise EtudeError(f"a layer cannot show {path!r}: give an absolute path without '..'")
    return tuple(shows)


def _bases(at: str) -> list[TreeEntry]:
    """The folders that lead to a layer's place."""
    if not at.startswith("/"):
        raise EtudeError(f"a layer cannot be placed at {at!r}: give an absolute path")
    parts = [part for part in at.split("/") if part]
    for part in parts:
        check_path(part)
    return [TreeEntry("/" + "/".join(parts[: end + 1]), "d", 0o755) for end in range(len(parts))]


@contextmanager
def _as_failure(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SandboxFailure("store", f"{what}: {error.strerror or error}") from error


def _facts(path: Path) -> dict[str, Any]:
    file = path / "layer.json" if path.is_dir() or path.suffix != ".json" else path
    facts: dict[str, Any] = json.loads(file.read_text())
    return facts


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _write_facts(folder: Path, facts: dict[str, Any]) -> None:
    working = folder / "layer.json.new"
    working.write_text(json.dumps(facts))
    # Replaced by one rename, as other processes read it at any time.
    working.replace(folder / "layer.json")


def boot() -> str:
    """What tells the machine's present run from those before it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
