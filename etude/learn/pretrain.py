"""Pretraining: pieces of documents in, a model out. The stage is data and a schedule; the step is the learner's.

Where the documents come from is the caller's business: anything that can be taken from, asked for its position
and sent back to one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from etude.core.cluster_settings import LearnerRanks
from etude.core.errors import EtudeError
from etude.core.progress import track
from etude.core.run import Run
from etude.core.settings import PretrainSettings, RunSettings
from etude.core.token_files import Slice
from etude.learn import loop
from etude.learn.drafts import Piece, ids_of
from etude.learn.learner import AnyLearner
from etude.learn.lora import adapt
from etude.learn.start_learner import start_learner
from etude.learn.streams import Ids, Item
from etude.learn.texts import Text, TextFiles, Texts, text_files
from etude.model.decoder import Decoder
from etude.tokens.text_tokenizer import open_tokenizer

STAGE = "pretrain"
POSITION = "data.json"  # in a checkpoint: where in the documents its next batch begins


class Documents(Protocol):
    def take(self, tokens: int) -> Sequence[Ids]: ...

    def position(self) -> dict[str, Any]: ...

    def seek(self, position: Mapping[str, Any]) -> None: ...


@runtime_checkable
class InFiles(Documents, Protocol):
    """Documents that can also say where their next pieces lie: each of several ranks then reads its own."""

    def slices(self, tokens: int) -> Sequence[Slice]: ...


def pretrain(
    run: Run,
    decoder: Decoder,
    train: Documents,
    held_out: Documents | None,
    settings: PretrainSettings,
    machine: RunSettings,
    tokenizer: Path,
    *,
    stage: str = STAGE,
    main: bool = True,
    measure: Callable[[AnyLearner], dict[str, float]] | None = None,
    by_source: Mapping[str, Documents] | None = None,
    ranks: LearnerRanks | None = None,
) -> Path:
    """Trains `decoder`, or continues where the run stopped; returns the last checkpoint.

    Without `main` only the MTP heads learn. What `measure` finds is logged in place of the held-out loss; it is also
    asked before the first step. `by_source` are held-out documents whose loss is logged by name as well: what a model
    loses of what it knew is seen there and not in the whole. A checkpoint that is continued is evaluated before it is.
    """
    adapt(decoder, settings.lora, machine.seed)
    with (
        start_learner(
            decoder,
            settings.optim,
            settings.steps,
            settings.micro_tokens,
            device=machine.device,
            compute=machine.compute,
            lora=settings.lora,
            ranks=ranks,
            threads=machine.threads,
        ) as learner,
        text_files(run.path / f"{stage}-texts") as files,
    ):
        return _train(run, learner, train, held_out, settings, tokenizer, stage, main, measure, by_source, files)


def _train(
    run: Run,
    learner: AnyLearner,
    train: Documents,
    held_out: Documents | None,
    settings: PretrainSettings,
    tokenizer: Path,
    stage: str,
    main: bool,
    measure: Callable[[AnyLearner], dict[str, float]] | None,
    by_source: Mapping[str, Documents] | None,
    files: TextFiles,
) -> Path:
    text = open_tokenizer(tokenizer)
    sizes_V = loop.token_bytes(text)
    heads = loop.trained_heads(learner.decoder.config, settings)
    saved = run.latest(stage)
    if saved is not None:
        learner.restore(saved)
        train.seek(read_position(saved))

    sizes = files.sizes(sizes_V) if learner.ranks > 1 else None

    def draw() -> loop.Draw:
        if sizes is not None and isinstance(train, InFiles):
            texts = [Text.whole(ids) for ids in train.slices(settings.batch_tokens)]
            return loop.labelled_texts(texts, heads, sizes, main)
        pieces = train.take(settings.batch_tokens)
        return loop.labelled([(ids, np.ones(len(ids), np.float32)) for ids in pieces], heads, sizes_V, main)

    def write(directory: Path) -> None:
        text.save(directory)
        (directory / POSITION).write_text(json.dumps(train.position()) + "\n")

    measured = {"": held_out, **{f"_{name}": documents for name, documents in (by_source or {}).items()}}
    starts = {name: documents.position() for name, documents in measured.items() if documents is not None}

    def evaluate() -> dict[str, float]:
        """The same documents each time."""
        found: dict[str, float] = {}
        for name, start in starts.items():
            documents = measured[name]
            assert documents is not None
            documents.seek(start)
            nats, predicted, size = held_out_nats(learner, documents, settings, sizes_V)
            found[f"held_out_loss{name}"] = nats / max(1, predicted)
            found[f"held_out_bits_per_byte{name}"] = loop.bits_per_byte(nats, size)
        return found

    every = settings.eval_every if held_out is not None else 0
    if measure is not None:
        every, evaluate = settings.eval_every or settings.steps, partial(measure, learner)
    # A model that was there before; and only where training begins: a run that continues has this row already.
    if saved is None and every and (measure is not None or settings.model):
        found = evaluate()
        run.log(stage, 0, **found)
        if said := wrong_tokenizer(found.get("held_out_loss", 0.0), learner.decoder.config.vocab_size):
            run.say(f"{stage}: {said}")
    return loop.train(
        run,
        stage,
        learner,
        draw,
        write,
        save_every=settings.save_every,
        eval_every=every,
        evaluate=evaluate if every else None,
        seconds=settings.seconds,
    )


def wrong_tokenizer(loss: float, vocabulary: int) -> str:
    """A sentence where a model that was brought predicts text no better than by guessing; empty otherwise.

    A tokenizer of the right size with other ids cannot be told from the right one before that.
    """
    guess = math.log(vocabulary)
    if loss < guess:
        return ""
    return (
        f"the model begins with a held-out loss of {loss:.2f}, no better than guessing among {vocabulary} ids "
        f"({guess:.2f}): its tokenizer.json is that of another model, or its weights are random"
    )


def held_out_nats(
    learner: AnyLearner, documents: Documents, settings: PretrainSettings, sizes_V: Ids
) -> tuple[float, int, int]:
    """The loss of the next `eval_tokens` of the documents, how many were predicted, and their bytes."""
    nats, predicted, size = 0.0, 0, 0
    with track("evaluating", settings.eval_tokens, "tokens") as bar:
        while bar.done < settings.eval_tokens:
            pieces = take(documents, min(settings.micro_tokens, settings.eval_tokens - int(bar.done)), learner.ranks)
            nats -= sum(float(scores.sum(dtype=np.float64)) for scores in learner.score(to_score(pieces)))
            predicted += sum(len(p) - 1 for p in pieces)
            # On rank 0 alone: bytes are not part of a score.
            size += sum(int(sizes_V[ids_of(p)[1:]].sum()) for p in pieces)
            bar.advance(sum(map(len, pieces)))
    return nats, predicted, size


def take(documents: Documents, tokens: int, ranks: int) -> Sequence[Piece]:
    """The next pieces; for several ranks only where they lie, if that is known."""
    return documents.slices(tokens) if ranks > 1 and isinstance(documents, InFiles) else documents.take(tokens)


def to_score(pieces: Sequence[Piece]) -> Sequence[Item]:
    slices = [piece for piece in pieces if isinstance(piece, Slice)]
    if slices and len(slices) == len(pieces):
        return Texts([Text.whole(ids) for ids in slices])
    return [Item(ids_of(piece), ()) for piece in pieces]


def read_position(directory: Path) -> dict[str, Any]:
    try:
        position: dict[str, Any] = json.loads((directory / POSITION).read_text())
    except (OSError, ValueError):
        raise EtudeError(f"{directory} cannot be resumed: {POSITION} is missing or damaged") from None
    return position
