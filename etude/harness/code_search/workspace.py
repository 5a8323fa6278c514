"""The files of a sandbox's workspace as an index that is fresh whenever it is asked.

One `find` lists every file with its size and the time of its last change (the inode's own, which programs cannot set
back); what differs from the last list is read again. Files are only ever text here: nothing is run or parsed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from etude.harness.code_search.embedding import WordVectors
from etude.harness.code_search.index import CodeIndex, Found
from etude.harness.failures import ToolError
from etude.harness.tool_context import SKIPPED, ToolContext
from etude.tokens.tokenizer import to_text

ENDINGS = (
    "py pyi js jsx mjs cjs ts tsx c h cc cpp hpp rs go java kt rb php cs swift scala sh sql md rst txt toml cfg yaml"
)
MOST_FILES = 20_000
LARGEST = 400_000  # bytes of a file; larger ones are data
# Of all files: the words of hostile ones take 26 times their size, in the process that all rollouts share.
MOST_BYTES = 16 << 20
STALE_WORDS = 200_000  # that no file has any more; with more of them all is read anew
TOGETHER = 64  # files read at once
LIST_SECONDS = 20.0


@dataclass
class WorkspaceIndex:
    """What was read of a workspace, and when each file had changed."""

    index: CodeIndex
    stamps: dict[str, str] = field(default_factory=dict)

    @classmethod
    def empty(cls, vectors: WordVectors | None) -> WorkspaceIndex:
        return cls(CodeIndex(vectors))

    async def search(self, question: str, most: int, context: ToolContext) -> list[Found]:
        await self.refresh(context)
        return await asyncio.to_thread(self.index.search, question, most)

    async def refresh(self, context: ToolContext) -> int:
        """Reads what is new or changed, forgets what is gone; says how many files that were."""
        now = await _listed(context)
        if self.index.stale_words > STALE_WORDS:  # an agent may write new words in every turn
            self.index, self.stamps = CodeIndex(self.index.vectors), {}
        gone = [path for path in self.stamps if path not in now]
        changed = [path for path, stamp in now.items() if self.stamps.get(path) != stamp]
        for path in gone:
            self.index.drop(path)
            del self.stamps[path]
        for some in _parts(changed, TOGETHER):
            texts = await asyncio.gather(*(_text(path, now[path], context) for path in some))
            # In a thread: cutting thousands of files into words must not stop other rollouts.
            await asyncio.to_thread(self._put, some, texts)
            self.stamps |= {path: now[path] for path in some}
        return len(gone) + len(changed)

    def _put(self, paths: Sequence[str], texts: Sequence[str | None]) -> None:
        for path, text in zip(paths, texts, strict=True):
            if text is None:
                self.index.drop(path)
            else:
                self.index.put(path, text)


async def _listed(context: ToolContext) -> dict[str, str]:
    prune = [word for name in SKIPPED for word in ("-o", "-name", name)][1:]
    named = [word for ending in ENDINGS.split() for word in ("-o", "-name", f"*.{ending}")][1:]
    words = ["find", "-H", context.root, "(", *prune, ")", "-prune", "-o", "-type", "f", "-size", f"-{LARGEST + 1}c"]
    words += ["(", *named, ")", "-printf", r"%C@ %s %P\0"]
    result = await context.run(words, seconds=LIST_SECONDS, max_output=8 << 20)
    if result.timed_out:
        raise ToolError("Timeout", "listing the files took too long")
    if result.code in (126, 127):
        raise ToolError("Unavailable", "there is no find here")
    listed = [line.split(" ", 2) for line in to_text(result.stdout).split("\0")[:-1][:MOST_FILES]]
    # Where the output was cut, words of two lines may stand in one.
    whole = [words for words in listed if len(words) == 3 and words[1].isdecimal() and len(words[1]) < 10]
    found, left = {}, MOST_BYTES
    for changed, size, path in sorted(whole, key=lambda words: (int(words[1]), words[2])):  # large files are data
        left -= int(size)
        if left < 0:
            break
        found[path] = f"{changed} {size}"
    return found


async def _text(path: str, stamp: str, context: ToolContext) -> str | None:
    """None for what is no text, or is gone again, or has grown since it was listed."""
    try:
        return await context.read(path, most=int(stamp.rpartition(" ")[2]))
    except ToolError:
        return None


def _parts(items: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (items[start : start + size] for start in range(0, len(items), size))
