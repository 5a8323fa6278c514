"""What of an item only the learner can check, before it computes: found inside a kernel, it would end the process, read
wild memory, or leave the other ranks waiting for the one that found it. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from etude.core.errors import EtudeError
from etude.learn.streams import Item, Label, Twin

if TYPE_CHECKING:
    from etude.model.config import ModelConfig


def check_items(items: Sequence[Item], config: ModelConfig, weights: Collection[str]) -> None:
    """All of it, for a model of this shape and a learner with these weights."""
    check_values(items)
    check_ids(items, config)
    check_teachers(items, config, weights)


def check_values(items: Sequence[Item]) -> None:
    """What no model could compute."""
    for item in items:
        if not 0 <= item.plausible <= 1:
            raise EtudeError(f"an item's experts are plausible at {item.plausible!r}; it must be between 0 and 1")
        # Written as a range, so that NaN is refused as well.
        if not 0 < item.temperature < math.inf:
            raise EtudeError(f"an item's temperature is {item.temperature!r}; it must be a number above 0")
        if item.experts_TBK is not None and 0 in item.experts_TBK.shape[1:]:
            raise EtudeError("an item's experts are of no blocks, or none in a block")
        for stream in item.streams:
            number = stream.head.removeprefix("mtp.")
            known = number != stream.head and number.isascii() and number.isdecimal() and int(number) > 0
            if stream.head != "main" and not known:
                raise EtudeError(
                    f"a stream's head is {stream.head!r}; it must be 'main', or 'mtp.' and a number from 1"
                )


def check_ids(items: Sequence[Item], config: ModelConfig) -> None:
    """Tokens, labels and heads that the model does not have."""
    vocabulary, deepest = config.vocab_size, config.num_nextn_predict_layers
    for item in items:
        rows = [item.tokens_T]
        for stream in item.streams:
            if stream.depth > deepest:
                raise EtudeError(f"a stream asks for the head {stream.head!r}; the model has {deepest} MTP heads")
            if isinstance(stream.target, Label):
                rows.append(stream.target.ids_T[stream.weight_T != 0])
            if isinstance(stream.target, Twin):
                rows.append(stream.target.tokens_U)
        for row in rows:
            if row.dtype.kind not in "iu" or (len(row) and (row.min() < 0 or row.max() >= vocabulary)):
                raise EtudeError(f"a sequence or its labels hold ids outside of 0 to {vocabulary - 1}")
        if not len(item.tokens_T):
            raise EtudeError("a sequence is empty")


def check_teachers(items: Sequence[Item], config: ModelConfig, weights: Collection[str]) -> None:
    """Weights that the learner does not have, and experts of another model."""
    blocks, chosen, every = len(config.sparse_layers), config.num_experts_per_tok, config.num_experts
    for item in items:
        twins = [stream.target for stream in item.streams if isinstance(stream.target, Twin)]
        for twin in twins:
            if twin.weights not in weights:
                raise EtudeError(f"a twin asks for {twin.weights!r} weights; this learner has {list(weights)}")
        routed = [(item.tokens_T, item.experts_TBK), *((twin.tokens_U, twin.experts_UBK) for twin in twins)]
        for tokens, experts in routed:
            if experts is not None and (
                experts.shape != (len(tokens), blocks, chosen) or experts.max(initial=-1) >= config.num_experts
            ):
                raise EtudeError(
                    f"experts of shape {experts.shape} were recorded of other tokens or by another model: these "
                    f"are {len(tokens)} tokens and {blocks} blocks, {chosen} of {every} experts in each"
                )
