"""Source: the history of a git repository, each commit a document: its message, then what it changed.

Oldest first, so a repository that grew goes on where it was. Authors are left out. Git is used as git.py uses it: with
an empty repository of ours, so no hook, filter, external diff or text conversion of the checkout can run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import Field

from etude.corpus.document import LICENSE_BYTES, Document, FilesSettings, Rejected
from etude.corpus.licenses import Licenses, is_license_file
from etude.corpus.sources.git import BATCH_BYTES, Reader, TooLong, open_reader

COMMITS_AT_ONCE = 200  # asked of git in one call
LONGEST_LIST = 128_000_000  # bytes of the list of commits: three million
LONGEST_MESSAGES = 64_000_000  # bytes of the commits of one call
NOTHING = ("--no-ext-diff", "--no-textconv", "--no-renames", "--no-color", "--ignore-submodules=all")


class Commits:
    """The commits behind a checkout's HEAD, without merges; one checkout is one repository."""

    class Settings(FilesSettings):
        timeout: float = Field(default=300, gt=0, description="seconds that one call of git may take")
        context: int = Field(default=3, ge=0, description="unchanged lines shown around each change")
        newest: int = Field(default=0, ge=0, description="only so many commits, the newest; 0 is all")

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._root = Path(settings.path).expanduser()
        self.name = settings.name or f"{self._root.resolve().name}-commits"

    def documents(self) -> Iterator[Document | Rejected]:
        return self.documents_from(0)

    def documents_from(self, start: int) -> Iterator[Document | Rejected]:
        with open_reader(self._root, self.name, self.settings.timeout) as reader:
            licenses = Licenses()
            for file in reader.read(is_license_file, LICENSE_BYTES):
                if not file.problem:
                    licenses.add(file.path, file.data.decode("utf-8", "replace"))
            license = licenses.of("commits", "")
            commits = self._list(reader)[start:]
            for at in range(0, len(commits), COMMITS_AT_ONCE):
                batch = commits[at : at + COMMITS_AT_ONCE]
                messages = _messages(reader, batch)
                for commit, message, change in zip(batch, messages, self._changes(reader, batch), strict=True):
                    path = f"commits/{commit}.diff"
                    if change is None:
                        yield Rejected(path, "too big", 0)
                        continue
                    text, problem = _decode(message, change)
                    if len(text) > self.settings.max_file_bytes:
                        problem = "too big"
                    if problem:
                        yield Rejected(path, problem, len(text))
                    else:
                        yield Document(self.name, path, text, license, self.name)

    def _list(self, reader: Reader) -> list[str]:
        newest = [f"--max-count={self.settings.newest}"] if self.settings.newest else []
        listed = reader.git(["rev-list", "--no-merges", *newest, reader.commit], b"", LONGEST_LIST)
        # Without its parent a commit would seem to have written every file.
        return [commit for commit in listed.decode().split()[::-1] if commit not in reader.cut]

    def _changes(self, reader: Reader, commits: Sequence[str]) -> Iterator[bytes | None]:
        """What each commit changed in files of the wanted kinds; None for one that is too large."""
        limit = BATCH_BYTES if len(commits) > 1 else 2 * self.settings.max_file_bytes
        paths = [f":(glob)**/*{suffix}" for suffix in self.settings.suffixes]
        excluded = [f":(exclude,glob){pattern}" for pattern in self.settings.exclude]
        argv = ["diff-tree", "--stdin", "-p", "-r", "--root", f"-U{self.settings.context}", *NOTHING]
        try:
            output = reader.git([*argv, "--", *paths, *excluded], "\n".join([*commits, ""]).encode(), limit)
        except TooLong:
            if len(commits) == 1:
                yield None
                return
            half = len(commits) // 2
            yield from self._changes(reader, commits[:half])
            yield from self._changes(reader, commits[half:])
            return
        yield from _split(output, commits)


def _split(output: bytes, commits: Sequence[str]) -> Iterator[bytes]:
    """The change of each commit. A line that is nothing but its number begins it; no line of a diff looks so."""
    changes: dict[bytes, list[bytes]] = {commit.encode(): [] for commit in commits}
    current: list[bytes] = []
    for line in output.split(b"\n"):
        if line in changes:  # left out altogether where nothing of it was wanted
            current = changes[line]
        else:
            current.append(line)
    for lines in changes.values():
        yield b"\n".join(lines).strip(b"\n")


def _messages(reader: Reader, commits: Sequence[str]) -> Iterator[bytes]:
    output = reader.git(["cat-file", "--batch"], "\n".join([*commits, ""]).encode(), LONGEST_MESSAGES)
    at = 0
    for _ in commits:
        end = output.index(b"\n", at)
        size = int(output[at:end].split()[2])
        yield output[end + 1 : end + 1 + size].partition(b"\n\n")[2].strip()
        at = end + 1 + size + 1


def _decode(message: bytes, change: bytes) -> tuple[str, str]:
    """(text, "") or ("", why not)."""
    if not change:
        return "", "no code changed"
    try:
        text = f"{message.decode('utf-8')}\n\n{change.decode('utf-8')}\n"
    except UnicodeDecodeError:
        return "", "not UTF-8"
    return ("", "binary") if "\0" in text else (text.replace("\r\n", "\n").replace("\r", "\n"), "")
