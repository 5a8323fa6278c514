"""The operations of a step as Triton kernels, and as library calls where those are the best there is.

Says which kernel runs with which tiles and how far a request is split; what they compute is in the kernels' files.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from etude.engine.cuda.accept_kernels import begin_kernel, rests_kernel, settle_kernel, sums_kernel
from etude.engine.cuda.attention_kernels import grouped_kernel, join_kernel, latent_kernel
from etude.engine.cuda.draft_tensors import DraftInputs, DraftOutputs, DraftScratch
from etude.engine.cuda.few_token_kernels import (
    experts_in_kernel,
    experts_out_kernel,
    route_kernel,
    thin_kernel,
    twin_kernel,
)
from etude.engine.cuda.ops import Norm, Pages, Places, Runs
from etude.engine.cuda.sampling_kernels import pick_kernel, pieces_kernel
from etude.engine.cuda.token_kernels import (
    embed_kernel,
    gate_kernel,
    norm_kernel,
    pair_kernel,
    place_kernel,
    place_latent_kernel,
)
from etude.model.experts import Experts, Router, Routing

LOG2E = 1.4426950408889634
PROGRAMS = 512  # at a time at least, to fill 132 multiprocessors
MOST_SPLITS = 16
PIECE = 4096  # of the vocabulary
# For one token products of our own beat the library's by 20 to 40%, and read the head at 93% of memory speed.
FEW_TOKENS = 2  # tokens, up to which a weight is read by programs of few outputs: a token and its draft
FEW_VISITS = 64  # of experts, up to which each is read for itself
FEW_ROUTED = 1024  # tokens, up to which each is routed by a program of its own


class FusedOps:
    def embed(self, weight_VD: Tensor, tokens_T: Tensor, sources_T: Tensor, sampled_S: Tensor) -> Tensor:
        tokens, width = len(tokens_T), weight_VD.shape[1]
        out_TD = weight_VD.new_empty(tokens, width)
        embed_kernel[(tokens,)](weight_VD, tokens_T, sources_T, sampled_S, out_TD, width, _pad(width))
        return out_TD

    def norm(self, x_TD: Tensor, norm: Norm) -> Tensor:
        width = x_TD.shape[1]
        out_TD = torch.empty(x_TD.shape, dtype=x_TD.dtype, device=x_TD.device)
        norm_kernel[(len(x_TD),)](
            x_TD, x_TD, norm.weight, x_TD, out_TD, norm.eps, x_TD.stride(0), width, _pad(width), False
        )
        return out_TD

    def add_norm(self, x_TD: Tensor, y_TD: Tensor | None, norm: Norm) -> tuple[Tensor, Tensor]:
        if y_TD is None:
            return x_TD, self.norm(x_TD, norm)
        summed_TD, out_TD, width = torch.empty_like(x_TD), torch.empty_like(x_TD), x_TD.shape[1]
        norm_kernel[(len(x_TD),)](x_TD, y_TD, norm.weight, summed_TD, out_TD, norm.eps, width, width, _pad(width), True)
        return summed_TD, out_TD

    def norm_linear(
        self, x_TD: Tensor, y_TD: Tensor | None, norm: Norm, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if len(x_TD) <= FEW_TOKENS:
            return _few_tokens(x_TD, weight, len(weight), y_TD, norm, bias)
        x_TD, normed_TD = self.add_norm(x_TD, y_TD, norm)
        return x_TD, F.linear(normed_TD, weight, bias)

    def norm_gated(self, x_TD: Tensor, y_TD: Tensor | None, norm: Norm, gate_up: Tensor) -> tuple[Tensor, Tensor]:
        if len(x_TD) <= FEW_TOKENS:
            return _few_tokens(x_TD, gate_up, len(gate_up) // 2, y_TD, norm, gate=True)
        x_TD, normed_TD = self.add_norm(x_TD, y_TD, norm)
        return x_TD, self.gated(normed_TD, gate_up)

    def linear(self, x_TD: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return (
            _few_tokens(x_TD, weight, len(weight), bias=bias)[1]
            if len(x_TD) <= FEW_TOKENS
            else F.linear(x_TD, weight, bias)
        )

    def gated(self, x_TD: Tensor, gate_up: Tensor) -> Tensor:
        if len(x_TD) <= FEW_TOKENS:
            return _few_tokens(x_TD, gate_up, len(gate_up) // 2, gate=True)[1]
        return _gate(F.linear(x_TD, gate_up))

    def logits(self, x_TD: Tensor, weight_VD: Tensor) -> Tensor:
        if len(x_TD) <= FEW_TOKENS:
            return _few_tokens(x_TD, weight_VD, len(weight_VD), out_dtype=torch.float32)[1]
        if x_TD.dtype == torch.float32 or not x_TD.is_cuda:
            return F.linear(x_TD.float(), weight_VD.float())
        return torch.mm(x_TD, weight_VD.t(), out_dtype=torch.float32)

    def place(
        self, qkv_TX: Tensor, heads: int, q_norm: Norm | None, k_norm: Norm | None, cache_PNKBD: Tensor, at: Places
    ) -> None:
        _, _, kv_heads, block, dims = cache_PNKBD.shape
        plain = q_norm is None or k_norm is None
        place_kernel[(len(qkv_TX),)](
            qkv_TX,
            qkv_TX if q_norm is None else q_norm.weight,
            qkv_TX if k_norm is None else k_norm.weight,
            at.angles,
            at.positions_T,
            at.slots_T,
            cache_PNKBD[0],
            cache_PNKBD[1],
            0.0 if q_norm is None else q_norm.eps,
            0.0 if k_norm is None else k_norm.eps,
            not plain,
            heads,
            _pad(heads),
            kv_heads,
            _pad(kv_heads),
            dims // 2,
            _pad(dims // 2),
            block,
        )

    def place_latent(
        self, q_THX: Tensor, kv_TX: Tensor, norm: Norm, interleaved: bool, cache_PNKBD: Tensor, at: Places
    ) -> None:
        tokens, heads, dims = q_THX.shape
        rank = len(norm.weight)
        half = (cache_PNKBD.shape[-1] - rank) // 2
        place_latent_kernel[(tokens,)](
            q_THX,
            kv_TX,
            norm.weight,
            at.angles,
            at.positions_T,
            at.slots_T,
            cache_PNKBD[0],
            norm.eps,
            kv_TX.stride(0),
            interleaved,
            heads,
            _pad(heads),
            dims - 2 * half,
            half,
            _pad(half),
            rank,
            _pad(rank),
        )

    def attend(self, q_RHX: Tensor, cache_PNKBD: Tensor, pages: Pages) -> Tensor:
        rows, heads, dims = q_RHX.shape
        _, _, kv_heads, block, _ = cache_PNKBD.shape
        splits = _splits(rows * kv_heads)
        out, parts, tops = _outputs((rows, heads), dims, splits, q_RHX)
        # Decoding many requests is reading the cache: tiles of 32 with 2 warps do it at 91.5% of 4.8 TB/s.
        grouped_kernel[(kv_heads, rows, splits)](
            q_RHX,
            cache_PNKBD[0],
            cache_PNKBD[1],
            pages.table_RM,
            pages.lengths_R,
            parts,
            tops,
            dims**-0.5 * LOG2E,
            q_RHX.stride(0),
            pages.table_RM.shape[1],
            heads,
            kv_heads,
            # tl.dot takes no fewer than 16 rows.
            max(16, _pad(heads // kv_heads)),
            dims,
            max(16, _pad(dims)),
            block,
            32 if splits == 1 else 64,
            splits,
            pages.each,
            num_warps=2 if splits == 1 else 4,
            num_stages=2,
        )
        if splits > 1:
            join_kernel[(rows * heads,)](parts, tops, out, dims, _pad(dims), splits)
        return out

    def attend_latent(self, q_HRC: Tensor, q_RHX: Tensor, cache_PNKBD: Tensor, pages: Pages, scale: float) -> Tensor:
        heads, rows, rank = q_HRC.shape
        extra, block = q_RHX.shape[-1], cache_PNKBD.shape[3]
        tile = 16
        splits = _splits(rows * -(-heads // tile))
        out, parts, tops = _outputs((heads, rows), rank, splits, q_HRC)
        latent_kernel[(-(-heads // tile), rows, splits)](
            q_HRC,
            q_RHX,
            cache_PNKBD[0],
            pages.table_RM,
            pages.lengths_R,
            parts,
            tops,
            scale * LOG2E,
            rows,
            q_RHX.stride(0),
            q_RHX.stride(1),
            pages.table_RM.shape[1],
            heads,
            tile,
            rank,
            max(16, _pad(rank)),
            extra,
            max(16, _pad(extra)),
            block,
            32,
            splits,
            pages.each,
            num_warps=4,
            num_stages=2,
        )
        if splits > 1:
            join_kernel[(rows * heads,)](parts, tops, out, rank, _pad(rank), splits)
        return out

    def attend_runs(self, q_THX: Tensor, k_TKX: Tensor, v_TKX: Tensor, runs: Runs, scale: float) -> Tensor:
        flash = torch.ops.aten._flash_attention_forward
        ends = runs.query_ends, runs.key_ends
        out: Tensor = flash(
            q_THX, k_TKX, v_TKX, *ends, max(runs.queries), max(runs.keys), 0.0, True, False, scale=scale
        )[0]
        return out

    def route(self, x_TD: Tensor, router: Router, routing: Routing) -> tuple[Tensor, Tensor]:
        config, tokens = router.config, len(x_TD)
        # The kernel knows no groups of experts; and for many tokens the scores are one product.
        if config.n_group > 1 or tokens > FEW_ROUTED:
            scores_TE = router.scores(x_TD)
            chosen_TK = router.choose(scores_TE, routing)
            return chosen_TK, router.weights(scores_TE, chosen_TK).to(x_TD.dtype)
        chosen_TK = torch.empty(tokens, config.num_experts_per_tok, dtype=torch.int64, device=x_TD.device)
        share_TK = torch.empty(chosen_TK.shape, dtype=x_TD.dtype, device=x_TD.device)
        sigmoid = config.scoring == "sigmoid"
        route_kernel[(tokens,)](
            x_TD,
            router.weight,
            router.e_score_correction_bias if sigmoid else router.weight,
            chosen_TK,
            share_TK,
            config.routed_scaling_factor,
            x_TD.shape[1],
            max(16, min(128, 16384 // _pad(config.num_experts))),
            config.num_experts,
            _pad(config.num_experts),
            config.num_experts_per_tok,
            sigmoid,
            config.norm_topk_prob,
        )
        routing.chosen.append(chosen_TK)
        return chosen_TK, share_TK

    def experts(self, x_TD: Tensor, chosen_TK: Tensor, weight_TK: Tensor, experts: Experts) -> Tensor:
        tokens, choices = chosen_TK.shape
        _, double, dims = experts.gate_up_proj.shape
        width = double // 2
        if tokens * choices > FEW_VISITS:
            return _sorted_experts(x_TD, chosen_TK, weight_TK, experts)
        inner = x_TD.new_empty(tokens, choices, width)
        experts_in_kernel[(-(-width // 4), tokens * choices)](
            x_TD, chosen_TK, experts.gate_up_proj, inner, choices, dims, width, 4, _stride(dims)
        )
        out_TD = torch.empty_like(x_TD)
        experts_out_kernel[(-(-dims // 4), tokens)](
            inner, chosen_TK, weight_TK, experts.down_proj, out_TD, choices, dims, width, 4, _stride(width)
        )
        return out_TD

    def pair(self, weight_VD: Tensor, next_RJ: Tensor, hidden_TD: Tensor, next_norm: Norm, norm: Norm) -> Tensor:
        tokens, width = hidden_TD.shape
        out_T2D = hidden_TD.new_empty(tokens, 2 * width)
        pair_kernel[(tokens,)](
            weight_VD,
            next_RJ,
            hidden_TD.contiguous(),
            next_norm.weight,
            norm.weight,
            out_T2D,
            next_norm.eps,
            norm.eps,
            next_RJ.stride(0),
            next_RJ.shape[1],
            width,
            _pad(width),
        )
        return out_T2D

    def begin(self, asked: DraftInputs, left: DraftOutputs, work: DraftScratch, block: int, nobody: int) -> None:
        rows, new = work.ids_RJ.shape
        begin_kernel[(rows,)](
            asked.sources,
            asked.ends,
            asked.stops,
            asked.ids,
            asked.table,
            left.told_XS,
            work.ids_RJ,
            work.positions_RJ,
            work.slots_RJ,
            work.lengths_RJ,
            work.ends_R,
            left.told_XS.shape[1],
            asked.table.shape[1],
            nobody,
            new - 1,
            block,
            num_warps=1,
        )

    def accept(self, logits_TV: Tensor, asked: DraftInputs, left: DraftOutputs, work: DraftScratch) -> None:
        rows, new = work.ids_RJ.shape
        vocabulary, lines = logits_TV.shape[1], 2 * new - 1
        pieces = -(-vocabulary // PIECE)
        tops, sums = logits_TV.new_empty(2, rows * lines, pieces)
        bests = torch.empty(rows * lines, pieces, dtype=torch.int32, device=logits_TV.device)
        rests = torch.empty(rows, pieces, dtype=torch.float64, device=logits_TV.device)
        both, size = (logits_TV, left.beliefs_SKV, asked.sources, asked.temperatures), (vocabulary, pieces)
        sums_kernel[(rows * lines, pieces)](*both, tops, sums, bests, *size, new - 1, PIECE, num_warps=8)
        facts = (*both, asked.seeds, asked.prompts, asked.stops, work.ids_RJ, work.ends_R, tops, sums, bests, rests)
        tiles = new - 1, PIECE, _pad(pieces)
        rests_kernel[(rows, pieces)](*facts, *size, *tiles, num_warps=8)
        settle_kernel[(rows,)](
            *facts,
            left.told_XS,
            left.told_XS.view(torch.float32),
            work.ahead_RX,
            work.rows_R,
            work.numbers_KR,
            left.told_XS.shape[1],
            *size,
            rows,
            *tiles,
            num_warps=8,
        )

    def pick(
        self, logits_RV: Tensor, temperatures_R: Tensor, uniforms_R: Tensor, tokens_S: Tensor, logprobs_S: Tensor
    ) -> None:
        rows, vocabulary = logits_RV.shape
        pieces = -(-vocabulary // PIECE)
        tops_RC, sums_RC = logits_RV.new_empty(2, rows, pieces)
        bests_RC = torch.empty(rows, pieces, dtype=torch.int32, device=logits_RV.device)
        pieces_kernel[(rows, pieces)](
            logits_RV, temperatures_R, tops_RC, sums_RC, bests_RC, vocabulary, pieces, PIECE, num_warps=8
        )
        pick_kernel[(rows,)](
            logits_RV,
            temperatures_R,
            uniforms_R,
            tops_RC,
            sums_RC,
            bests_RC,
            tokens_S,
            logprobs_S,
            vocabulary,
            pieces,
            PIECE,
            _pad(pieces),
            num_warps=8,
        )


def _pad(size: int) -> int:
    padded: int = triton.next_power_of_2(size)
    return padded


def _stride(dims: int) -> int:
    """How much of a row of a weight a program reads at once."""
    return min(1024, _pad(dims))


def _splits(programs: int) -> int:
    """Into how many parts a request's tokens are split: a power of two."""
    return min(MOST_SPLITS, _pad(max(1, PROGRAMS // programs)))


def _outputs(shape: tuple[int, int], dims: int, splits: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What attention gives, and where splits put their parts of it."""
    out = like.new_empty(*shape, dims)
    # Without splits each program writes the result itself, and nothing is joined.
    if splits == 1:
        return out, out, out
    parts = torch.empty(*shape, splits, dims, dtype=torch.float32, device=like.device)
    return out, parts, torch.empty(*shape, splits, dtype=torch.float32, device=like.device)


def _few_tokens(
    x_TD: Tensor,
    weight: Tensor,
    outputs: int,
    y_TD: Tensor | None = None,
    norm: Norm | None = None,
    bias: Tensor | None = None,
    gate: bool = False,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """x + y, and what the weight makes of (the norm of) it."""
    tokens, width = x_TD.shape
    x_TD, y_TD = x_TD.contiguous(), None if y_TD is None else y_TD.contiguous()
    out_TN = torch.empty(tokens, outputs, dtype=out_dtype or x_TD.dtype, device=x_TD.device)
    summed_TD = x_TD if y_TD is None else torch.empty_like(x_TD)
    tile = 8 if outputs >= 1 << 15 else 2
    arguments: tuple[Any, ...] = (
        x_TD,
        x_TD if y_TD is None else y_TD,
        x_TD if norm is None else norm.weight,
        weight,
        x_TD if bias is None else bias,
        out_TN,
        summed_TD,
        0.0 if norm is None else norm.eps,
        outputs,
        width,
        _pad(width),
        y_TD is not None,
        norm is not None,
        bias is not None,
        gate,
        tile,
        _stride(width),
    )
    if tokens == FEW_TOKENS:
        twin_kernel[(-(-outputs // tile),)](*arguments, num_warps=4)
    else:
        thin_kernel[(-(-outputs // tile),)](*arguments, num_warps=4)
    return summed_TD, out_TN


def _gate(x_TX: Tensor) -> Tensor:
    width = x_TX.shape[1] // 2
    out_TF = x_TX.new_empty(len(x_TX), width)
    gate_kernel[(len(x_TX), -(-width // 1024))](x_TX, out_TF, width, 1024)
    return out_TF


def _sorted_experts(x_TD: Tensor, chosen_TK: Tensor, weight_TK: Tensor, experts: Experts) -> Tensor:
    """Visits sorted by expert through grouped products: each expert's weights are read once."""
    tokens, choices = chosen_TK.shape
    sorted_N, order_N = chosen_TK.flatten().short().sort(stable=True)  # short keys: a quarter of the passes
    numbers_E = torch.arange(len(experts.gate_up_proj), device=x_TD.device, dtype=torch.int16)
    ends_E = torch.searchsorted(sorted_N, numbers_E, right=True, out_int32=True)
    inner_NF = _gate(F.grouped_mm(x_TD[order_N // choices], experts.gate_up_proj.mT, offs=ends_E))
    out_ND = F.grouped_mm(inner_NF, experts.down_proj.mT, offs=ends_E)
    back_ND = torch.empty_like(out_ND).index_copy_(0, order_N, out_ND)
    return torch.bmm(weight_TK[:, None], back_ND.view(tokens, choices, -1))[:, 0]
