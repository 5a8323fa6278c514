"""Unified diffs, as git writes them, applied to files in memory. Strict: a hunk fits exactly where it says or nowhere.

A patch is data that somebody else wrote: its paths are checked, it is never given to a program, and what it cannot say
in text (binary changes, links) is refused. Knows no task and no repository.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from etude.core.errors import EtudeError
from etude.tasks.format.file_tree import check_path

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NO_END = "\\ No newline at end of file"


@dataclass
class Hunk:
    """Lines that are there before, lines that are there after, and where."""

    old_start: int
    new_start: int
    old: list[str] = field(default_factory=list)  # with their line ends
    new: list[str] = field(default_factory=list)


@dataclass
class FilePatch:
    """What a patch does to one file; None stands for a file that is not there."""

    old: str | None
    new: str | None
    hunks: list[Hunk] = field(default_factory=list)


def apply(patch: str, files: Mapping[str, bytes], *, reverse: bool = False) -> dict[str, bytes | None]:
    """The files that a patch changes, as it leaves them; None for one that it deletes. `reverse` undoes the patch."""
    changed: dict[str, bytes | None] = {}
    for part in read(patch):
        old, new = (part.new, part.old) if reverse else (part.old, part.new)
        before = b"" if old is None else files.get(old)
        if before is None:
            raise EtudeError(f"the patch changes {old}, which is not there")
        if old is None and new in files:
            raise EtudeError(f"the patch makes {new}, which is there already")
        after = _patched(before.decode("utf-8", "surrogateescape"), part.hunks, reverse, str(old or new))
        if old is not None and old != new:
            changed[old] = None
        if new is not None:
            changed[new] = after.encode("utf-8", "surrogateescape")
    if not changed:
        raise EtudeError("the patch changes no file: it is empty or no unified diff")
    return changed


def read(patch: str) -> Iterator[FilePatch]:
    """The files of a patch. Text before the first of them is somebody's message and is left alone."""
    lines = _lines(patch)
    at = 0
    renamed: dict[str, str] = {}
    while at < len(lines):
        line = lines[at].rstrip("\r\n")
        if line.startswith(("GIT binary patch", "Binary files ")):
            raise EtudeError("the patch changes a binary file, which a text cannot say")
        if line.startswith(("new file mode 12", "old mode 12", "new mode 12")):
            raise EtudeError("the patch makes a link, which is refused")
        if line.startswith(("rename from ", "rename to ")):
            renamed[line.split()[1]] = _checked(line.split(" ", 2)[2])
        if line.startswith("diff --git ") or at == len(lines) - 1:
            if len(renamed) == 2:  # moved, and not a line changed
                yield FilePatch(renamed["from"], renamed["to"])
            renamed = {}
        if line.startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ "):
            found = FilePatch(_path(line, "a/"), _path(lines[at + 1].rstrip("\r\n"), "b/"))
            at += 2
            while at < len(lines) and (head := _HUNK.match(lines[at])):
                hunk = Hunk(int(head[1]), int(head[3]))
                at = _read_hunk(lines, at + 1, hunk, int(head[2] or 1), int(head[4] or 1))
                found.hunks.append(hunk)
            if not found.hunks or (found.old is None and found.new is None):
                raise EtudeError(f"the patch of {found.new or found.old} has no hunk that can be read")
            renamed = {}
            yield found
            continue
        at += 1


def _path(line: str, prefix: str) -> str | None:
    name = line[4:].split("\t")[0].strip()
    if name.startswith('"'):
        raise EtudeError(f"the patch names a file with odd characters, which is refused: {name[:80]}")
    return None if name == "/dev/null" else _checked(name.removeprefix(prefix))


def _checked(path: str) -> str:
    check_path(path)
    return path


def _lines(text: str) -> list[str]:
    """Lines as diffs count them: a form feed is no end of a line."""
    return [line for line in re.split(r"(?<=\n)", text) if line]


def _read_hunk(lines: Sequence[str], at: int, hunk: Hunk, old: int, new: int) -> int:
    while at < len(lines) and (len(hunk.old) < old or len(hunk.new) < new or lines[at].startswith(_NO_END)):
        kind, text = lines[at][:1], lines[at][1:]
        if lines[at].startswith(_NO_END):
            for side in _last(lines[at - 1][:1], hunk):
                side[-1] = side[-1].rstrip("\r\n")
        elif kind in ("\n", "\r"):  # an empty line whose space an editor took away
            hunk.old.append(lines[at])
            hunk.new.append(lines[at])
        elif kind in (" ", "-", "+"):
            if kind != "+":
                hunk.old.append(text)
            if kind != "-":
                hunk.new.append(text)
        else:
            break
        at += 1
    if (len(hunk.old), len(hunk.new)) != (old, new):
        raise EtudeError(f"a hunk of the patch says {old} and {new} lines and has {len(hunk.old)} and {len(hunk.new)}")
    return at


def _last(kind: str, hunk: Hunk) -> list[list[str]]:
    """The sides whose last line ends the file."""
    return [side for side, mark in ((hunk.old, "+"), (hunk.new, "-")) if kind != mark and side]


def _patched(text: str, hunks: Sequence[Hunk], reverse: bool, path: str) -> str:
    lines = _lines(text)
    out: list[str] = []
    at = 0
    for hunk in hunks:
        old, new = (hunk.new, hunk.old) if reverse else (hunk.old, hunk.new)
        start = hunk.new_start if reverse else hunk.old_start
        line = start - 1 if old else start  # a hunk that only adds names the line before it
        if line < at or lines[line : line + len(old)] != old:
            raise EtudeError(f"the patch does not fit {path} at line {start}: other lines are there")
        out += [*lines[at:line], *new]
        at = line + len(old)
    return "".join([*out, *lines[at:]])
