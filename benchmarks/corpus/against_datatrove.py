"""MB/s of text through filters, near-duplicates and tokens: `etude corpus` and `datatrove` on the same files and cores.

    python -m venv TROVE && TROVE/bin/pip install 'datatrove[io,processing]' spacy tokenizers pydantic numpy
    python benchmarks/corpus/against_datatrove.py TEXT WORK --datatrove TROVE/bin/python [--cores 2]

TEXT is what make_text.py wrote. Both use the same filters, the same tokenizer (trained beforehand) and the same number
of MinHash bands and rows. Wall seconds, processor seconds, peak memory of all processes together, and the ratios, as
one JSON object; MB for each processor-second is what to compare on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

from memory_of_processes import PeakMemory

from etude.tokens.tokenizer import Tokenizer

HERE = Path(__file__).parent
LIMIT = 6 * 3600  # seconds for one arm


def train_tokenizer(text: Path, out: Path) -> None:
    with min(text.glob("*.jsonl")).open(encoding="utf-8") as lines:
        Tokenizer.train((json.loads(line)["text"] for line in islice(lines, 600)), 8192).save(out)


def measure(argv: list[str], cores: set[int], **environment: str) -> dict[str, Any]:
    """Runs an arm on these cores; the last line of its output is a JSON object."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with PeakMemory(os.getpid()) as memory:
        done = subprocess.run(
            argv,
            stdout=subprocess.PIPE,
            env=os.environ | environment,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
            timeout=LIMIT,
            check=True,
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    figures = {"wall_seconds": round(time.monotonic() - begun, 1), "processor_seconds": round(spent, 1)}
    figures["peak_mib_of_all_processes"] = memory.peak_mib
    return figures | json.loads(done.stdout.decode().strip().splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("text", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--datatrove", required=True, help="the Python of an environment that has datatrove")
    parser.add_argument("--cores", type=int, default=2)
    given = parser.parse_args()
    shutil.rmtree(given.work, ignore_errors=True)
    tokenizer, cores = given.work / "tokenizer", set(sorted(os.sched_getaffinity(0))[: given.cores])
    train_tokenizer(given.text, tokenizer)
    text, threads = str(given.text), {"RAYON_NUM_THREADS": str(len(cores))}
    size = sum(path.stat().st_size for path in given.text.glob("*.jsonl"))
    ours = measure(
        [sys.executable, str(HERE / "build_size.py"), text, str(given.work / "etude"), "--tokenizer", str(tokenizer)],
        cores,
        **threads,
    )
    theirs = measure(
        [
            *(given.datatrove, str(HERE / "datatrove_pipeline.py"), text, str(given.work / "datatrove")),
            *(str(tokenizer / "tokenizer.json"), str(len(cores))),
        ],
        cores,
        PYTHONPATH=str(HERE.parent.parent),
        RAYON_NUM_THREADS="1",  # its workers share the cores already
    )
    for arm in (ours, theirs):
        arm["megabytes_per_second"] = round(size / 1e6 / arm["wall_seconds"], 2)
        arm["megabytes_per_processor_second"] = round(size / 1e6 / arm["processor_seconds"], 2)
    print(
        json.dumps(
            {
                "megabytes": round(size / 1e6, 1),
                "cores": len(cores),
                "etude": ours,
                "datatrove": theirs,
                "ratio": round(theirs["wall_seconds"] / ours["wall_seconds"], 2),
                "ratio_of_processor_seconds": round(theirs["processor_seconds"] / ours["processor_seconds"], 2),
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
