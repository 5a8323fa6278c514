"""What a step on a GPU is made of: one seam, behind which the operations are Triton kernels or plain torch.

Shapes: T tokens, R decoding requests, D dimensions of the model, H query and K key-value heads of X dimensions, C
dimensions of a latent, M blocks in the longest table, V tokens in the vocabulary. Slots are places in the cache. What
is written into an argument is said; everything else is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from etude.model.experts import Experts, Router, Routing

if TYPE_CHECKING:
    from etude.engine.cuda.draft_tensors import DraftInputs, DraftOutputs, DraftScratch


@dataclass(frozen=True)
class Norm:
    weight: Tensor
    eps: float


@dataclass(frozen=True)
class Places:
    """Where a step's new tokens stand: in their sequences, and in the cache."""

    positions_T: Tensor
    slots_T: Tensor
    angles: Tensor  # the rotary table [positions, 2, half of the rotated dimensions], float32


@dataclass(frozen=True)
class Pages:
    """What R queries see: the blocks of each, and how many tokens are in them; `each` queries share a line."""

    table_RM: Tensor
    lengths_R: Tensor
    each: int = 1


@dataclass(frozen=True)
class Runs:
    """Queries that stand one after another in their sequences, end to end, and all keys before and among them."""

    queries: list[int]  # lengths
    keys: list[int]
    query_ends: Tensor  # 0, then where each run ends; int32
    key_ends: Tensor


class Ops(Protocol):
    def embed(self, weight_VD: Tensor, tokens_T: Tensor, sources_T: Tensor, sampled_S: Tensor) -> Tensor:
        """Rows of the table: of the token that the last step sampled at its source, or (-1) of the one given."""
        ...

    def norm(self, x_TD: Tensor, norm: Norm) -> Tensor: ...

    def norm_linear(
        self, x_TD: Tensor, y_TD: Tensor | None, norm: Norm, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """x + y, and the projection of its norm."""
        ...

    def norm_gated(self, x_TD: Tensor, y_TD: Tensor | None, norm: Norm, gate_up: Tensor) -> tuple[Tensor, Tensor]:
        """x + y, and silu(gate) * up of its norm; the two matrices lie one below the other."""
        ...

    def add_norm(self, x_TD: Tensor, y_TD: Tensor | None, norm: Norm) -> tuple[Tensor, Tensor]:
        """x + y, and its norm."""
        ...

    def linear(self, x_TD: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor: ...

    def gated(self, x_TD: Tensor, gate_up: Tensor) -> Tensor: ...

    def logits(self, x_TD: Tensor, weight_VD: Tensor) -> Tensor:
        """float32, not rounded to the weights' precision."""
        ...

    def place(
        self, qkv_TX: Tensor, heads: int, q_norm: Norm | None, k_norm: Norm | None, cache_PNKBD: Tensor, at: Places
    ) -> None:
        """Normalises and rotates queries and keys where they stand, and writes keys and values into the cache."""
        ...

    def place_latent(
        self, q_THX: Tensor, kv_TX: Tensor, norm: Norm, interleaved: bool, cache_PNKBD: Tensor, at: Places
    ) -> None:
        """The same for latents: queries' last dimensions are rotated, latents normalised; both where they stand."""
        ...

    def attend(self, q_RHX: Tensor, cache_PNKBD: Tensor, pages: Pages) -> Tensor:
        """One query a request over its pages -> [R, H, X]. A request of length 0 gives zeros."""
        ...

    def attend_latent(self, q_HRC: Tensor, q_RHX: Tensor, cache_PNKBD: Tensor, pages: Pages, scale: float) -> Tensor:
        """The same over latents, all heads over one; queries in two parts -> [H, R, C]."""
        ...

    def attend_runs(self, q_THX: Tensor, k_TKX: Tensor, v_TKX: Tensor, runs: Runs, scale: float) -> Tensor:
        """Causal attention of each run, whose last query sees all of its keys -> [T, H, X]."""
        ...

    def route(self, x_TD: Tensor, router: Router, routing: Routing) -> tuple[Tensor, Tensor]:
        """Experts and their weights; the choice is also written into the routing."""
        ...

    def experts(self, x_TD: Tensor, chosen_TK: Tensor, weight_TK: Tensor, experts: Experts) -> Tensor: ...

    def pair(self, weight_VD: Tensor, next_RJ: Tensor, hidden_TD: Tensor, next_norm: Norm, norm: Norm) -> Tensor:
        """Side by side: the norm of the next tokens' rows of the table, and that of the states."""
        ...

    def begin(self, asked: DraftInputs, left: DraftOutputs, work: DraftScratch, block: int, nobody: int) -> None:
        """Written into `work`: which tokens stand where; those past a request's end go to the slot `nobody`."""
        ...

    def accept(self, logits_TV: Tensor, asked: DraftInputs, left: DraftOutputs, work: DraftScratch) -> None:
        """Which drafts are kept and what is drawn behind them, written into `left`; what to draft from into `work`."""
        ...

    def pick(
        self, logits_RV: Tensor, temperatures_R: Tensor, uniforms_R: Tensor, tokens_S: Tensor, logprobs_S: Tensor
    ) -> None:
        """A token for each row by the inverse of its cumulative distribution, or the best at temperature 0; written
        with its log-probability into the first places of `tokens_S` and `logprobs_S`.
        """
        ...
