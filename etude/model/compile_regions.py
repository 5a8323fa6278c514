"""A block cut up for training: what comes before attention, attention itself, and what comes after it.

    before    norm, projections, rotation          -> queries, keys, values
    attend    a kernel of its own
    after     output projection, residual, norm, feed-forward; where there are experts it ends at the router's scores,
    choose    which experts, in plain torch: it keeps books,
    mixed     and what the chosen experts make of it

Between these cuts a compiler may make what it likes of the operations (`compiled`), and the backward pass may compute
them a second time instead of keeping what they made (`recompute`): a block then keeps its input and what attention
gave, so attention itself is never computed twice. All blocks of a model share what is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from etude.model.low_precision.products import hold

if TYPE_CHECKING:
    from etude.model.attention import Attend
    from etude.model.decoder import Block
    from etude.model.experts import Routing

Angles = tuple[Tensor, Tensor]

# projections of a block that act on one input
SIDE_BY_SIDE = ("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",)


@dataclass(frozen=True)
class Stages:
    compiled: bool = True
    recompute: bool = False
    backend: str = "inductor"  # of the compiler


def in_stages(block: Block, x_TD: Tensor, angles: Angles, attend: Attend, routing: Routing | None) -> Tensor:
    """The block's forward, stage by stage."""
    assert block.stages is not None
    run = _Runner(block.stages)
    if block.stages.compiled:
        _hold(block)
    out_THD = _attended(run, block, x_TD, angles, attend)
    if not block.sparse:
        out: Tensor = run(_after, block, x_TD, out_THD)
        return out
    x_TD, normed_TD, scores_TE = run(_after_until_router, block, x_TD, out_THD)
    mixture: Any = block.mlp
    chosen_TK = mixture.gate.choose(scores_TE, routing)
    # torch's grouped product, which a compiler needs, knows no other dtype
    if x_TD.dtype != torch.bfloat16 or not mixture.experts.compiles:
        run = _Runner(replace(block.stages, compiled=False))
    mixed_TD: Tensor = run(_mixed, block, x_TD, normed_TD, scores_TE, chosen_TK)
    return mixed_TD


def _attended(run: _Runner, block: Block, x_TD: Tensor, angles: Angles, attend: Attend) -> Tensor:
    if attend.gather is not None:
        # Keys and values of whole sequences are not kept: with recomputation, attention is computed a second time too.
        # Not compiled, since a compiler would do so again for every other way to divide sequences.
        plain = _Runner(replace(run.stages, compiled=False))
        whole_THD: Tensor = plain(_before_and_attention, block, x_TD, angles, attend)
        return whole_THD
    layer, (q_THD, k_TKD, v_TKD) = block.self_attn.layer, run(_before, block, x_TD, angles)
    if run.stages.recompute and torch.is_grad_enabled():
        # `partial` binds x_TD now: a closure over a name that is bound again gave experts a wrong gradient.
        again = _Again((q_THD, k_TKD, v_TKD), partial(run.forward, _before, block, x_TD, angles))
        with saved_tensors_hooks(again.pack, again.unpack):
            return attend(layer, q_THD, k_TKD, v_TKD)
    return attend(layer, q_THD, k_TKD, v_TKD)


def _before_and_attention(block: Block, x_TD: Tensor, angles: Angles, attend: Attend) -> Tensor:
    attention = block.self_attn
    return attend(attention.layer, *attention.project(block.input_layernorm(x_TD), angles, attend.gather))


def _before(block: Block, x_TD: Tensor, angles: Angles) -> tuple[Tensor, Tensor, Tensor]:
    return block.self_attn.project(block.input_layernorm(x_TD), angles)


def _after(block: Block, x_TD: Tensor, out_THD: Tensor) -> Tensor:
    x_TD = x_TD + block.self_attn.output(out_THD)
    out: Tensor = x_TD + block.mlp(block.post_attention_layernorm(x_TD))
    return out


def _after_until_router(block: Block, x_TD: Tensor, out_THD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x_TD = x_TD + block.self_attn.output(out_THD)
    normed_TD = block.post_attention_layernorm(x_TD)
    mixture: Any = block.mlp
    return x_TD, normed_TD, mixture.gate.scores(normed_TD)


def _mixed(block: Block, x_TD: Tensor, normed_TD: Tensor, scores_TE: Tensor, chosen_TK: Tensor) -> Tensor:
    mixture: Any = block.mlp
    out: Tensor = x_TD + mixture.mixed(normed_TD, scores_TE, chosen_TK)
    return out


def _hold(block: Block) -> None:
    """Weights in 8 bits are made once for all batches of a step, so outside of what is compiled."""
    for part in (block.self_attn, block.mlp):
        for names in SIDE_BY_SIDE:
            if all(hasattr(part, name) for name in names):
                hold([getattr(part, name) for name in names])


@cache
def _compiled(stage: Callable[..., Any], backend: str) -> Callable[..., Any]:
    # a stage is compiled for each kind of block, precision and grad mode, and for one or for any number of tokens
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    return torch.compile(stage, fullgraph=True, backend=backend)


class _Runner:
    """Runs a stage as the settings say."""

    def __init__(self, stages: Stages) -> None:
        self.stages = stages

    def __call__(self, stage: Callable[..., Any], *arguments: Any) -> Any:
        if self.stages.recompute and torch.is_grad_enabled():
            stage = _compiled(stage, self.stages.backend) if self.stages.compiled else stage
            # nothing here is random, and asking a GPU for the state of its random numbers would wait for it
            return checkpoint(stage, *arguments, use_reentrant=False, preserve_rng_state=False)
        return self.forward(stage, *arguments)

    def forward(self, stage: Callable[..., Any], *arguments: Any) -> Any:
        return (_compiled(stage, self.stages.backend) if self.stages.compiled else stage)(*arguments)


class _Kept(NamedTuple):
    """In place of a tensor that attention wanted to keep: which one it was, and how it looked at it."""

    number: int
    shape: torch.Size
    stride: tuple[int, ...]


class _Again:
    """Queries, keys and values that attention does not keep for its backward pass: they are computed a second time."""

    def __init__(self, inputs: tuple[Tensor, ...], compute: Callable[[], tuple[Tensor, ...]]) -> None:
        self.inputs = [(x.data_ptr(), x.shape, x.stride()) for x in inputs]
        self.compute = compute
        self.found: dict[int, Tensor] = {}

    def pack(self, x: Tensor) -> Tensor | _Kept:
        for number, (place, shape, _) in enumerate(self.inputs):
            # By address and size: attention keeps views of its inputs, not the tensors that it was given.
            if x.data_ptr() == place and x.numel() == shape.numel():
                return _Kept(number, x.shape, x.stride())
        return x

    def unpack(self, x: Tensor | _Kept) -> Tensor:
        if isinstance(x, Tensor):
            return x
        if x.number not in self.found:
            with torch.no_grad():
                self.found = dict(enumerate(self.compute()))
        found, (_, shape, stride) = self.found.pop(x.number), self.inputs[x.number]
        # What is computed again may be laid out in another way than the views of the first time expect.
        if found.stride() != stride:
            found = torch.empty_strided(shape, stride, dtype=found.dtype, device=found.device).copy_(found)
        return found.as_strided(x.shape, x.stride, found.storage_offset())
