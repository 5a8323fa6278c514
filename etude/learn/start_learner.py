"""A learner for a stage: in this process alone, or with the ranks that the recipe asks for.

One rank is the plain `Learner` and loads nothing of torch.distributed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from etude.core.cluster_settings import LearnerRanks
from etude.core.settings import ComputeSettings, LoraSettings, OptimSettings
from etude.learn.learner import AnyLearner, Learner
from etude.learn.parallel.layout import Layout
from etude.model.decoder import Decoder
from etude.model.training import ready, set_up


@contextmanager
def start_learner(
    decoder: Decoder,
    optim: OptimSettings,
    total_steps: int,
    micro_tokens: int,
    *,
    device: str = "cpu",
    compute: ComputeSettings | None = None,
    lora: LoraSettings | None = None,
    frozen: Decoder | None = None,
    ranks: LearnerRanks | None = None,
    threads: int = 0,
) -> Iterator[AnyLearner]:
    """Trains `decoder`, which has its adapters already where `lora` says so; ends other ranks with the block."""
    compute, ranks = compute or ComputeSettings(), ranks or LearnerRanks()
    layout = Layout.of(ranks)
    if layout.ranks == 1:
        ready(decoder, compute, device, micro_tokens)
        if frozen is not None:
            set_up(frozen, compute, device)
        yield Learner(decoder, optim, total_steps, micro_tokens, device, frozen)
        return
    from etude.core.process import available_cores
    from etude.learn.parallel.launch import Ranks
    from etude.learn.parallel.lead import LeadLearner
    from etude.learn.parallel.messages import RankSpec

    spec = RankSpec(
        layout,
        json.dumps(decoder.config.to_hf()),
        optim,
        total_steps,
        micro_tokens,
        device,
        compute,
        lora or LoraSettings(),
        frozen is not None,
        ranks.dispatch,
        ranks.seconds,
    )
    own = max(1, (threads or available_cores()) // layout.ranks)  # ranks on one machine share its cores
    with Ranks(layout.ranks, threads=own, deadline=ranks.seconds) as others:
        learner = LeadLearner(others, spec, decoder, frozen)
        yield learner
        learner.close()
