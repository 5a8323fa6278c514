"""What a tool may touch: the sandbox's files and programs, the folder `run` stands in, and its own memory.

Everything that depends on the sandbox protocol is here, so that a tool is only what makes it different. Paths are
relative to the workspace or absolute inside it. A file that is not there and a program that takes too long become
`ToolError`; a broken sandbox stays `SandboxFailure`. Knows no tool and no message.
"""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from etude.harness.failures import ToolError
from etude.sandbox.base import WORKSPACE, CommandResult, Process, Sandbox
from etude.sandbox.replace_text import replace_text
from etude.tokens.tokenizer import to_bytes, to_text

# Noise that would make two equal rollouts differ, or waste tokens: pagers, progress bars, colours, hash order, zones.
QUIET: Mapping[str, str] = {
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "TERM": "dumb",
    "NO_COLOR": "1",
    "COLUMNS": "80",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUTF8": "1",
    "PIP_PROGRESS_BAR": "off",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "TQDM_DISABLE": "1",
    "DEBIAN_FRONTEND": "noninteractive",
}
SKIPPED = (".git", "__pycache__", ".venv", "node_modules", ".pytest_cache", ".mypy_cache", ".ruff_cache")
WALK_SECONDS = 20.0
WALK_BYTES = 4 << 20  # of names; a folder with more is cut, and says so
MOST_SLOWDOWN = 8.0  # a limit stretched further would be none
LONGEST_ARGUMENT = 120_000  # bytes of one word of a command line; the kernel takes 128 KiB


class Backend(Protocol):
    """Services that an environment declares beside its files."""

    def ask(self, service: str, query: str) -> str:
        """What one of them answers; raises `ToolError`."""
        ...


@dataclass
class ToolContext:
    """One rollout's hold on its sandbox."""

    place: Sandbox | None  # None: an environment of words alone
    root: str = WORKSPACE
    deadline: float = float("inf")  # on the monotonic clock, when the time of the rollout's tools is over
    directory: str = ""  # where `run` stands
    state: dict[str, Any] = field(default_factory=dict)  # what tools remember, by their name
    delegate: Callable[[str, int], Awaitable[str]] | None = None  # to a sub-agent: task, most turns -> its last words
    backend: Backend | None = None  # services beside the files, where the environment declares some
    strict: bool = True  # whether a call that is nearly right is refused

    def __post_init__(self) -> None:
        self.root = posixpath.normpath(self.root)
        self.directory = self.directory or self.root

    @property
    def sandbox(self) -> Sandbox:
        if self.place is None:
            raise ToolError("Unavailable", "there are no files and no programs here")
        return self.place

    def locate(self, path: str) -> str:
        """The absolute path of something in the workspace; anything else is refused."""
        if "\0" in path:
            raise ToolError("InvalidArguments", "a path cannot hold a NUL byte")
        absolute = posixpath.normpath(posixpath.join(self.root, path))
        if absolute != self.root and not absolute.startswith(self.root.rstrip("/") + "/"):
            raise ToolError("InvalidArguments", f"{path} is outside the workspace")
        return absolute

    def relative(self, absolute: str) -> str:
        return posixpath.relpath(absolute, self.root)

    def slowdown(self) -> float:
        """How much slower than alone a program runs on this machine now: so much more time a tool may take.

        Limits on tools' time are those of an idle machine: while many rollouts share a few cores, each tool takes
        longer through no doing of the agent. Programs that want to run for each core, averaged over a minute; 1 at
        least. Sandboxes elsewhere have their own load, and 1 is never wrong by more than what it was before.
        """
        try:
            waiting = os.getloadavg()[0]
        except OSError:
            return 1.0
        return min(MOST_SLOWDOWN, max(1.0, waiting / (os.cpu_count() or 1)))

    def seconds(self, wanted: float) -> float:
        """At most `wanted`, and no more than the rollout has left (a moment at least, so that nothing is cut at 0).

        On a busy machine more: `wanted` is meant for an idle one.
        """
        return max(0.1, min(wanted * self.slowdown(), self.deadline - time.monotonic()))

    async def read(self, path: str, *, most: int) -> str:
        """A file's text, byte for byte; binary files and those above `most` bytes are refused."""
        absolute = self.locate(path)
        try:
            return _text(path, await self.sandbox.read(absolute, limit=most + 1), most)
        except OSError as error:
            raise _unexpected(path, error) from error

    async def replace(self, path: str, old: str, new: str, *, most: int) -> str | None:
        """Puts a text in the place of one that occurs once. None: done; otherwise what `read` would give."""
        absolute = self.locate(path)
        try:
            data = await replace_text(self.sandbox, absolute, to_bytes(old), to_bytes(new), most=most)
        except OSError as error:
            raise _unexpected(path, error) from error
        return None if data is None else _text(path, data, most)

    async def write(self, path: str, text: str) -> None:
        absolute = self.locate(path)
        try:
            await self.sandbox.write(absolute, to_bytes(text))
        except OSError as error:
            raise _unexpected(path, error) from error

    async def run(
        self, argv: Sequence[str], *, seconds: float, directory: str | None = None, max_output: int | None = None
    ) -> CommandResult:
        """A program in the sandbox with a quiet environment, in the workspace unless `directory` is given."""
        _check_words(argv)
        return await self.sandbox.run(
            argv,
            cwd=directory or self.root,
            env=QUIET,
            timeout=self.seconds(seconds),
            max_output=max_output,
        )

    async def spawn(self, argv: Sequence[str]) -> Process:
        """A program that stays until it ends, is stopped, or the sandbox is gone; it has nothing to read."""
        _check_words(argv)
        process = await self.sandbox.spawn(argv, cwd=self.directory, env=QUIET)
        await process.close_stdin()
        return process

    async def walk(self, path: str, *, depth: int | None = None) -> tuple[list[str], bool]:
        """What lies under a folder, sorted, relative to the workspace, folders with a slash; and whether all of it.

        Caches and the like are left out. `find` runs in the sandbox, so that a hostile tree is its problem.
        """
        absolute = self.locate(path)
        prune = [word for name in SKIPPED for word in ("-o", "-name", name)][1:]
        result = await self.run(
            # -H: the folder that was asked for may be a link, those below it are not followed.
            ["find", "-H", absolute]
            + ([] if depth is None else ["-maxdepth", str(depth)])
            + ["(", *prune, ")", "-prune", "-o"]
            + ["-type", "d", "-exec", "printf", r"%s/\0", "{}", "+", "-o", "-exec", "printf", r"%s\0", "{}", "+"],
            seconds=WALK_SECONDS,
            max_output=WALK_BYTES,
        )
        if result.timed_out:
            raise ToolError("Timeout", f"listing {path} took too long")
        names = to_text(result.stdout).split("\0")[:-1]
        if absolute in names:
            raise ToolError("UnexpectedEnvironment", f"{path} is a file, not a folder")
        if not names:
            raise ToolError("UnexpectedEnvironment", f"{path}: no such folder, or one that is left out")
        if result.truncated:  # somewhere in the middle a line says so
            names = [name for name in names if "\n" not in name]
        prefix = self.root.rstrip("/") + "/"
        found = sorted(name.removeprefix(prefix) for name in names if name != absolute.rstrip("/") + "/")
        return found, not result.truncated


def _check_words(argv: Sequence[str]) -> None:
    for word in argv:
        if "\0" in word:
            raise ToolError("InvalidArguments", "an argument cannot hold a NUL byte")
        if len(to_bytes(word)) > LONGEST_ARGUMENT:
            raise ToolError("InvalidArguments", f"an argument is longer than {LONGEST_ARGUMENT} bytes")


def _text(path: str, data: bytes, most: int) -> str:
    if len(data) > most:
        raise ToolError("UnexpectedEnvironment", f"{path} is larger than {most} bytes")
    if b"\0" in data:
        raise ToolError("UnexpectedEnvironment", f"{path} is a binary file")
    return to_text(data)


def _unexpected(path: str, error: OSError) -> ToolError:
    return ToolError("UnexpectedEnvironment", f"{path}: {(error.strerror or 'cannot be opened').lower()}")
