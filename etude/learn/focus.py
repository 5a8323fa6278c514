"""Which tokens of a turn a hint is about: those that it makes less likely itself, under the teacher's own weights.

Of a turn that failed most tokens are right, and a teacher that was left behind would pull them back as well.

Shapes: E entries (weighted tokens), S twins, T flat positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from etude.learn.twins import Context, Facts
from etude.model.decoder import Decoder
from etude.model.packed_forward import Packed


@torch.no_grad()
def focus_twins(twins: Sequence[Context], flat: Packed, weights: Mapping[str, Decoder], c: Facts) -> None:
    """Takes the weight from tokens that the other context does not lower by `focus` nats, under the same weights."""
    target = twins[0].target
    before_E = c["student"]
    if target.weights != "live":  # whose score without the other context is the student's
        items = list(dict.fromkeys(each.item for each in twins))
        # Routes as in the other context: it differs from this one by its words alone.
        routes = [each.experts_TBK if target.experts_UBK is not None else None for each in items]
        facts = [each.temperature for each in items], routes, [each.plausible for each in items]
        plain = Packed(weights[target.weights], [each.tokens_T for each in items], *facts)
        starts = dict(zip(items, (int(places_T[0]) for places_T in plain.places), strict=True))
        start_S = torch.tensor([starts[each.item] for each in twins], device=flat.device)
        before_E = plain.scores()[start_S[c["site"]] + c["at"]]
    c["weight"] = c["weight"] * (c["informed"] - before_E <= -target.focus)
