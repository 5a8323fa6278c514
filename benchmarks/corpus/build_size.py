"""How fast and in how much memory a corpus is built, from the JSONL files that make_text.py wrote.

    python benchmarks/corpus/build_size.py TEXT OUT

Prints MB/s of text read, the seconds of each step and the peak resident memory of the process, of its largest child
and of all its processes together, as one JSON object. Run it at two sizes: the peaks should be equal.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import time
from pathlib import Path

from memory_of_processes import PeakMemory

from etude.core.settings import CorpusSettings, TokensSettings
from etude.corpus.build import build_corpus
from etude.corpus.sources.table import open_sources


def _processor_seconds(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("text", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--tokenizer", type=Path, help="one to use; then there is no fill-in-the-middle either")
    parser.add_argument("--keep", action="store_true", help="leave the corpus there")
    given = parser.parse_args()
    sources = open_sources(
        [{"use": "records", "path": str(given.text), "name": "text", "file": "path", "repository": "repo"}]
    )
    settings = CorpusSettings(max_bytes=0, fim_rate=0.0 if given.tokenizer else 0.3)
    if given.tokenizer:
        shutil.copytree(given.tokenizer, given.out / "tokenizer")
    begun = time.monotonic()
    with PeakMemory(os.getpid(), itself=True) as memory:
        made = build_corpus(sources, settings, TokensSettings(given.vocabulary, 4_000_000), given.out, 0)
    seconds = time.monotonic() - begun
    read = made.funnel.total("read")
    print(made.table(), file=sys.stderr)
    figures = {
        "megabytes": round(read.bytes / 1e6, 1),
        "documents": read.files,
        "kept": made.funnel.total("kept").files,
        "seconds": round(seconds, 1),
        "megabytes_per_second": round(read.bytes / 1e6 / seconds, 2),
        "processor_seconds": round(sum(map(_processor_seconds, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))), 1),
        "tokens": made.tokens("train") + made.tokens("held_out"),
        "steps": made.seconds,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "peak_mib_of_all_processes": memory.peak_mib,
        "peak_child_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
        "fingerprint": made.fingerprint,
    }
    if not given.keep:
        shutil.rmtree(given.out)
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
