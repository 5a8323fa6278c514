"""Longer sequences: a trained model gets positions for them, and goes on learning from whole repositories.

The step is that of pretraining; heads that predict further ahead learn along. Beside the loss as a whole it is
measured by position: a model that makes nothing of what lies far back is no better late in a sequence than early.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from etude.core.cluster_settings import LearnerRanks
from etude.core.progress import track
from etude.core.run import Run
from etude.core.settings import ExtendSettings, PretrainSettings, RunSettings
from etude.learn.learner import AnyLearner
from etude.learn.pretrain import Documents, pretrain, take, to_score
from etude.model.checkpoint.directory import outline
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.yarn import Yarn

STAGE = "extend"
SHORTEST = 128  # tokens: the first range of positions; each of the next ones is twice as long


def stretched(config: ModelConfig, settings: ExtendSettings, short: int) -> ModelConfig:
    """The shape with positions for `settings.sequence` tokens; `short` is the length it was trained at."""
    longest = max(config.max_position_embeddings, settings.sequence)
    yarn = config.yarn
    if settings.yarn:
        yarn = Yarn(settings.yarn, settings.yarn_positions or short) if settings.yarn > 1 else None
    return replace(
        config, max_position_embeddings=longest, rope_theta=settings.rope_theta or config.rope_theta, yarn=yarn
    )


def stretch(decoder: Decoder, settings: ExtendSettings, short: int) -> Decoder:
    """The same weights, with rotary positions as the settings ask for. Of an outline, an outline."""
    if decoder.reader is not None:
        longer = outline(stretched(decoder.config, settings, short))
        longer.reader = decoder.reader
        return longer
    weight = decoder.lm_head.weight
    # A new decoder, since the rotary tables follow from its shape. The weights know nothing of positions.
    longer = Decoder(stretched(decoder.config, settings, short)).to(weight.device, weight.dtype)
    longer.load_state_dict(decoder.state_dict())
    return longer


def extend(
    run: Run,
    decoder: Decoder,
    train: Documents,
    held_out: Documents | None,
    settings: ExtendSettings,
    machine: RunSettings,
    tokenizer: Path,
    more: Callable[[Decoder], dict[str, float]] | None = None,
    ranks: LearnerRanks | None = None,
) -> Path:
    """Trains a stretched decoder, or continues where the run stopped; returns the last checkpoint.

    Evaluated before the first step and after the last, and in between if the settings say so; `more` are evaluations
    that are somebody else's, of a whole decoder; where several ranks share one, they are left out.
    """
    first = held_out.position() if held_out is not None else {}

    def measure(learner: AnyLearner) -> dict[str, float]:
        found: dict[str, float] = {}
        if held_out is not None:
            held_out.seek(first)
            found = loss_by_position(learner, held_out, settings.eval_tokens, settings.micro_tokens)
        if more is None or (ranks is not None and ranks.ranks > 1):
            return found
        return found | more(learner.decoder)

    other = ("model", "rope_theta", "yarn", "yarn_positions")
    taken = {name: value for name, value in vars(settings).items() if name not in other}
    return pretrain(
        run,
        decoder,
        train,
        held_out,
        PretrainSettings(**taken),
        machine,
        tokenizer,
        stage=STAGE,
        measure=measure,
        ranks=ranks,
    )


def loss_by_position(learner: AnyLearner, documents: Documents, tokens: int, micro_tokens: int) -> dict[str, float]:
    """The mean loss of the next `tokens` of the documents, whole and in ranges of positions, each twice as long.

    `held_out_loss_to_512` is that of the tokens at 256 to 511.
    """
    nats: dict[int, float] = {}
    seen: dict[int, int] = {}
    with track("evaluating", tokens, "tokens") as bar:
        while bar.done < tokens:
            pieces = take(documents, min(micro_tokens, tokens - int(bar.done)), learner.ranks)
            for scores_T in learner.score(to_score(pieces)):
                start, stop = 1, SHORTEST
                while start < len(scores_T):
                    part_T = scores_T[start:stop]
                    nats[stop] = nats.get(stop, 0.0) - float(part_T.sum(dtype=np.float64))
                    seen[stop] = seen.get(stop, 0) + len(part_T)
                    start, stop = stop, 2 * stop
            bar.advance(sum(map(len, pieces)))
    found = {"held_out_loss": sum(nats.values()) / max(1, sum(seen.values()))}
    return found | {f"held_out_loss_to_{stop}": nats[stop] / seen[stop] for stop in sorted(nats)}
