"""Heads that predict further ahead: made from scratch on a trained model, and taught what the model itself would say.

Head d learns, by KL, the main head's own distribution of the token that both predict. First alone: the model's weights
stand still, so what it says does not change. Later stages (extend, sft) train heads and model together. How often a
draft would be accepted is measured on text that nobody trained on. Who drafts with the heads is the engine's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import Tensor

from etude.core.cluster_settings import LearnerRanks
from etude.core.run import Run
from etude.core.settings import MtpSettings, PretrainSettings, RunSettings
from etude.learn.drafts import Piece, drafts
from etude.learn.learner import AnyLearner
from etude.learn.pretrain import Documents, pretrain, take
from etude.model.checkpoint.outlines import draw_outline
from etude.model.decoder import Decoder

STAGE = "mtp"

Drafted = Callable[[Sequence[Piece]], tuple[Tensor, Tensor]]


def attach(decoder: Decoder, heads: int, seed: int) -> Decoder:
    """The same model with so many new heads; those that it had are gone. Of an outline, an outline."""
    weight, config = decoder.lm_head.weight, replace(decoder.config, num_nextn_predict_layers=heads)
    if (known_reader := decoder.reader) is not None:
        outline = draw_outline(config, seed)
        new_reader = outline.reader
        assert new_reader is not None
        outline.reader = lambda name, x: (new_reader if name.startswith("mtp.") else known_reader)(name, x)
        return outline
    grown = Decoder(config, seed).to(weight.device, weight.dtype)
    known = {name: x for name, x in decoder.state_dict().items() if not name.startswith("mtp.")}
    missing = grown.load_state_dict(known, strict=False).missing_keys
    assert all(name.startswith("mtp.") for name in missing), missing
    return grown


def train_heads(
    run: Run,
    decoder: Decoder,
    train: Documents,
    held_out: Documents | None,
    settings: MtpSettings,
    machine: RunSettings,
    tokenizer: Path,
    ranks: LearnerRanks | None = None,
) -> Path:
    """Trains new heads on `decoder`, or continues where the run stopped; returns the last checkpoint."""
    grown = attach(decoder, settings.heads, machine.seed)
    # All but the heads stand still, to the bit: what the model says must not change while they learn.
    for name, parameter in grown.named_parameters():
        parameter.requires_grad_(name.startswith("mtp."))
    first = held_out.position() if held_out is not None else {}

    def measure(learner: AnyLearner) -> dict[str, float]:
        assert held_out is not None
        held_out.seek(first)
        tokens, micro = settings.eval_tokens, settings.micro_tokens
        return acceptance(learner.decoder, held_out, tokens, micro, learner.drafts, learner.ranks)

    taken = {name: value for name, value in vars(settings).items() if name not in ("model", "heads")}
    return pretrain(
        run,
        grown,
        train,
        held_out,
        PretrainSettings(**taken, mtp_weight=1.0),
        machine,
        tokenizer,
        stage=STAGE,
        main=False,
        measure=measure if held_out is not None and settings.eval_every else None,
        ranks=ranks,
    )


def acceptance(
    decoder: Decoder,
    documents: Documents,
    tokens: int,
    micro_tokens: int,
    drafted: Drafted | None = None,
    ranks: int = 1,
) -> dict[str, float]:
    """How the drafts of each head would fare on the next `tokens` of the documents, each behind the true text.

    `accepted.d` is the mean chance that rejection sampling keeps the draft of head d (the sum over the vocabulary of
    the smaller of the two probabilities), `greedy.d` how often the likeliest tokens agree; `accepted_length` how many
    tokens a step would give, the heads drafting one behind the other. `drafted` asks the ranks that hold the decoder.
    """
    drafted = drafted or partial(drafts, decoder)
    heads = decoder.config.num_nextn_predict_layers
    kept, agreed, seen = [0.0] * heads, [0.0] * heads, [0] * heads
    length = 0.0
    while tokens > 0:
        pieces = take(documents, min(micro_tokens, tokens), ranks)
        tokens -= sum(map(len, pieces))
        # In a piece this short the deepest head predicts nothing.
        chance_ET, agree_ET = drafted([ids for ids in pieces if len(ids) > heads + 1])
        for d in range(heads):
            kept[d] += float(chance_ET[d].sum())
            agreed[d] += float(agree_ET[d].sum())
            seen[d] += chance_ET.shape[1]
        # Cumulative over depths: a draft counts only where all before it were kept.
        length += float(chance_ET.cumprod(0).sum())
    found = {f"accepted.{d + 1}": kept[d] / max(1, seen[d]) for d in range(heads)}
    found |= {f"greedy.{d + 1}": agreed[d] / max(1, seen[d]) for d in range(heads)}
    return found | {"accepted_length": 1 + length / max(1, seen[0])}
