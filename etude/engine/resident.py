"""A second version that stays resident while the first is swapped: what an evaluation is sampled from.

An evaluation takes minutes, and training swaps the weights many times meanwhile. So the weights of its version are
copied, once, into an engine of their own beside the live one, with a cache of its own; the owner steps both in turn.
Knows how to copy an engine; nothing of requests.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.core.settings import EngineSettings
from etude.model.checkpoint.directory import named_weights
from etude.model.decoder import Decoder

if TYPE_CHECKING:
    from etude.engine.engine import Engine

FIRST_NUMBER = 1 << 40  # of its requests: the live engine never gets so far, so a number says whose request it is


def pin(live: Engine, pinned: Engine | None) -> Engine:
    """An engine that keeps the live engine's present version, in the place of one that nobody needs any more."""
    if pinned is None:
        from etude.engine.engine import Engine

        return Engine(copy.deepcopy(live.decoder), _smaller(live.settings), live.version, first=FIRST_NUMBER)
    if pinned.busy:
        raise EtudeError(f"version {pinned.version} is still sampled from, and no more than two versions are resident")

    def load(decoder: Decoder) -> None:
        new = named_weights(live.decoder)
        with torch.no_grad():
            for name, tensor in named_weights(decoder).items():
                tensor.copy_(new[name])

    pinned.update(load, live.version)
    return pinned


def refuse(version: Version, resident: list[Version]) -> EtudeError:
    there = " and ".join(map(str, resident))
    return EtudeError(f"the request is for version {version}, which is not resident; there: {there}")


def _smaller(settings: EngineSettings) -> EngineSettings:
    """Half of the places and of the cache, but enough for one request of any length."""
    least = -(-settings.max_length // settings.block_tokens) * settings.block_tokens
    tokens = min(settings.cache_tokens, max(settings.cache_tokens // 2, least))
    return replace(settings, max_running=max(1, settings.max_running // 2), cache_tokens=tokens)
