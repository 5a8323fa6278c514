"""The GPU engine's kernels against plain torch, on random inputs of many shapes.

    python benchmarks/h200_ops.py                                  # on a GPU, in bfloat16 and float32
    TRITON_INTERPRET=1 python benchmarks/h200_ops.py --device cpu  # without one, slowly: Triton's interpreter

Prints the relative error ||kernel - torch|| / ||torch|| of each operation, both from the same inputs, and exits 1 if
one is too large. On a GPU memory is poisoned first, so that a place nobody wrote shows.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from reference_ops import ReferenceOps
from torch import Tensor
from torch.nn import functional as F

from etude.engine.cuda.draft_tensors import DraftInputs, DraftInputStaging, DraftOutputs, DraftScratch
from etude.engine.cuda.fused import FusedOps
from etude.engine.cuda.ops import Norm, Ops, Pages, Places, Runs
from etude.model.config import ModelConfig
from etude.model.experts import MixtureOfExperts, Routing
from etude.model.rope import Rope

BOUNDS = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
OURS, TORCH = FusedOps(), ReferenceOps()
Pair = tuple[Tensor, Tensor]


class Draw:
    """Random inputs of one device and dtype."""

    def __init__(self, device: str, dtype: torch.dtype, seed: int) -> None:
        self.device, self.dtype = torch.device(device), dtype
        self.generator = torch.Generator(device).manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(*shape, generator=self.generator, device=self.device) * scale).to(self.dtype)

    def norm(self, width: int) -> Norm:
        return Norm(1 + self.normal(width, scale=0.1), 1e-6)

    def whole(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=self.generator, device=self.device).int()

    def places(self, tokens: int, slots: int, rotated: int) -> Places:
        rope = Rope(rotated, 10_000.0)
        rope(torch.zeros(1, dtype=torch.int64, device=self.device), 600)
        chosen = torch.randperm(slots, generator=self.generator, device=self.device)[:tokens].int()
        return Places(self.whole(600, tokens), chosen, rope.table)

    def pages(self, lengths: list[int], blocks: int, block: int) -> Pages:
        most = -(-max(lengths) // block) + 2
        lines = [torch.randperm(blocks, generator=self.generator, device=self.device)[:most] for _ in lengths]
        return Pages(torch.stack(lines).int(), torch.tensor(lengths, device=self.device, dtype=torch.int32))

    def mixture(self, scoring: str, small: bool) -> MixtureOfExperts:
        width, inner, experts = (48, 24, 10) if small else (1024, 384, 64)
        config = ModelConfig(64, width, 64, 2, 4, 4, 8, num_experts=experts, num_experts_per_tok=3, scoring=scoring,
                             moe_intermediate_size=inner)  # fmt: skip
        mixture = MixtureOfExperts(config).to(self.device).requires_grad_(False)
        for parameter in mixture.parameters():
            parameter.data = self.normal(*parameter.shape, scale=parameter.shape[-1] ** -0.5)
        if scoring == "sigmoid":
            mixture.gate.e_score_correction_bias.normal_(generator=self.generator).mul_(0.1)
        return mixture


def cases(draw: Draw, small: bool) -> Iterator[tuple[str, Callable[[], Pair]]]:
    for tokens in (1, 2, 3) if small else (1, 2, 7, 256):
        for width, hidden in ((48, 40), (256, 768)) if small else ((512, 1536), (1024, 3072), (2048, 704)):
            yield f"products {tokens} {width}x{hidden}", partial(products, draw, tokens, width, hidden)
        yield f"embed {tokens}", partial(embed, draw, tokens)
        for heads in ((4, 2, 16), (3, 1, 24)) if small else ((16, 8, 128), (8, 4, 64), (32, 4, 80)):
            yield f"place {tokens} {heads}", partial(place, draw, tokens, *heads)
        for side in (False, True):
            shape = (4, 16, 8) if small else (16, 512, 64)
            yield f"place_latent {tokens} {side}", partial(place_latent, draw, tokens, *shape, side)
        yield f"experts {tokens}", partial(experts, draw, tokens, small)
        for scoring in ("sigmoid", "softmax"):
            yield f"route {tokens} {scoring}", partial(route, draw, tokens, scoring)
    many = [13, 0, 900, 64, 65, 1, 2000]
    for lengths in ([1], [5, 0, 100, 64, 33]) if small else ([1], [700], [5000], many, [555] * 256):
        for heads in ((4, 2, 16), (3, 1, 24)) if small else ((16, 8, 128), (8, 4, 64), (32, 1, 80)):
            yield f"attend {len(lengths)}x{max(lengths)} {heads}", partial(attend, draw, lengths, *heads)
        for shape in ((4, 16, 8), (20, 40, 8)) if small else ((16, 512, 64), (40, 256, 32)):
            yield f"attend_latent {len(lengths)}x{max(lengths)} {shape}", partial(attend_latent, draw, lengths, *shape)
    if draw.dtype == torch.bfloat16:
        yield "attend_runs", partial(attend_runs, draw)
    if draw.dtype == torch.float32:
        yield "pick", partial(pick, draw, small)
        for rows, drafts in ((1, 1), (5, 1), (6, 3)) if small else ((1, 1), (3, 1), (256, 1), (40, 3)):
            yield f"begin {rows} {drafts}", partial(begin, draw, rows, drafts)
            yield f"accept {rows} {drafts}", partial(accept, draw, rows, drafts, 9000 if small else 40_000)
    for drafts in (1, 3):
        yield f"pair {drafts}", partial(pair, draw, 4, drafts)


def products(draw: Draw, tokens: int, width: int, hidden: int) -> Pair:
    x, y, norm = draw.normal(tokens, width), draw.normal(tokens, width), draw.norm(width)
    weight, bias, wide = (
        draw.normal(hidden, width, scale=width**-0.5),
        draw.normal(hidden),
        draw.normal(tokens, 3 * width),
    )

    def work(ops: Ops) -> tuple[Tensor, ...]:
        return (
            *ops.norm_linear(x, y, norm, weight, bias),
            *ops.norm_gated(x, None, norm, weight),
            *ops.norm_gated(x, y, norm, weight),
            ops.linear(x, weight),
            ops.gated(x, weight),
            ops.logits(x, weight),
            ops.norm(wide[:, 8 : 8 + width], norm),
        )

    return both(work)


def embed(draw: Draw, tokens: int) -> Pair:
    weight, ids, sampled = draw.normal(300, 40), draw.whole(300, tokens), draw.whole(300, 9)
    sources = draw.whole(10, tokens) - 1
    return both(lambda ops: (ops.embed(weight, ids, sources, sampled),))


def place(draw: Draw, tokens: int, heads: int, kv_heads: int, dims: int) -> Pair:
    qkv, cache = draw.normal(tokens, (heads + 2 * kv_heads) * dims), draw.normal(2, 40, kv_heads, 16, dims)
    at, norms = draw.places(tokens, 640, dims), (draw.norm(dims), draw.norm(dims))

    def work(ops: Ops) -> tuple[Tensor, ...]:
        out: list[Tensor] = []
        for q_norm, k_norm in (norms, (None, None)):
            out += [qkv.clone(), cache.clone()]
            ops.place(out[-2], heads, q_norm, k_norm, out[-1], at)
        return tuple(out)

    return both(work)


def place_latent(draw: Draw, tokens: int, heads: int, rank: int, extra: int, interleaved: bool) -> Pair:
    q, joint = draw.normal(tokens, heads, 24 + extra), draw.normal(tokens, 32 + rank + extra)
    cache, at, norm = draw.normal(1, 40, 1, 16, rank + extra), draw.places(tokens, 640, extra), draw.norm(rank)

    def work(ops: Ops) -> tuple[Tensor, ...]:
        out = q.clone(), joint.clone(), cache.clone()
        ops.place_latent(out[0], out[1][:, 32:], norm, interleaved, out[2], at)
        return out

    return both(work)


def attend(draw: Draw, lengths: list[int], heads: int, kv_heads: int, dims: int) -> Pair:
    wide, cache = draw.normal(len(lengths), heads + 3, dims), draw.normal(2, 400, kv_heads, 16, dims)
    pages = draw.pages(lengths, 400, 16)
    twice = Pages(pages.table_RM, torch.stack((pages.lengths_R, (pages.lengths_R - 1).clamp(min=0)), 1).flatten(), 2)
    more = draw.normal(2 * len(lengths), heads, dims)
    return both(lambda ops: (ops.attend(wide[:, :heads], cache, pages), ops.attend(more, cache, twice)))


def attend_latent(draw: Draw, lengths: list[int], heads: int, rank: int, extra: int) -> Pair:
    q, wide = draw.normal(heads, len(lengths), rank), draw.normal(len(lengths), heads, 24 + extra)
    cache, pages = draw.normal(1, 400, 1, 16, rank + extra), draw.pages(lengths, 400, 16)
    return both(lambda ops: (ops.attend_latent(q, wide[..., 24:], cache, pages, 0.06),))


def attend_runs(draw: Draw) -> Pair:
    queries, keys = [5, 300, 64], [5, 1000, 64]
    q, k, v = draw.normal(369, 16, 128), draw.normal(1069, 8, 128), draw.normal(1069, 8, 128)
    ends = [F.pad(torch.tensor(x).cumsum(0), (1, 0)).int().to(draw.device) for x in (queries, keys)]
    return both(lambda ops: (ops.attend_runs(q, k, v, Runs(queries, keys, *ends), 0.09),))


def experts(draw: Draw, tokens: int, small: bool) -> Pair:
    if draw.dtype == torch.float32:
        tokens = min(tokens, 16)  # grouped products of many visits are bfloat16's alone
    mixture = draw.mixture("sigmoid", small)
    x, share = draw.normal(tokens, mixture.gate.weight.shape[1]), draw.normal(tokens, 3)
    chosen = draw.whole(len(mixture.gate.weight), tokens, 3).long()
    inner = torch.einsum("td,tkfd->tkf", x.float(), mixture.experts.gate_up_proj.float()[chosen])
    gate, up = inner.chunk(2, -1)
    each = torch.einsum("tkf,tkdf->tkd", F.silu(gate) * up, mixture.experts.down_proj.float()[chosen])
    return OURS.experts(x, chosen, share, mixture.experts), (each * share[..., None].float()).sum(1)


def route(draw: Draw, tokens: int, scoring: str) -> Pair:
    gate = draw.mixture(scoring, True).gate
    x = draw.normal(tokens, gate.weight.shape[1])
    (chosen, share), (wanted, wanted_share) = (ops.route(x, gate, Routing()) for ops in (OURS, TORCH))
    assert torch.equal(chosen, wanted), "other experts were chosen"
    return share, wanted_share


def pick(draw: Draw, small: bool) -> Pair:
    """Tokens must be the same where rounding does not decide; what is compared are log-probabilities."""
    rows, vocabulary = (5, 9000) if small else (256, 151_936)
    logits = draw.normal(rows, vocabulary, scale=3.0)
    temperatures = torch.tensor([0.0, 1.0, 0.6, 1.3] * rows, device=draw.device, dtype=torch.float64)[:rows]
    uniforms = torch.rand(rows, generator=draw.generator, device=draw.device, dtype=torch.float64)
    uniforms[: rows // 8] = 1 - 2**-53
    tokens = [torch.full((rows + 3,), -7, device=draw.device).int() for _ in range(2)]
    logprobs = [torch.zeros(rows + 3, device=draw.device) for _ in range(2)]
    for ops, token, logprob in zip((OURS, TORCH), tokens, logprobs, strict=True):
        ops.pick(logits, temperatures, uniforms, token, logprob)
    same = tokens[0] == tokens[1]
    assert same[:rows].float().mean() > 0.97 and (tokens[0][rows:] == -7).all(), f"tokens differ: {same.float().mean()}"
    result = logprobs[0][same], logprobs[1][same]
    bad, seen = logits[:3].clone(), [torch.zeros(3, device=draw.device) for _ in range(2)]
    bad[0, 5], bad[1, 4097] = float("nan"), float("inf")
    OURS.pick(bad, temperatures[:3], uniforms[:3], chosen := seen[0].int(), seen[1])
    assert seen[1].isfinite().tolist() == [False, False, True] and (chosen >= 0).all(), "what is not finite looks fine"
    return result


def pair(draw: Draw, rows: int, drafts: int) -> Pair:
    table, wide = draw.normal(300, 40), draw.whole(300, rows, 2 * drafts + 1)
    hidden, norms = draw.normal(rows * (drafts + 1), 40), (draw.norm(40), draw.norm(40))
    return both(lambda ops: (ops.pair(table, wide[:, drafts - 1 : 2 * drafts], hidden, *norms),))


def drafted(draw: Draw, rows: int, drafts: int, vocabulary: int) -> tuple[DraftInputs, DraftOutputs, DraftScratch]:
    """Rows of all kinds: said by the host or left by a step, near their end, past it, of nobody, greedy."""
    left, work = DraftOutputs(rows + 2, drafts, vocabulary, draw.device), DraftScratch(rows, drafts, draw.device)
    asking = DraftInputStaging(rows, drafts, 40, draw.device)
    left.told_XS.copy_(draw.whole(vocabulary, *left.told_XS.shape))
    left.kept_S.copy_(draw.whole(drafts + 1, rows + 2))
    left.ends_S.copy_(200 + draw.whole(300, rows + 2))
    left.beliefs_SKV.copy_(draw.normal(*left.beliefs_SKV.shape, scale=3.0))
    host = asking.host
    host.temperatures[:] = np.resize([1.0, 0.0, 0.6, 1.3], rows)
    host.seeds[:] = draw.whole(1 << 30, rows).cpu().numpy().astype(np.int64) * -7_654_321_987
    host.sources[:] = np.resize([rows + 1, -1, 0], rows)
    host.ends[:], host.prompts[:] = 100 + draw.whole(400, rows).cpu().numpy(), 50
    host.stops[:] = np.resize([600, 600, 0], rows) if rows > 2 else 600
    host.ids[:] = draw.whole(vocabulary, rows, drafts + 1).cpu().numpy()
    host.table[:] = draw.whole(400, rows, 40).cpu().numpy()
    if rows > 4:  # the last token but two, and the last but one
        host.stops[3], host.stops[4] = left.ends_S[rows + 1] + 2, host.ends[4] + 1
    asking.send()
    return asking.device, left, work


def begin(draw: Draw, rows: int, drafts: int) -> Pair:
    asked, left, ours = drafted(draw, rows, drafts, 300)
    theirs = DraftScratch(rows, drafts, draw.device)
    found = []
    for ops, work in ((OURS, ours), (TORCH, theirs)):
        ops.begin(asked, left, work, 16, 6400)
        parts = work.ids_RJ, work.positions_RJ, work.slots_RJ, work.lengths_RJ, work.ends_R
        found.append(torch.cat([part.flatten() for part in parts]))
    assert torch.equal(*found), "other tokens or places"
    return found[0].float(), found[1].float()


def accept(draw: Draw, rows: int, drafts: int, vocabulary: int) -> Pair:
    """Tokens must be the same where rounding does not decide; log-probabilities are compared."""
    asked, left, work = drafted(draw, rows, drafts, vocabulary)
    TORCH.begin(asked, left, work, 16, 6400)
    new = drafts + 1
    logits = draw.normal(rows * new, vocabulary, scale=3.0)
    seats = torch.where(asked.sources < 0, torch.arange(rows, device=draw.device), asked.sources).long()
    near = left.beliefs_SKV[seats] + draw.normal(rows, drafts, vocabulary, scale=0.3)
    logits.view(rows, new, -1)[:, :drafts] = near  # so that many drafts are kept
    likely = (near / 0.7).softmax(-1).flatten(0, 1).multinomial(1, generator=draw.generator)
    work.ids_RJ[:, 1:] = likely.view(rows, drafts).int()
    found = []
    for ops in (OURS, TORCH):
        mine, mixed = copy.deepcopy(left), copy.deepcopy(work)
        ops.accept(logits, asked, mine, mixed)
        told = torch.split(mine.told_XS, [2, new, new, drafts])
        whole = [*told[0][:, :rows], *told[1][:, :rows], mixed.rows_R, *mixed.ahead_RX.T]
        reals = [*told[2].view(torch.float32)[:, :rows], *mixed.numbers_KR.float()]
        assert torch.equal(mine.told_XS[:, rows:], left.told_XS[:, rows:]), "wrote to rows of others"
        found.append((torch.stack(whole), torch.stack(reals)))
    same = (found[0][0] == found[1][0]).all(0)
    assert same.float().mean() >= (1.0 if rows < 30 else 0.97), f"tokens differ: {same.tolist()}"
    if rows > 30:
        assert len(found[0][0][0].unique()) == new, "not every number of drafts was kept"
    return found[0][1][:, same], found[1][1][:, same]


def both(work: Callable[[Ops], tuple[Tensor, ...]]) -> Pair:
    ours, theirs = (torch.cat([part.float().flatten() for part in work(ops)]) for ops in (OURS, TORCH))
    return ours, theirs


def check(device: str, dtype: torch.dtype, seed: int, only: str) -> bool:
    draw, good = Draw(device, dtype, seed), True
    for name, work in cases(draw, device == "cpu"):
        if only not in name:
            continue
        try:
            if device != "cpu":  # memory that is handed out next holds no numbers
                torch.full((1 << 24,), float("nan"), device=device)
            ours, theirs = (x.float().flatten() for x in work())
            error = float((ours - theirs).norm() / theirs.norm().clamp(min=1e-9))
            passed = error < BOUNDS[dtype]
            print(json.dumps({"op": name, "dtype": str(dtype)[6:], "error": error, "passed": passed}), flush=True)
        except Exception:
            passed = False
            print(json.dumps({"op": name, "failed": traceback.format_exc().splitlines()[-3:]}), flush=True)
        good &= passed
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="", help="operations whose name contains this")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    half = torch.float16 if options.device == "cpu" else torch.bfloat16  # which the interpreter cannot multiply
    with torch.inference_mode():
        good = [check(options.device, dtype, options.seed, options.only) for dtype in (torch.float32, half)]
    print(json.dumps({"passed": all(good)}))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
