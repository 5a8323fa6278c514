"""One micro-batch: items and their streams -> gradients of the decoder. Knows neither optimisers nor algorithms.

Hidden states are computed once for all streams; logits only where a stream counts, a chunk of positions at a time.

Shapes: T flat positions, R rows of a chunk, E entries (weighted tokens of like streams), D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from etude.learn.streams import Correction, Distribution, Ids, Item, Label, MainHead, Sampled, Stream, Twin
from etude.learn.twins import Context, Teacher, add_twin, distances, filter_twins, teachers, twin_metrics
from etude.model.decoder import Decoder
from etude.model.experts import Routing, replay_metrics
from etude.model.packed_forward import Packed

TokenFacts = Mapping[str, Tensor]  # facts by name, each with an entry per token


class StreamGroup:
    """The streams of a micro-batch with one head and like targets: an array per fact, an entry per token."""

    def __init__(self, first: Stream) -> None:
        self.depth, self.target = first.depth, first.target
        self.whole = isinstance(first.target, Distribution) and first.target.support != "sampled"
        self.teachers: list[Teacher] = []
        self.twins: list[Context] = []
        self._parts: list[dict[str, np.ndarray]] = []

    def add(self, number: int, places_T: Ids, item: Item, stream: Stream) -> None:
        target, t = stream.target, np.flatnonzero(stream.weight_T)
        t = t[t > self.depth]
        if isinstance(target, Twin):
            t = t[target.align_T[t] > 0]
        part = {"row": places_T[t - 1 - self.depth], "item": np.full(len(t), number), "weight": stream.weight_T[t]}
        part["id"] = (target.ids_T if isinstance(target, Label) else item.tokens_T)[t]
        if isinstance(target, Sampled):
            part |= {"advantage": target.advantage_T[t], "logprob": target.logprob_T[t]}
        elif isinstance(target, MainHead):
            # the main head predicts the same token from the position just before it
            part["teacher"] = places_T[t - 1]
        elif isinstance(target, Twin):
            part |= add_twin(self.twins, item, int(places_T[0]), target, t)
        self._parts.append(part)

    def close(self, flat: Packed) -> None:
        facts = flat.own({name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]})
        order = np.argsort(facts["row"], kind="stable")
        self.rows: np.ndarray = facts["row"][order]
        exact = {"f": np.float32, "i": np.int64, "u": np.int64}
        self.facts = {name: flat.put(c[order].astype(exact[c.dtype.kind])) for name, c in facts.items()}

    def between(self, first: int, last: int) -> TokenFacts:
        low, high = np.searchsorted(self.rows, (first, last + 1))
        return {name: fact[low:high] for name, fact in self.facts.items()}


class Tally:
    """What micro-batches add up to; on the device, so that nobody waits for it before the end of the batch."""

    def __init__(self, parts: Sequence[Tally] = ()) -> None:
        self.losses: list[tuple[str, Tensor]] = [loss for part in parts for loss in part.losses]  # kind of target, sum
        self.log_ratios: list[Tensor] = [x for part in parts for x in part.log_ratios]  # log p(learner) / p(sampler)
        self.entropies: list[Tensor] = [x for part in parts for x in part.entropies]  # of sampled tokens
        self.routings: list[Routing] = [x for part in parts for x in part.routings]
        self.changes: list[Tensor] = [x for part in parts for x in part.changes]  # of log-probability, by twin
        self.distances: list[Tensor] = [
            x for part in parts for x in part.distances
        ]  # of twins: their sum, and how many tokens

    def metrics(self) -> dict[str, float]:
        found = {f"{kind}_loss": 0.0 for kind, _ in self.losses}
        sums = torch.stack([loss for _, loss in self.losses]).tolist() if self.losses else []
        for (kind, _), loss in zip(self.losses, sums, strict=True):
            found[f"{kind}_loss"] += loss
        found["loss"] = sum(found.values())
        if self.log_ratios:
            log_r = torch.cat(self.log_ratios).double().cpu().numpy()
            drift = np.abs(log_r)
            found |= {"k1": -log_r.mean(), "k2": (log_r**2).mean() / 2, "k3": (np.expm1(log_r) - log_r).mean()}
            found |= {"drift_p50": np.quantile(drift, 0.5), "drift_p99": np.quantile(drift, 0.99)}
            found |= {"drift_mean": drift.mean(), "drift_max": drift.max(), "sampled_tokens": len(drift)}
            found["entropy"] = float(torch.cat(self.entropies).mean())
        found |= replay_metrics(self.routings) | twin_metrics(self.changes, self.distances)
        return {name: float(value) for name, value in found.items()}


def packed(decoder: Decoder, items: Sequence[Item], common: Sequence[int] = ()) -> Packed:
    """Items for one forward, their tokens routed to the experts they were sampled with, where those are known."""
    facts = ((item.tokens_T, item.temperature, item.experts_TBK, item.plausible) for item in items)
    return Packed(decoder, *zip(*facts, strict=True), common=common)  # type: ignore[misc, arg-type]


class MicroBatch:
    """Items that share a forward and a backward; `weights` are the named decoders that twins are scored under.

    The first `common` tokens of an item are those of the one before it, and are computed once.
    """

    def __init__(
        self,
        items: Sequence[Item],
        correction: Correction,
        weights: Mapping[str, Decoder],
        tally: Tally,
        common: Sequence[int] = (),
    ) -> None:
        self.flat = packed(weights["live"], items, common)
        self.correction, self.weights, self.tally = correction, weights, tally
        self.groups: dict[tuple[object, ...], StreamGroup] = {}
        for number, (item, places_T) in enumerate(zip(items, self.flat.places, strict=True)):
            for stream in item.streams:
                if stream.counts:
                    self.groups.setdefault(stream.likeness, StreamGroup(stream)).add(number, places_T, item, stream)
        depths = [max((s.depth for s in item.streams if s.counts), default=0) for item in items]
        # Where no item trains a head, none is computed.
        self.flat.heads = depths if weights["live"].config.num_experts and max(depths, default=0) else ()

    def backward(self) -> None:
        """Adds the gradient of the weighted sum over all streams to the live decoder's parameters."""
        twins = any(group.twins for group in self.groups.values())
        hidden = self.flat.hidden(max(group.depth for group in self.groups.values()), keep=twins)
        for group in self.groups.values():
            group.close(self.flat)
            self._prepare(group, [hidden_TD.detach() for hidden_TD in hidden])
        roots, gradients = [], []
        for depth, hidden_TD in enumerate(hidden):
            groups = [group for group in self.groups.values() if group.depth == depth]
            gradient_TD = self._head(hidden_TD.detach(), groups) if groups else None
            if gradient_TD is not None and hidden_TD.requires_grad:
                roots.append(hidden_TD)
                gradients.append(gradient_TD)
        torch.autograd.backward(roots, gradients)
        self.tally.routings += [self.flat.routing] if self.flat.routing else []

    def _prepare(self, group: StreamGroup, hidden: Sequence[Tensor]) -> None:
        """What a term needs to know beyond its own position: a teacher's states, or its whole item's ratio."""
        target, c = group.target, group.facts
        if isinstance(target, MainHead):
            group.teachers = [(1.0, self.flat.decoder, self.flat.whole(hidden[0]))]
        elif isinstance(target, Twin):
            group.teachers = teachers(group.twins, self.flat, self.weights)
            filter_twins(group.twins, group.teachers, self.flat, hidden[group.depth], c, self.tally.changes)
        elif isinstance(target, Sampled) and self.correction.level == "sequence":
            log_ratio_E = self.flat.logprobs(hidden[group.depth], c["row"], c["id"]) - c["logprob"]
            both_2E = torch.stack((log_ratio_E, torch.ones_like(log_ratio_E)))
            both_2I = both_2E.new_zeros(2, len(self.flat.lengths)).index_add_(1, c["item"], both_2E)
            sum_I, count_I = self.flat.total(both_2I)
            c["mean_log_ratio"] = (sum_I / count_I)[c["item"]]

    def _head(self, hidden_TD: Tensor, groups: Sequence[StreamGroup]) -> Tensor:
        """The head forward and backward, chunk by chunk; returns the gradient of the hidden states."""
        gradient_TD = torch.zeros_like(hidden_TD)
        for whole in (False, True):  # those that want whole distributions by themselves: they cost more
            alike = [group for group in groups if group.whole == whole]
            every = np.unique(np.concatenate([group.rows for group in alike])) if alike else np.empty(0, np.int64)
            size = self.flat.chunk_whole if whole else self.flat.chunk
            for begin in range(0, len(every), size):
                rows = every[begin : begin + size]
                rows_R = self.flat.put(rows)
                leaf_RD = hidden_TD[rows_R].requires_grad_()
                facts = [group.between(rows[0], rows[-1]) for group in alike]
                at = [torch.searchsorted(rows_R, c["row"]) for c in facts]
                logps = self._whole(leaf_RD, rows_R, at) if whole else self._chosen(alike, leaf_RD, rows_R, at, facts)
                losses = []
                for group, c, logp in zip(alike, facts, logps, strict=True):
                    losses.append((c["weight"] * self._terms(group, c, logp)).sum())
                    self.tally.losses.append((type(group.target).__name__.lower(), losses[-1].detach()))
                torch.autograd.backward(losses)
                assert leaf_RD.grad is not None
                gradient_TD[rows_R] += leaf_RD.grad
        return gradient_TD

    def _whole(self, leaf_RD: Tensor, rows_R: Tensor, at: Sequence[Tensor]) -> list[Tensor]:
        logp_RV = self.flat.log_softmax(self.flat.decoder.logits(leaf_RD), rows_R)
        return [logp_RV[at_E] for at_E in at]

    def _chosen(
        self,
        groups: Sequence[StreamGroup],
        leaf_RD: Tensor,
        rows_R: Tensor,
        at: Sequence[Tensor],
        facts: Sequence[TokenFacts],
    ) -> list[Tensor]:
        sampled = [isinstance(group.target, Sampled) for group in groups]
        ids_E = torch.cat([c["id"] for c in facts])
        logp_E, entropy_R = self.flat.tokens(leaf_RD, rows_R, torch.cat(list(at)), ids_E, entropy=any(sampled))
        self.tally.entropies += [entropy_R[at_E] for at_E, asked in zip(at, sampled, strict=True) if asked]
        return list(torch.split(logp_E, [len(at_E) for at_E in at]))

    def _terms(self, group: StreamGroup, c: TokenFacts, logp: Tensor) -> Tensor:
        """Of each entry, given its token's log-probability or, where the group wants that, its whole distribution."""
        target, logp_E = group.target, logp
        if isinstance(target, Label):
            return -logp_E
        if isinstance(target, Distribution):
            return distances(target, group.teachers, self.flat, c, logp, self.tally.distances)
        log_ratio_E = logp_E - c["logprob"]
        self.tally.log_ratios.append(log_ratio_E.detach())
        if "mean_log_ratio" in c:
            log_ratio_E = c["mean_log_ratio"] + logp_E - logp_E.detach()
        return policy_term(self.correction, c["advantage"], logp_E, log_ratio_E.exp())


def policy_term(correction: Correction, advantage_E: Tensor, logp_E: Tensor, ratio_E: Tensor) -> Tensor:
    bounded_E = ratio_E.clamp(correction.low, correction.high)
    if correction.kind == "clip":
        return -torch.minimum(ratio_E * advantage_E, bounded_E * advantage_E)
    if correction.kind == "none":
        return -advantage_E * logp_E
    if correction.kind == "mask":
        bounded_E = torch.where(ratio_E == bounded_E, ratio_E, 0.0)
    return -bounded_E.detach() * advantage_E * logp_E
