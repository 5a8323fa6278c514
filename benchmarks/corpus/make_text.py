"""Makes a corpus of any size out of the real files of this machine, with a stated share of copies.

    python benchmarks/corpus/make_text.py OUT --gigabytes 8 [--near 0.2] [--exact 0.05] [--seed 0]

Real files (the standard library, installed packages, /usr/share) are cut into blocks: Python at its top-level
statements, other text at empty lines. A document is a draw of blocks of one kind of file, so it looks and parses like
real text and resembles no other as a whole. A stated share of documents are near-duplicates (a few lines of an earlier
one changed), and a stated share exact copies. OUT gets JSONL files of 64 MB with `text`, `path` and `repo`.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import sysconfig
from collections import defaultdict
from pathlib import Path

SUFFIXES = {".py", ".js", ".c", ".h", ".md", ".txt", ".rst", ".pyi", ".sh", ".pl", ".pm", ".hpp", ".cpp"}
LARGEST = 500_000  # bytes of a real file
FILE_BYTES = 64_000_000  # of one JSONL file
RECENT = 2_000  # documents that copies are made of
BLOCKS = (3, 14)  # in a document
TOP_LEVEL = re.compile(r"\n(?=(?:def |class |@|async def ))")


def read_blocks(roots: list[Path], most: int) -> dict[str, list[str]]:
    """Blocks of real text by kind of file, `most` bytes in all."""
    blocks: dict[str, list[str]] = defaultdict(list)
    size = 0
    for root in roots:
        for path in sorted(root.rglob("*")):
            if path.suffix not in SUFFIXES or path.is_symlink() or not path.is_file():
                continue
            if path.stat().st_size > LARGEST:
                continue
            try:
                text = path.read_text(encoding="utf-8").replace("\r\n", "\n")
            except (OSError, UnicodeDecodeError):
                continue
            found = _split_python(text) if path.suffix == ".py" else text.split("\n\n")
            blocks[path.suffix] += [block for block in found if 40 <= len(block) <= 6_000]
            size += len(text)
            if size >= most:
                return blocks
    return blocks


def _split_python(text: str) -> list[str]:
    """Top-level statements; a decorator stays with what it decorates."""
    parts = TOP_LEVEL.split(text)
    whole: list[str] = []
    for part in parts:
        if whole and whole[-1].lstrip().startswith("@") and "\n    " not in whole[-1]:
            whole[-1] += "\n" + part
        else:
            whole.append(part)
    return whole


def edit(text: str, rng: random.Random) -> str:
    """The text with some three of a hundred lines changed."""
    lines = text.split("\n")
    for _ in range(max(1, len(lines) // 30)):
        lines.insert(rng.randrange(len(lines)), f"# note {rng.randrange(10**9)} on revision {rng.randrange(10**9)}")
    return "\n".join(lines)


def make(out: Path, size: int, near: float, exact: float, seed: int, pool: int) -> dict[str, int]:
    rng = random.Random(seed)
    roots = [Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib")), Path("/usr/share")]
    blocks = read_blocks(roots, pool)
    kinds = sorted(blocks)
    weights = [sum(map(len, blocks[kind])) for kind in kinds]
    out.mkdir(parents=True, exist_ok=True)
    recent: list[tuple[str, str]] = []
    counts = {"documents": 0, "near": 0, "exact": 0, "bytes": 0, "files": 0}
    stream, left = None, 0
    while counts["bytes"] < size:
        drawn = rng.random()
        if recent and drawn < near + exact:
            kind, text = rng.choice(recent)
            counts["near" if drawn < near else "exact"] += 1
            text = edit(text, rng) if drawn < near else text
        else:
            kind = rng.choices(kinds, weights)[0]
            text = "\n\n".join(rng.choices(blocks[kind], k=rng.randint(*BLOCKS))) + "\n"
            if len(recent) < RECENT:
                recent.append((kind, text))
            else:
                recent[rng.randrange(RECENT)] = (kind, text)
        if stream is None or left <= 0:
            if stream is not None:
                stream.close()
            stream = (out / f"part-{counts['files']:05}.jsonl").open("w", encoding="utf-8")
            counts["files"] += 1
            left = FILE_BYTES
        number = counts["documents"]
        path = f"repo{number % 997}/file{number}{kind}"
        stream.write(json.dumps({"text": text, "path": path, "repo": f"repo{number % 997}"}) + "\n")
        length = len(text.encode())
        left -= length
        counts["bytes"] += length
        counts["documents"] += 1
    if stream is not None:
        stream.close()
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--gigabytes", type=float, default=8.0)
    parser.add_argument("--near", type=float, default=0.2, help="share of documents that are near-duplicates")
    parser.add_argument("--exact", type=float, default=0.05, help="share of documents that are exact copies")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pool", type=int, default=300_000_000, help="bytes of real text that blocks are drawn from")
    given = parser.parse_args()
    counts = make(given.out, int(given.gigabytes * 1e9), given.near, given.exact, given.seed, given.pool)
    print(json.dumps(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
