"""Source: the tracked files of HEAD in a git checkout, exactly as committed.

A checkout is data that somebody else wrote, and its `.git/config` can name programs to run. So git never sees
it: HEAD is resolved here by reading three small files, and git runs with an empty folder of ours as its
repository and only the checkout's object store borrowed. No hook, filter, fsmonitor, alias, credential helper
or lazy fetch exists there, and the working tree is never looked at.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from etude.core.errors import EtudeError
from etude.corpus.document import Document, File, FilesSettings, Rejected, Want, is_safe_path, read_documents

LONGEST_LISTING = 256_000_000  # bytes; nested trees can list themselves into billions of files
BATCH_BYTES = 16_000_000  # of blobs asked of git at once
BATCH_FILES = 2_000
SMALL_FILE = 4_096  # bytes of HEAD and of a loose ref
PLAIN_FILES = (b"100644", b"100755", b"100664")  # neither links nor submodules
OBJECT_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
SHALLOW = re.compile(r"(?:[0-9a-f]{40,64}\n)*")
MOST_SHALLOW = 1 << 20  # bytes
REF_NAME = re.compile(r"refs/[\w.@+/-]+")


class Git:
    """The tracked files of a checkout's HEAD; one checkout is one repository."""

    class Settings(FilesSettings):
        timeout: float = Field(default=300, gt=0, description="seconds that one call of git may take")

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._root = Path(settings.path).expanduser()
        self.name = settings.name or self._root.resolve().name

    def documents(self) -> Iterator[Document | Rejected]:
        return self.documents_from(0)

    def documents_from(self, start: int) -> Iterator[Document | Rejected]:
        with open_reader(self._root, self.name, self.settings.timeout) as reader:
            yield from read_documents(self.name, self.settings, reader.read, lambda path: self.name, start)


@contextlib.contextmanager
def open_reader(root: Path, name: str, timeout: float) -> Iterator[Reader]:
    """A reader of the commit that HEAD of a checkout names."""
    if not root.is_dir():
        raise EtudeError(f"the checkout {root} does not exist; correct `path` of source {name}")
    if shutil.which("git") is None:
        raise EtudeError(f"the source {name} needs the program git: install it, or use a `folder` source")
    store = find_store(root)
    commit = resolve_head(store, root)
    with tempfile.TemporaryDirectory(prefix="etude-git-") as empty:
        reader = Reader(store, commit, Path(empty), timeout)
        reader.cut = copy_cut(store, Path(empty))
        yield reader


def copy_cut(store: Path, to: Path) -> frozenset[str]:
    """The commits whose parents a shallow clone lacks; git has to be told of them beside their objects."""
    with contextlib.suppress(FileNotFoundError), (store / "shallow").open() as file:
        cut = file.read(MOST_SHALLOW)
        if SHALLOW.fullmatch(cut):
            (to / "shallow").write_text(cut)
            return frozenset(cut.split())
    return frozenset()


class TooLong(EtudeError):
    """Git gave more than it was allowed to."""


@dataclass(frozen=True)
class Blob:
    path: str
    id: str
    size: int


class Reader:
    """Lists and reads the blobs of one commit."""

    def __init__(self, store: Path, commit: str, empty: Path, timeout: float) -> None:
        self._store = store
        self.commit = commit
        self._empty = empty
        self._timeout = timeout
        self.cut: frozenset[str] = frozenset()  # commits of a shallow clone whose parents are not there
        (empty / "objects").mkdir()
        (empty / "refs").mkdir()
        (empty / "HEAD").write_text("ref: refs/heads/main\n")
        format_lines = "[extensions]\n\tobjectFormat = sha256\n" if len(commit) == 64 else ""
        version = 1 if format_lines else 0
        (empty / "config").write_text(f"[core]\n\trepositoryformatversion = {version}\n\tbare = true\n{format_lines}")

    def read(self, want: Want, limit: int) -> Iterator[File]:
        batch: list[Blob | File] = []
        size = 0
        for found in self._list(want):
            if isinstance(found, Blob) and found.size > limit:
                found = File(found.path, problem="too big", size=found.size)
            batch.append(found)
            size += found.size if isinstance(found, Blob) else 0
            if size >= BATCH_BYTES or len(batch) >= BATCH_FILES:
                yield from self._flush(batch)
                batch, size = [], 0
        if batch:
            yield from self._flush(batch)

    def _flush(self, batch: Sequence[Blob | File]) -> Iterator[File]:
        """The files of a batch in its order, which is the one in which they were wanted."""
        fetched = self.fetch([found for found in batch if isinstance(found, Blob)])
        for found in batch:
            yield next(fetched) if isinstance(found, Blob) else found

    def _list(self, want: Want) -> Iterator[Blob | File]:
        listing = self.git(["ls-tree", "-r", "-z", "-l", "--full-tree", self.commit], b"", LONGEST_LISTING)
        for line in listing.split(b"\0")[:-1]:
            facts, _, raw = line.partition(b"\t")
            mode, kind, name, size = facts.split()
            path = raw.decode("utf-8", "replace")
            if kind != b"blob" or not want(path):
                continue
            if not is_safe_path(path) or "\N{REPLACEMENT CHARACTER}" in path:
                yield File(ascii(path)[1:-1], problem="unsafe name")
            elif mode not in PLAIN_FILES or not size.isdigit():  # a link, or a blob that a partial clone lacks
                yield File(path, problem="link or unreadable")
            else:
                yield Blob(path, name.decode(), int(size))

    def fetch(self, batch: Sequence[Blob]) -> Iterator[File]:
        asked = "".join(f"{blob.id}\n" for blob in batch).encode()
        # Beside its bytes each blob has a line of git's, which is shorter than that.
        expected = sum(blob.size for blob in batch) + 200 * len(batch)
        output = self.git(["cat-file", "--batch"], asked, expected)
        at = 0
        for blob in batch:
            end = output.index(b"\n", at)
            if output[at:end].split()[1:] != [b"blob", str(blob.size).encode()]:
                raise EtudeError(f"git does not give back {blob.path} as listed: the checkout {self._store} is damaged")
            yield File(blob.path, output[end + 1 : end + 1 + blob.size])
            at = end + 1 + blob.size + 1

    def git(self, argv: Sequence[str], stdin: bytes, limit: int) -> bytes:
        """Output of git, at most `limit` bytes of it, before the deadline."""
        # Nothing of ours or of the user: a configuration could name programs to run.
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self._empty),
            "LC_ALL": "C",
            "GIT_DIR": str(self._empty),
            "GIT_OBJECT_DIRECTORY": str(self._store / "objects"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_ALLOW_PROTOCOL": "none",
            "GIT_TERMINAL_PROMPT": "0",
        }
        # Files, not pipes, for input and errors: only one stream is left to read, so nothing can block in a circle.
        with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as errors:
            asked.write(stdin)
            asked.seek(0)
            process = subprocess.Popen(
                ["git", "--no-pager", *argv],
                stdin=asked,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                cwd=self._empty,
                start_new_session=True,
            )
            late = threading.Event()

            def stop() -> None:
                late.set()
                _kill(process)

            timer = threading.Timer(self._timeout, stop)
            timer.start()
            assert process.stdout is not None
            try:
                # At most so much: a listing without an end must not fill the memory.
                output = process.stdout.read(limit + 1)
                if len(output) > limit:
                    raise TooLong(f"git {argv[0]} gave more than {limit} bytes: {self._store} is no ordinary checkout")
                code = process.wait()
            finally:
                timer.cancel()
                _kill(process)
                process.wait()
                process.stdout.close()
            if late.is_set():
                raise EtudeError(f"git {argv[0]} took longer than {self._timeout:g} s; raise `timeout` of the source")
            errors.seek(0)
            message = errors.read(500).decode("utf-8", "replace").strip()
            if code != 0:
                raise EtudeError(f"git cannot read {self._store}: {message.splitlines()[0] if message else code}")
            return output


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends git and whatever it started. Once it was waited for, its number may be somebody else's."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def find_store(root: Path) -> Path:
    """The folder that holds HEAD and the objects: `.git`, or the root itself of a bare repository."""
    for store in (root / ".git", root):
        if (store / "HEAD").is_file() and (store / "objects").is_dir():
            for needed in (store, store / "objects"):
                if not needed.resolve().is_relative_to(root.resolve()):
                    raise EtudeError(f"{needed} points outside the checkout: give the path of the repository itself")
            return store.resolve()
    if (root / ".git").is_file():
        raise EtudeError(f"{root} is a linked worktree or submodule: give the path of the main checkout, or clone it")
    raise EtudeError(f"{root} is not a git checkout: it has no .git folder; use a `folder` source")


def resolve_head(store: Path, root: Path) -> str:
    """The commit that HEAD names, without asking git, which would read the configuration."""
    head = _read_small(store / "HEAD")
    if OBJECT_ID.fullmatch(head):
        return head
    name = head.removeprefix("ref:").strip()
    # The name becomes part of a path.
    if head.startswith("ref:") and REF_NAME.fullmatch(name) and ".." not in name:
        loose = store / name
        if loose.is_file() and loose.resolve().is_relative_to(store) and OBJECT_ID.fullmatch(_read_small(loose)):
            return _read_small(loose)
        packed = store / "packed-refs"
        # A link could lead to any file of whoever runs this.
        if packed.is_file() and not packed.is_symlink():
            with packed.open("rb") as file:
                for line in iter(lambda: file.readline(SMALL_FILE), b""):
                    commit, _, ref = line.decode("utf-8", "replace").strip().partition(" ")
                    if ref == name and OBJECT_ID.fullmatch(commit):
                        return commit
        raise EtudeError(f"the checkout {root} has no commit on {name}: commit something, or use a `folder` source")
    raise EtudeError(f"cannot read HEAD of the checkout {root}: clone it afresh, or use a `folder` source")


def _read_small(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(SMALL_FILE).decode("utf-8", "replace").strip()
