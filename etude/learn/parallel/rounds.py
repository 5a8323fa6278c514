"""Micro-batches of all ranks side by side: a round is one on each rank, and all ranks make the same calls.

Ranks gather weights together whenever a block is computed, so a rank that computes one more forward than another waits
for ever. A round says what all of its micro-batches need: how many heads, and which teachers. A rank whose own
micro-batch needs less of it, or is empty, computes a single token in its place, whose result nobody uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from etude.learn.loss import MicroBatch, StreamGroup, Tally, packed
from etude.learn.parallel.hsdp import let_go
from etude.learn.parallel.manifest import ItemFacts, Kind
from etude.learn.streams import Correction, Floats, Item
from etude.model.decoder import Decoder
from etude.model.experts import Router
from etude.model.packed_forward import Packed

FILLER = Item(np.zeros(1, np.int64), ())


@dataclass(frozen=True)
class Round:
    """What the micro-batches of all ranks need together."""

    depth: int  # heads that are computed
    teachers: Sequence[Kind]  # in the order in which they are scored

    @classmethod
    def of(cls, items: Sequence[ItemFacts]) -> Round:
        """Of the items of all its micro-batches."""
        kinds = {kind.likeness: kind for item in items for kind in item.teachers}
        order = sorted(kinds)  # the same on every rank
        return cls(max((item.depth for item in items), default=0), [kinds[likeness] for likeness in order])


class RankMicroBatch(MicroBatch):
    """One rank's micro-batch of a round."""

    def __init__(
        self,
        items: Sequence[Item],
        correction: Correction,
        weights: Mapping[str, Decoder],
        tally: Tally,
        needs: Round,
    ) -> None:
        self.needs, self.idle = needs, not items
        super().__init__(items or [FILLER], correction, weights, tally)

    def backward(self) -> None:
        decoder = self.weights["live"]
        # A head that only other ranks train, and the filler, bring no load of the batch.
        unheard = decoder if self.idle else decoder.mtp[max((g.depth for g in self.groups.values()), default=0) :]
        loads = [(router, router.load_E.clone()) for router in routers(unheard)]
        hidden = self.flat.hidden(self.needs.depth, keep=any(group.twins for group in self.groups.values()))
        for router, load_E in loads:
            router.load_E.copy_(load_E)
        self._score_teachers([hidden_TD.detach() for hidden_TD in hidden])
        roots, gradients = [], []
        for depth, hidden_TD in enumerate(hidden):
            groups = [group for group in self.groups.values() if group.depth == depth]
            gradient_TD = self._head(hidden_TD.detach(), groups) if groups else torch.zeros_like(hidden_TD)
            if hidden_TD.requires_grad:
                roots.append(hidden_TD)
                gradients.append(gradient_TD)
        # A rank on which nothing came through the head has no gradient of it, and all ranks must bring the same ones.
        head = decoder.lm_head.weight
        if head.requires_grad and head.grad is None:
            head.grad = torch.zeros_like(head)
        torch.autograd.backward(roots, gradients)
        self.tally.routings += [self.flat.routing] if self.flat.routing else []
        for other in self.weights.values():
            let_go(other)

    def _score_teachers(self, hidden: Sequence[torch.Tensor]) -> None:
        """Those of the round in its order, our own or a filler in their place; then what else the groups need."""
        groups = {repr(likeness): group for likeness, group in self.groups.items()}
        for kind in self.needs.teachers:
            if kind.likeness in groups:
                self._close(groups.pop(kind.likeness), hidden)
            else:
                self._fill_in(kind)
        for group in groups.values():
            self._close(group, hidden)

    def _close(self, group: StreamGroup, hidden: Sequence[torch.Tensor]) -> None:
        group.close(self.flat)
        self._prepare(group, hidden)

    @torch.no_grad()
    def _fill_in(self, kind: Kind) -> None:
        """As many forwards of the same weights as `teachers` makes."""
        shares = {"live": kind.trust} | {kind.weights: 1 - kind.trust * (kind.weights != "live")}
        for name, share in shares.items():
            if share:
                Packed(self.weights[name], [FILLER.tokens_T]).hidden()


@torch.no_grad()
def score_items(decoder: Decoder, items: Sequence[Item]) -> list[Floats]:
    """Log-probabilities of the tokens of one rank's micro-batch of a round; of an empty one, none."""
    flat = packed(decoder, items or [FILLER])
    parts = torch.split(flat.scores(), flat.lengths)
    let_go(decoder)
    return [part.cpu().numpy() for part in parts] if items else []


def routers(model: nn.Module) -> list[Router]:
    return [module for module in model.modules() if isinstance(module, Router)]
