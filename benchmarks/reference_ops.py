"""The operations of a step in plain torch: slow, obvious, on any device. What the kernels are tested against, and what
stands in for them where there is no GPU, so that everything around them is tested without one.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from etude.engine.cuda.draft_tensors import DraftInputs, DraftOutputs, DraftScratch
from etude.engine.cuda.ops import Norm, Pages, Places, Runs
from etude.engine.draft_acceptance import ACCEPTING, DRAFTING, verify
from etude.engine.sampler import mixed, pick
from etude.model.experts import Experts, Router, Routing
from etude.model.rope import paired, rotate


class ReferenceOps:
    def embed(self, weight_VD: Tensor, tokens_T: Tensor, sources_T: Tensor, sampled_S: Tensor) -> Tensor:
        sampled_T = sampled_S[sources_T.clamp(min=0).long()]
        return F.embedding(torch.where(sources_T < 0, tokens_T, sampled_T).long(), weight_VD)

    def norm(self, x_TD: Tensor, norm: Norm) -> Tensor:
        return F.rms_norm(x_TD, (x_TD.shape[-1],), norm.weight, norm.eps)

    def norm_linear(
        self, x_TD: Tensor, y_TD: Tensor | None, norm: Norm, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        x_TD, normed_TD = self.add_norm(x_TD, y_TD, norm)
        return x_TD, self.linear(normed_TD, weight, bias)

    def norm_gated(self, x_TD: Tensor, y_TD: Tensor | None, norm: Norm, gate_up: Tensor) -> tuple[Tensor, Tensor]:
        x_TD, normed_TD = self.add_norm(x_TD, y_TD, norm)
        return x_TD, self.gated(normed_TD, gate_up)

    def add_norm(self, x_TD: Tensor, y_TD: Tensor | None, norm: Norm) -> tuple[Tensor, Tensor]:
        x_TD = x_TD if y_TD is None else x_TD + y_TD
        return x_TD, self.norm(x_TD, norm)

    def linear(self, x_TD: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(x_TD, weight, bias)

    def gated(self, x_TD: Tensor, gate_up: Tensor) -> Tensor:
        gate, up = self.linear(x_TD, gate_up).chunk(2, -1)
        return F.silu(gate) * up

    def logits(self, x_TD: Tensor, weight_VD: Tensor) -> Tensor:
        return F.linear(x_TD.float(), weight_VD.float())

    def place(
        self, qkv_TX: Tensor, heads: int, q_norm: Norm | None, k_norm: Norm | None, cache_PNKBD: Tensor, at: Places
    ) -> None:
        kv_heads, dims = cache_PNKBD.shape[2], cache_PNKBD.shape[4]
        q, k, v = torch.split(qkv_TX.view(len(qkv_TX), -1, dims), [heads, kv_heads, kv_heads], 1)
        angles = _angles(at)
        q.copy_(rotate(self.norm(q, q_norm) if q_norm else q, angles))
        k.copy_(rotate(self.norm(k, k_norm) if k_norm else k, angles))
        _write(cache_PNKBD[0], at.slots_T, k)
        _write(cache_PNKBD[1], at.slots_T, v)

    def place_latent(
        self, q_THX: Tensor, kv_TX: Tensor, norm: Norm, interleaved: bool, cache_PNKBD: Tensor, at: Places
    ) -> None:
        rank, angles = len(norm.weight), _angles(at)
        rotated = kv_TX.shape[-1] - rank
        kv_TX[:, :rank] = self.norm(kv_TX[:, :rank], norm)
        for part in (q_THX[..., -rotated:], kv_TX[:, None, rank:]):
            part.copy_(rotate(paired(part) if interleaved else part, angles))
        _write(cache_PNKBD[0], at.slots_T, kv_TX[:, None])

    def attend(self, q_RHX: Tensor, cache_PNKBD: Tensor, pages: Pages) -> Tensor:
        out = torch.zeros_like(q_RHX)
        for row, (k, v) in _gathered(cache_PNKBD, pages):
            q = q_RHX[row].view(k.shape[1], -1, k.shape[2])
            scores = torch.einsum("kgd,skd->kgs", q.float(), k.float()) * q.shape[-1] ** -0.5
            out[row] = torch.einsum("kgs,skd->kgd", scores.softmax(-1), v.float()).flatten(0, 1).to(out.dtype)
        return out

    def attend_latent(self, q_HRC: Tensor, q_RHX: Tensor, cache_PNKBD: Tensor, pages: Pages, scale: float) -> Tensor:
        out = torch.zeros_like(q_HRC)
        for row, (k,) in _gathered(cache_PNKBD, pages):
            q = torch.cat((q_HRC[:, row], q_RHX[row]), -1).float()
            weights = (q @ k[:, 0].float().T * scale).softmax(-1)
            out[:, row] = (weights @ k[:, 0, : q_HRC.shape[-1]].float()).to(out.dtype)
        return out

    def attend_runs(self, q_THX: Tensor, k_TKX: Tensor, v_TKX: Tensor, runs: Runs, scale: float) -> Tensor:
        out = []
        parts = torch.split(q_THX, runs.queries), torch.split(k_TKX, runs.keys), torch.split(v_TKX, runs.keys)
        for q, k, v in zip(*parts, strict=True):
            mask = torch.ones(len(q), len(k), dtype=torch.bool, device=q.device).tril(len(k) - len(q))
            q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
            attended = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
            )
            out.append(attended[0].transpose(0, 1))
        return torch.cat(out)

    def route(self, x_TD: Tensor, router: Router, routing: Routing) -> tuple[Tensor, Tensor]:
        scores_TE = router.scores(x_TD)
        chosen_TK = router.choose(scores_TE, routing)
        return chosen_TK, router.weights(scores_TE, chosen_TK).to(x_TD.dtype)

    def experts(self, x_TD: Tensor, chosen_TK: Tensor, weight_TK: Tensor, experts: Experts) -> Tensor:
        out: Tensor = experts(x_TD, chosen_TK, weight_TK)
        return out

    def pair(self, weight_VD: Tensor, next_RJ: Tensor, hidden_TD: Tensor, next_norm: Norm, norm: Norm) -> Tensor:
        next_TD = F.embedding(next_RJ.flatten().long(), weight_VD)
        return torch.cat((self.norm(next_TD, next_norm), self.norm(hidden_TD, norm)), -1)

    def begin(self, asked: DraftInputs, left: DraftOutputs, work: DraftScratch, block: int, nobody: int) -> None:
        seats_R, here_R = asked.sources.clamp(min=0).long(), asked.sources < 0
        last_R = left.tokens_JS[:, seats_R].gather(0, left.kept_S[seats_R].long()[None])[0]
        known_RJ = torch.cat((last_R[None], left.drafts_KS[:, seats_R])).T
        work.ids_RJ.copy_(torch.where(here_R[:, None], asked.ids, known_RJ))
        work.ends_R.copy_(torch.where(here_R, asked.ends, left.ends_S[seats_R]))
        places_RJ = work.ends_R[:, None] + torch.arange(work.ids_RJ.shape[1], device=seats_R.device)
        there_RJ = places_RJ < asked.stops[:, None]
        places_RJ = torch.where(there_RJ, places_RJ, 0)
        blocks_RJ = asked.table.gather(1, (places_RJ // block).long())
        work.positions_RJ.copy_(places_RJ)
        work.slots_RJ.copy_(torch.where(there_RJ, blocks_RJ * block + places_RJ % block, nobody))
        work.lengths_RJ.copy_(torch.where(there_RJ, places_RJ + 1, 0))

    def accept(self, logits_TV: Tensor, asked: DraftInputs, left: DraftOutputs, work: DraftScratch) -> None:
        (rows, new), device = work.ids_RJ.shape, logits_TV.device
        each_R, each_J = torch.arange(rows, device=device), torch.arange(new, device=device)
        temperature_R11 = asked.temperatures[:, None, None]
        p_RJV, logp_RJV = _chances(logits_TV.view(rows, new, -1), temperature_R11)
        seats_R = torch.where(asked.sources < 0, each_R, asked.sources).long()
        q_RKV, _ = _chances(left.beliefs_SKV[seats_R], temperature_R11)
        drafts_RK = work.ids_RJ[:, 1:].long()
        drafted_RK = work.ends_R[:, None] + each_J[1:] < asked.stops[:, None]
        counters_RJ = work.ends_R[:, None] + 1 - asked.prompts[:, None] + each_J
        accepting_RK = _numbers(asked.seeds ^ ACCEPTING, counters_RJ[:, :-1])
        kept_R, token_R = verify(p_RJV, q_RKV, drafts_RK, drafted_RK, accepting_RK, _numbers(asked.seeds, counters_RJ))
        told_RJ = F.pad(drafts_RK, (0, 1)).scatter(1, kept_R[:, None], token_R[:, None])
        told_RJ = told_RJ.masked_fill(each_J > kept_R[:, None], 0)
        logprobs_RJ = logp_RJV.gather(-1, told_RJ[:, :, None])[..., 0].masked_fill(each_J > kept_R[:, None], 0.0)
        left.kept_S[:rows], left.ends_S[:rows] = kept_R.int(), (work.ends_R + kept_R + 1).int()
        left.tokens_JS[:, :rows], left.logprobs_JS[:, :rows] = told_RJ.T.int(), logprobs_RJ.T.float()
        work.ahead_RX.copy_(F.pad(told_RJ, (0, new - 1)))
        work.rows_R.copy_(each_R * new + kept_R)
        drafting_RK = _numbers(asked.seeds ^ DRAFTING, (counters_RJ + kept_R[:, None] + 1)[:, :-1])
        work.numbers_KR.copy_(drafting_RK.T)

    def pick(
        self, logits_RV: Tensor, temperatures_R: Tensor, uniforms_R: Tensor, tokens_S: Tensor, logprobs_S: Tensor
    ) -> None:
        rows = len(logits_RV)
        logits_RV = logits_RV / torch.where(temperatures_R == 0, 1.0, temperatures_R)[:, None].float()
        highest_R1 = logits_RV.amax(-1, keepdim=True)
        token_R1, total_R1 = pick((logits_RV - highest_R1).exp(), uniforms_R[:, None])
        token_R1 = torch.where(temperatures_R[:, None] == 0, logits_RV.argmax(-1, keepdim=True), token_R1)
        logprob_R1 = logits_RV.gather(-1, token_R1).double() - highest_R1 - total_R1.log()
        tokens_S[:rows], logprobs_S[:rows] = token_R1[:, 0].to(tokens_S.dtype), logprob_R1[:, 0].float()


def _chances(logits: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """What is sampled from, and log-probabilities; temperature 0 is certain of the likeliest, and tells those of 1."""
    greedy = temperature == 0
    logits = logits / torch.where(greedy, 1.0, temperature).float()
    logp = logits.double().log_softmax(-1)
    certain = torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    return torch.where(greedy, certain, logp.exp().float()), logp


def _numbers(seeds_R: Tensor, counters_RX: Tensor) -> Tensor:
    """The uniform number of each seed and counter."""
    seeds, counters = (x.cpu().numpy().astype(np.int64).view(np.uint64) for x in (seeds_R, counters_RX))
    return torch.from_numpy(mixed(seeds[:, None], counters)).to(seeds_R.device)


def _angles(at: Places) -> tuple[Tensor, Tensor]:
    rows = at.angles[at.positions_T.long()].unsqueeze(1)
    return rows[:, :, 0], rows[:, :, 1]


def _write(plane_NKBD: Tensor, slots_T: Tensor, x_TKD: Tensor) -> None:
    size = plane_NKBD.shape[2]
    plane_NKBD[slots_T.long() // size, :, slots_T.long() % size] = x_TKD


def _gathered(cache_PNKBD: Tensor, pages: Pages) -> list[tuple[int, list[Tensor]]]:
    """Each request's planes, [tokens, heads, dimensions]."""
    size, out = cache_PNKBD.shape[3], []
    for row, length in enumerate(pages.lengths_R.tolist()):
        if length:
            blocks = pages.table_RM[row // pages.each, : -(-length // size)].long()
            out.append((row, [plane[blocks].transpose(1, 2).flatten(0, 1)[:length] for plane in cache_PNKBD]))
    return out
