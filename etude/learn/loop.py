"""The loop that pretraining and fine-tuning share: draw a batch, step, log, evaluate, save; stop when asked to.

Knows a run and a learner, not where batches come from. One rule keeps a resume exact: everything that the next
batch depends on is in the checkpoint that the loop continues from.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from etude.core.errors import EtudeError
from etude.core.progress import LastStep, last_step, track
from etude.core.run import Run
from etude.core.run_files import read_metrics
from etude.core.settings import PretrainSettings, SftSettings
from etude.core.token_files import Slice
from etude.learn.learner import AnyLearner
from etude.learn.streams import Batch, Floats, Ids
from etude.learn.texts import Text, Texts, labelled_item
from etude.model.config import ModelConfig
from etude.tokens.dialect import Dialect
from etude.tokens.text_tokenizer import TextTokenizer

HOPELESS = 10  # skipped steps before a run in which most are skipped gives up


@dataclass(frozen=True)
class Draw:
    """One step's batch: its loss is the mean over `predicted` tokens, which stand for `bytes` of text.

    Where those who read the batch count them, the metrics have `text_bytes` instead.
    """

    batch: Batch
    predicted: int
    bytes: int


def labelled(
    pieces: Sequence[tuple[Ids, Floats]], heads: Sequence[tuple[str, float]], sizes_V: Ids, main: bool = True
) -> Draw:
    """Token sequences with a weight for each token (1 counts, 0 does not) -> the mean cross-entropy of the main head.

    The mean is over the sum of the weights, so pieces may count less than others.

    `heads` are MTP heads and their share: they learn the main head's distribution of the same tokens. Without `main`
    they learn alone.
    """
    predicted = sum(float(counts_T[1:].sum(dtype=np.float64)) for _, counts_T in pieces)
    items = [labelled_item(tokens_T, counts_T, predicted, heads, main) for tokens_T, counts_T in pieces]
    size = sum(float(sizes_V[tokens_T[1:]] @ counts_T[1:]) for tokens_T, counts_T in pieces)
    return Draw(Batch(items), round(predicted), round(size))


def labelled_texts(texts: Sequence[Text], heads: Sequence[tuple[str, float]], sizes: Slice, main: bool = True) -> Draw:
    """As `labelled` of what lies in files: each rank reads its own, and counts the bytes."""
    predicted = sum(float(np.float32(text.weight)) * text.counted for text in texts)
    return Draw(Batch(Texts(texts, heads, main, predicted, sizes)), round(predicted), 0)


def trained_heads(config: ModelConfig, settings: PretrainSettings | SftSettings) -> list[tuple[str, float]]:
    """The MTP heads that learn beside the main one, each with its weight; adapters leave heads as they are."""
    modules = 0 if settings.lora.rank else config.num_nextn_predict_layers
    return [(f"mtp.{d}", settings.mtp_weight) for d in range(1, modules + 1)]


def token_bytes(tokenizer: TextTokenizer | Dialect) -> Ids:
    """How many bytes of text each id stands for; none for control tokens."""
    return np.array([len(tokenizer.bytes_of(token)) for token in range(tokenizer.vocab_size)])


def bits_per_byte(nats: float, size: int) -> float:
    return nats / math.log(2) / max(1, size)


class TimeBudget:
    """Seconds of a stage, those of earlier commands included, and how many steps fit into them.

    The learner's last step moves with the speed of the steps so far, so that its rate decays before the time is over.
    """

    def __init__(self, most: float, learner: AnyLearner, run: Run, stage: str) -> None:
        self.learner = learner
        rows = [row for row in read_metrics(run.path) if row["stage"] == stage and "seconds" in row]
        self.before, self.began = max((row["seconds"] for row in rows), default=0.0), time.monotonic()
        steps = rows[-1]["step"] - rows[0]["step"] if rows else 0
        each = (rows[-1]["seconds"] - rows[0]["seconds"]) / steps if steps > 0 else 0.0
        self.last = LastStep(most, learner.total_steps, each)
        if learner.steps:  # else the rate would jump back to that of all planned steps, and decay again
            learner.total_steps = last_step(learner.steps, learner.total_steps, most - self.before, each)

    @property
    def seconds(self) -> float:
        # Not rounded: steps of 5 ms would count as no time at all.
        return self.before + time.monotonic() - self.began

    def fit(self) -> float:
        """Called after each step: sets the last one anew; returns the seconds spent."""
        spent = self.seconds
        self.learner.total_steps = self.last.after(self.learner.steps, spent)
        return spent


def train(
    run: Run,
    stage: str,
    learner: AnyLearner,
    draw: Callable[[], Draw],
    write: Callable[[Path], None],
    *,
    save_every: int,
    eval_every: int = 0,
    evaluate: Callable[[], dict[str, float]] | None = None,
    seconds: float = 0.0,
) -> Path:
    """Trains from the learner's step to its last, or until the run is stopped; returns the last checkpoint.

    `write` adds to a checkpoint what `draw` needs to go on. With `seconds` the last step is the last that fits.
    """
    found: dict[str, float] = {}
    time_budget = TimeBudget(seconds, learner, run, stage) if seconds else None
    saved = run.latest(stage)
    last_save = run.step_of(saved) if saved else -1

    background = bool(run.recipe.get("run", {}).get("save_in_background", False))
    pending: ExitStack | None = None  # commits the checkpoint that is being written

    def save() -> None:
        nonlocal last_save, pending
        commit()
        with ExitStack() as folder:
            directory = folder.enter_context(run.checkpoint(stage, learner.steps))
            beside = background and learner.steps < learner.total_steps
            (learner.begin_save if beside else learner.save)(directory)
            write(directory)
            pending = folder.pop_all() if beside else None
        last_save = learner.steps

    def commit() -> None:
        """The checkpoint that is being written, when all ranks have written it."""
        nonlocal pending
        if pending is not None:
            with pending:
                pending = None
                learner.finish_save()

    with track(stage, learner.total_steps, "steps", done=learner.steps) as bar:
        # Ctrl-C is looked for between steps: a step is whole, or not there.
        while learner.steps < learner.total_steps and not run.stopping:
            began = time.perf_counter()
            if learner.saved:
                commit()
            drawn = draw()
            metrics = learner.forward_backward(drawn.batch)
            report = learner.step()
            speed = metrics["forward_tokens"] / (time.perf_counter() - began)
            # Some skipped steps are bad luck; if they are most of them, nothing is being learnt.
            if learner.skipped > max(HOPELESS, learner.steps // 2):
                raise EtudeError(
                    f"{learner.skipped} of {learner.steps} steps of {stage} had gradients that were not finite; "
                    "lower the learning rates and start over with --fresh"
                )
            loss = metrics.get("label_loss", metrics["loss"])
            if "label_loss" in metrics:
                size = round(metrics.get("text_bytes", drawn.bytes))
                report |= {"loss": loss, "bits_per_byte": bits_per_byte(loss * drawn.predicted, size)}
            report |= {"mtp_loss": metrics["mainhead_loss"]} if "mainhead_loss" in metrics else {}
            if time_budget is not None:
                report["seconds"] = round(time_budget.fit(), 4)
            run.log(stage, learner.steps, tokens_per_second=round(speed), **report)
            bar.note(**{"loss": loss, "tokens/s": speed})
            bar.advance()
            last = learner.steps == learner.total_steps
            if evaluate is not None and eval_every and (learner.steps % eval_every == 0 or last):
                found = evaluate()
                run.log(stage, learner.steps, **found)
            if learner.steps % save_every == 0 or last:
                save()
    # Stopped between two saves.
    commit()
    if last_save != learner.steps:
        save()
        commit()
    if learner.steps == learner.total_steps:
        if evaluate is not None and not found:  # killed between the last checkpoint and here
            found = evaluate()
        if time_budget is not None:
            found = found | {"seconds": round(time_budget.seconds, 4)}
        run.finish(stage, steps=learner.steps, skipped=learner.skipped, **found)
    directory = run.latest(stage)
    assert directory is not None
    return directory
