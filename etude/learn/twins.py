"""Teachers of a micro-batch: what a distribution is learnt from, scored without gradient beside the student.

Where the teacher's weights are the live ones, all tokens that its context has in common with the student's were just
computed: their keys and values are taken from there, and only what follows is computed again. A step without
teachers only asks here for metrics, and gets none.

Shapes: S twins, E entries (weighted tokens), U tokens of a twin, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from etude.core.errors import EtudeError
from etude.learn.streams import Distribution, Ids, Item, Twin
from etude.model.attention import Prefixes
from etude.model.decoder import Decoder
from etude.model.head import divergence
from etude.model.packed_forward import Packed

Teacher = tuple[float, Decoder, Tensor]  # share of the logits, weights, hidden states


@dataclass(frozen=True, eq=False)
class Context:
    """One twin of a micro-batch."""

    target: Twin
    start: int  # of its item in the flat batch
    shared: int  # leading tokens whose states are the student's own and never asked for

    @property
    def rest_U(self) -> Ids:
        return self.target.tokens_U[self.shared :]


def add_twin(twins: list[Context], item: Item, start: int, target: Twin, t: Ids) -> dict[str, np.ndarray]:
    """Adds the twin of an item that lies at `start`; the facts of its tokens `t`, which are asked about."""
    shared = item.shared_tokens(target, t)
    before = sum(len(each.rest_U) for each in twins)
    facts = {"teacher": before + target.align_T[t] - 1 - shared, "site": np.full(len(t), len(twins))}
    twins.append(Context(target, start, shared))
    return facts if target.logprob_T is None else facts | {"logprob": target.logprob_T[t]}


@torch.no_grad()
def teachers(contexts: Sequence[Context], flat: Packed, weights: Mapping[str, Decoder]) -> list[Teacher]:
    """States of every twin behind the shared tokens, end to end, under each of the weights that have a share."""
    target = contexts[0].target
    if target.weights not in weights:
        raise EtudeError(f"a twin asks for {target.weights!r} weights; this learner has {list(weights)}")
    shares = {"live": target.trust} | {target.weights: 1 - target.trust * (target.weights != "live")}
    temperatures = [1.0] * len(contexts)
    experts = [c.target.experts_UBK for c in contexts]
    plausible = [c.target.plausible for c in contexts]
    found = []
    for name, share in shares.items():
        if not share:
            continue
        if name == "live" and flat.kept:
            rests = [None if e is None else e[c.shared :] for e, c in zip(experts, contexts, strict=True)]
            behind = Prefixes(flat.kept, [(c.start, c.shared) for c in contexts])
            states_UD = Packed(weights[name], [c.rest_U for c in contexts], temperatures, rests, plausible, behind)
            found.append((share, weights[name], states_UD.hidden()[0]))
        else:
            whole = Packed(weights[name], [c.target.tokens_U for c in contexts], temperatures, experts, plausible)
            ends = np.cumsum([0, *whole.lengths])[:-1]
            rows = [e + np.arange(c.shared, len(c.target.tokens_U)) for e, c in zip(ends, contexts, strict=True)]
            found.append((share, weights[name], whole.whole(whole.hidden()[0])[flat.put(np.concatenate(rows))]))
    return found


@torch.no_grad()
def teacher_logprobs(found: Sequence[Teacher], flat: Packed, c: Mapping[str, Tensor]) -> Tensor:
    """The teacher's distribution of each entry, at the item's temperature."""
    logits_EV, *more = [
        decoder.logits(states_UD[c["teacher"]]).mul_(share) if share != 1 else decoder.logits(states_UD[c["teacher"]])
        for share, decoder, states_UD in found
    ]
    for other_EV in more:
        logits_EV += other_EV
    return flat.log_softmax(logits_EV, c["row"])


@torch.no_grad()
def filter_twins(
    twins: Sequence[Context],
    found: Sequence[Teacher],
    flat: Packed,
    hidden_TD: Tensor,
    c: dict[str, Tensor],
    changes: list[Tensor],
) -> None:
    """Takes the weight from twins that must lower the student's tokens, but whose context does not, in the mean.

    A hint that makes a mistake likelier would teach it. `changes` hears the mean change of log-probability of each.
    """
    if not twins[0].target.lowers:
        return
    student_E = flat.logprobs(hidden_TD, c["row"], c["id"])
    parts = []
    for places_P in torch.split(torch.arange(len(c["row"]), device=flat.device), flat.chunk_whole):
        facts = {name: fact[places_P] for name, fact in c.items()}
        teacher_PV = teacher_logprobs(found, flat, facts)
        parts.append(teacher_PV.gather(-1, facts["id"][:, None])[:, 0])
    change_E = torch.cat(parts) - student_E
    if len(parts) == 1:  # few enough to be kept: the divergence asks for the same
        c["teacher_logp"] = teacher_PV
    both_2E = torch.stack((change_E, torch.ones_like(change_E)))
    sum_S, count_S = flat.total(both_2E.new_zeros(2, len(twins)).index_add_(1, c["site"], both_2E))
    c["weight"] = c["weight"] * (sum_S < 0)[c["site"]]
    changes += [sum_S / count_S] if flat.share is None or flat.share.leads else []


def distances(
    target: Distribution,
    found: Sequence[Teacher],
    flat: Packed,
    c: Mapping[str, Tensor],
    logp: Tensor,
    seen: list[Tensor],
) -> Tensor:
    """How far each entry is from its teacher; of a twin's entries that count, `seen` hears the sum before any bound.

    `logp` is the student's log-probability of each entry's token, or its whole distribution where that is wanted.
    """
    teacher_EV = c["teacher_logp"] if "teacher_logp" in c else teacher_logprobs(found, flat, c)
    own_E = (logp.gather(-1, c["id"][:, None])[:, 0] if logp.ndim > 1 else logp).detach()
    if logp.ndim > 1:
        far_E = divergence(target.divergence, target.beta, target.support, logp, teacher_EV)
        term_E = far_E * (target.clip / far_E.detach().clamp(min=1e-20)).clamp(max=1.0)
    else:  # the policy gradient whose mean is that of the reverse divergence
        far_E = own_E - teacher_EV.gather(-1, c["id"][:, None])[:, 0]
        term_E = far_E.clamp(-target.clip, target.clip) * logp
    if isinstance(target, Twin):
        heard_E = c["weight"] != 0
        # As a sum and a number: to choose the entries themselves the host would wait for the GPU.
        seen.append(torch.stack((torch.where(heard_E, far_E.detach(), 0).sum(), heard_E.sum())))
        if "logprob" in c:
            term_E = term_E * (own_E - c["logprob"]).exp().clamp(max=target.ratio)
    return term_E


def twin_metrics(changes: Sequence[Tensor], seen: Sequence[Tensor]) -> dict[str, float]:
    """How many twins were looked at and left out, how their contexts changed the tokens, and how far they are apart."""
    found: dict[str, float] = {}
    if changes:
        change_S = torch.cat(list(changes))
        found = {"twins": len(change_S), "twins_filtered": float((change_S >= 0).sum())}
        found["twin_change"] = float(change_S.mean())
    far, counted = torch.cat(list(seen)).view(-1, 2).sum(0).tolist() if seen else (0.0, 0.0)
    return found | ({"twin_kl": far / counted} if counted else {})
