"""Builds a corpus: select documents, train the tokenizer, encode, and only then write the manifest.

    OUT/building/      documents between the steps; gone when the corpus is finished
    OUT/tokenizer/     trained here, unless one is there already or a checkpoint's own is asked for
    OUT/shards/        token ids
    OUT/manifest.json  makes it a corpus

A build that was killed continues where it stood. A finished corpus is returned as it is, and one of other
settings is refused. What is good text and how it is stored is decided in the other files of this room.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, get_args

from etude.core import durable, progress
from etude.core.errors import EtudeError
from etude.core.run_files import changed_keys, with_defaults
from etude.core.settings import CorpusSettings, TokensSettings
from etude.corpus import selection as selecting
from etude.corpus.decontaminate import Forbidden, digest, read_texts
from etude.corpus.document import Source
from etude.corpus.encode import Encoder, write_shards
from etude.corpus.licenses import License
from etude.corpus.manifest import FILE, SHARDS, TOKENIZER, Manifest, load_manifest
from etude.corpus.quality import labels_digest
from etude.corpus.quality_rules import check_quality
from etude.corpus.selection import SPLITS, Selection, select
from etude.corpus.shards import OpenShard
from etude.corpus.sources.table import check_names
from etude.corpus.spool.files import Chosen, Spool
from etude.corpus.stable_random import permuted, stable_hash
from etude.tokens.text_tokenizer import OwnTokenizer, TextTokenizer, open_tokenizer
from etude.tokens.tokenizer import Tokenizer

WORK = "building"
PLAN = "plan.json"
RECORDS = "records"
LOCK = ".lock"
FORMAT = 2  # of what lies in the folder to build in; an unfinished build of another one is begun anew


def build_corpus(
    sources: Sequence[Source],
    settings: CorpusSettings,
    tokens: TokensSettings,
    out: Path,
    seed: int,
    checkpoint: Path | None = None,
) -> Manifest:
    """The corpus in `out`: the finished one when it is there, otherwise built or continued.

    With `checkpoint` its ids are those of that model's own tokenizer, and none is trained.
    """
    check_names(sources)
    _check_licenses(settings.licenses)
    check_quality(settings.quality)
    texts = read_texts(settings.decontaminate)
    plan = _plan(sources, settings, tokens, seed, digest(texts))
    given = open_tokenizer(checkpoint) if checkpoint is not None else None
    if given is not None:
        plan["tokenizer"] = given.fingerprint
    if settings.quality.labels:
        plan["quality_labels"] = labels_digest(Path(settings.quality.labels))
    try:
        out.mkdir(parents=True, exist_ok=True)
        with _alone(out):
            if (out / FILE).exists():
                return _finished(out, plan)
            work = _begin(out, plan)
            if given is not None:
                _put_tokenizer(given, out, work)
            made = _build(sources, settings, tokens, Forbidden(texts, settings.decontaminate_ngram), plan, out, work)
            made.save(out)
            shutil.rmtree(work)
            return made
    except OSError as error:
        raise EtudeError(f"the corpus in {out} cannot be built: {error}; put it right and run it again") from error


def _build(
    sources: Sequence[Source],
    settings: CorpusSettings,
    tokens: TokensSettings,
    forbidden: Forbidden,
    plan: dict[str, Any],
    out: Path,
    work: Path,
) -> Manifest:
    seconds: dict[str, float] = {}
    with _timed(seconds, "select"):
        resumed = (work / selecting.FILE).exists()
        selection = Selection.load(work) if resumed else select(sources, settings, forbidden, work)
    with closing(Spool(work)) as spool:
        with _timed(seconds, "tokenizer"):
            tokenizer = _tokenizer(spool, selection, tokens, out, work, plan["seed"])
        with _timed(seconds, "encode"):
            encoder = Encoder(tokenizer, settings, plan["seed"])
            names = [source.name for source in sources]
            shards = write_shards(spool, selection, names, encoder, out / SHARDS, work / RECORDS)
    return Manifest(
        plan=plan,
        weights={source.name: source.settings.weight for source in sources},
        funnel=selection.funnel,
        stopped=selection.stopped,
        near_duplicates=selection.near_duplicates,
        contaminated=selection.contaminated,
        ignored_texts=forbidden.ignored,
        tokenizer=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        dtype=encoder.dtype,
        by_repository=selection.by_repository,
        shards=shards,
        seconds=seconds,
    )


def _tokenizer(
    spool: Spool, selection: Selection, settings: TokensSettings, out: Path, work: Path, seed: int
) -> TextTokenizer:
    """The tokenizer that is there, or one trained on a random part of the train split."""
    if not (out / TOKENIZER).exists():
        # The train split alone: a vocabulary that has seen held-out text would flatter its loss.
        train = Chosen(spool, selection.sides == SPLITS.index("train"))
        with progress.track("training the tokenizer", unit="files") as bar:
            texts = _sample(spool, train, settings.train_bytes, seed, bar)
            tokenizer = Tokenizer.train(texts, settings.vocab_size)
        _put_tokenizer(OwnTokenizer(tokenizer), out, work)
    return open_tokenizer(out / TOKENIZER)


def _put_tokenizer(tokenizer: TextTokenizer, out: Path, work: Path) -> None:
    """Writes it to its place, unless a killed build did."""
    if (out / TOKENIZER).exists():
        return
    partial = work / TOKENIZER
    tokenizer.save(partial)
    # On the disk before the rename: a folder under its own name is always whole.
    for file in [*partial.rglob("*"), partial]:
        durable.sync(file)
    partial.rename(out / TOKENIZER)


def _sample(spool: Spool, numbers: Chosen, size: int, seed: int, bar: progress.Bar) -> Iterator[str]:
    key = stable_hash(seed, "tokenizer")
    for place in range(len(numbers)):
        text = spool.document(numbers[permuted(place, len(numbers), key)]).text
        yield text[: max(size, 1)]
        bar.advance()
        size -= len(text.encode())
        if size <= 0:
            break


def _plan(
    sources: Sequence[Source], settings: CorpusSettings, tokens: TokensSettings, seed: int, forbidden: str
) -> dict[str, Any]:
    """Everything that the corpus follows from, as JSON."""
    described = [
        {"use": type(source).__name__, **source.settings.model_dump(mode="json"), "name": source.name}
        for source in sources
    ]
    corpus = dataclasses.asdict(settings) | {"sources": described}
    plan = {"corpus": corpus, "tokens": dataclasses.asdict(tokens), "seed": seed, "forbidden_texts": forbidden}
    # As JSON gives it back, so that it equals the plan that is read from disk.
    return dict(json.loads(json.dumps(plan)))


def _with_new_settings(plan: dict[str, Any]) -> dict[str, Any]:
    """A plan that was made before some settings existed, with what they are worth by default."""
    defaults = {"corpus": dataclasses.asdict(CorpusSettings()), "tokens": dataclasses.asdict(TokensSettings())}
    return with_defaults(plan, dict(json.loads(json.dumps(defaults))))


def _begin(out: Path, plan: dict[str, Any]) -> Path:
    """The folder to build in: what a killed build of the same plan left, or an empty one."""
    work = out / WORK
    shards, noted = out / SHARDS, work / PLAN
    if noted.exists():
        before = json.loads(noted.read_text())
        if before.get("format") == FORMAT and _with_new_settings(before["plan"]) == plan:
            return work
        # Trained for the abandoned plan. One that a user put there is not ours to remove.
        if not before["own_tokenizer"]:
            shutil.rmtree(out / TOKENIZER, ignore_errors=True)
        shutil.rmtree(shards, ignore_errors=True)
    elif shards.exists():
        raise EtudeError(f"{shards} is in the way and not part of an unfinished corpus: choose another folder")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    durable.write_whole(
        noted, json.dumps({"plan": plan, "own_tokenizer": (out / TOKENIZER).exists(), "format": FORMAT})
    )
    return work


def _finished(out: Path, plan: dict[str, Any]) -> Manifest:
    made = load_manifest(out)
    if changed := changed_keys(_with_new_settings(made.plan), plan):
        raise EtudeError(
            f"the corpus in {out} was built with other settings ({', '.join(changed)}): "
            "remove it or choose another folder"
        )
    # Opening a shard checks its size and offsets: a damaged corpus is refused before training begins.
    for shard in made.shards:
        OpenShard(out / SHARDS, shard, made.dtype)
    shutil.rmtree(out / WORK, ignore_errors=True)
    return made


def _check_licenses(licenses: Sequence[str]) -> None:
    known = get_args(License)
    for name in licenses:
        if name not in known:
            raise EtudeError(f"corpus.licenses names {name!r}: the classes are {', '.join(known)}")


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Two builds in one folder would write over each other."""
    handle = os.open(out / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EtudeError(
                f"another process is building the corpus in {out}: wait, or choose another folder"
            ) from None
        yield
    finally:
        os.close(handle)


@contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    seconds[step] = round(time.monotonic() - begun, 2)
