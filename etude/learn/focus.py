"""What a hint teaches: no turn that it makes likelier, and with focus only the tokens that it makes less likely.

A hint that makes a mistake likelier would teach it. And of a turn that failed most tokens are right: a teacher that was
left behind would pull them back as well.

Shapes: E entries (weighted tokens), S twins, T flat positions, U tokens of their sequences, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from etude.learn.twins import Context, Teacher, teacher_logprobs
from etude.model.decoder import Decoder
from etude.model.packed_forward import Packed


@torch.no_grad()
def leave_out(
    twins: Sequence[Context],
    found: Sequence[Teacher],
    flat: Packed,
    weights: Mapping[str, Decoder],
    hidden_TD: Tensor,
    c: dict[str, Tensor],
    changes: list[Tensor],
) -> None:
    """Takes the weight from entries of twins that teach nothing; `hidden_TD` are the student's states.

    `changes` hears of each twin that must lower its tokens, in the mean, by how much it changes them.
    """
    target = twins[0].target
    before_E = flat.logprobs(hidden_TD, c["row"], c["id"])
    after_E, teacher_EV = _scores(found, flat, c)
    if teacher_EV is not None:  # few enough to be kept: the divergence asks for the same
        c["teacher_logp"] = teacher_EV
    if target.lowers:
        both_2E = torch.stack((after_E - before_E, torch.ones_like(after_E)))
        sum_S, count_S = flat.total(both_2E.new_zeros(2, len(twins)).index_add_(1, c["site"], both_2E))
        c["weight"] = c["weight"] * (sum_S < 0)[c["site"]]
        changes += [sum_S / count_S] if flat.share is None or flat.share.leads else []
    if target.focus:
        if target.reads_twice:
            same, facts = _without_context(twins, flat, weights, hidden_TD, c)
            before_E, _ = _scores(same, flat, facts)
        c["weight"] = c["weight"] * (after_E - before_E <= -target.focus)


def _without_context(
    twins: Sequence[Context], flat: Packed, weights: Mapping[str, Decoder], hidden_TD: Tensor, c: Mapping[str, Tensor]
) -> tuple[list[Teacher], dict[str, Tensor]]:
    """The same teacher, which has read what the student has and no more; and the entries with their rows of it."""
    target = twins[0].target
    items = list(dict.fromkeys(each.item for each in twins))
    # Routes as in the other context: it differs from this one by its words alone.
    routes = [each.experts_TBK if target.experts_UBK is not None else None for each in items]
    facts = [each.temperature for each in items], routes, [each.plausible for each in items]
    plain = Packed(weights[target.weights], [each.tokens_T for each in items], *facts)
    states_UD = plain.whole(plain.hidden()[0])
    starts = dict(zip(items, (int(places_T[0]) for places_T in plain.places), strict=True))
    start_S = torch.tensor([starts[each.item] for each in twins], device=flat.device)
    states_ED = states_UD[start_S[c["site"]] + c["at"] - 1]
    found = [(1 - target.trust, weights[target.weights], states_ED)]
    found += [(target.trust, weights["live"], hidden_TD[c["row"]])] if target.trust else []
    return found, {**c, "teacher": torch.arange(len(c["row"]), device=flat.device)}


def _scores(found: Sequence[Teacher], flat: Packed, c: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    """The teacher's log-probability of each entry's token; and its distributions, where they are a single chunk."""
    parts, facts = [], {name: c[name] for name in ("teacher", "row", "id")}
    for places_P in torch.split(torch.arange(len(c["row"]), device=flat.device), flat.chunk_whole):
        chunk = {name: fact[places_P] for name, fact in facts.items()}
        teacher_PV = teacher_logprobs(found, flat, chunk)
        parts.append(teacher_PV.gather(-1, chunk["id"][:, None])[:, 0])
    return torch.cat(parts), teacher_PV if len(parts) == 1 else None
