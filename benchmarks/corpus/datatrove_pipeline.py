"""The same corpus by `datatrove`: our filters, its MinHash deduplication, its tokens. Run by against_datatrove.py.

    DATATROVE_PYTHON benchmarks/corpus/datatrove_pipeline.py TEXT OUT TOKENIZER_JSON WORKERS

Runs in a virtual environment that has datatrove and, on PYTHONPATH, this repository for the filters alone. Words are
split by its `WhitespaceTokenizer` (spaCy's multi-language one); exact copies are left to MinHash; nothing is shuffled.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from datatrove.data import Document as TroveDocument
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.filters import LambdaFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
from datatrove.pipeline.writers.jsonl import JsonlWriter
from datatrove.utils.hashing import HashConfig
from datatrove.utils.word_tokenizers import WhitespaceTokenizer

from etude.corpus.dedupe import choose_bands
from etude.corpus.document import Document
from etude.corpus.filters import find_problem


def is_good(document: TroveDocument) -> bool:
    path = str(document.metadata["path"])
    return find_problem(Document("", path, document.text, "unknown", "text"), parse=True) is None


def main() -> int:
    text, out, tokenizer, workers = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    buckets, hashes = choose_bands(0.7)
    config = MinhashConfig(5, buckets, hashes, hash_config=HashConfig(precision=32))
    tasks = max(workers, len(list(Path(text).glob("*.jsonl"))))
    signing = MinhashDedupSignature(str(out / "signatures"), config, language=WhitespaceTokenizer())
    kept = str(out / "filtered")
    steps = [
        ([JsonlReader(text), LambdaFilter(is_good), JsonlWriter(kept, compression=None)], tasks),
        ([JsonlReader(kept), signing], tasks),
        ([MinhashDedupBuckets(str(out / "signatures"), str(out / "buckets"), config=config)], buckets),
        ([MinhashDedupCluster(str(out / "buckets"), str(out / "remove"), config=config)], 1),
        (
            [
                JsonlReader(kept),
                MinhashDedupFilter(str(out / "remove")),
                DocumentTokenizer(str(out / "tokens"), tokenizer, eos_token=None, shuffle_documents=False),
            ],
            tasks,
        ),
    ]
    for number, (pipeline, count) in enumerate(steps):
        LocalPipelineExecutor(
            pipeline,
            tasks=count,
            workers=min(workers, count),
            logging_dir=str(out / f"log{number}"),
            start_method="fork",  # its server of forks is waited for by nobody, and its processor time not counted
        ).run()
    sizes = [path.stat().st_size for path in (out / "tokens").rglob("*.ds")]
    print(json.dumps({"tokens": sum(sizes) // 2}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
