"""Experts: a router sends each token to a few of many small feed-forward networks.

Weights of all experts lie stacked, so that tokens sorted by expert go through one grouped product. What the routers
of a forward choose is written into a `Routing`; one that was given the choices of an earlier forward makes the
routers choose the same again (router replay), while their scores, and so the gradients, are computed anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.core.policy import UNROUTED
from etude.model.config import ModelConfig
from etude.model.low_precision.products import PLAIN, Precision
from etude.model.mlp import SwiGLU


class Routing:
    """The experts of one forward: those chosen, block by block, and those to be chosen again.

    Shapes: T tokens, B blocks with experts, K experts of a token, E experts there are. An entry of `replay_TBK` that
    is UNROUTED leaves the choice of that token to the router.

    A replayed expert must be plausible: its score at least `plausible` times that of the router's own last choice.
    One that is not gives its place to the best of the router's own that is still free. 0 replays everything. The
    bound is one for all tokens, or one for each [T, 1].

    Routers count the load of all tokens, or of those in `counted_T`.
    """

    counted_T: Tensor | None = None

    def __init__(self, replay_TBK: Tensor | None = None, plausible: float | Tensor = 0.0) -> None:
        self.replay_TBK, self.plausible = replay_TBK, plausible
        self.chosen: list[Tensor] = []  # [T, K] of each block with experts, in order
        # experts asked for; of them, those that the router would not have chosen; and those that it refused
        self.replayed: Tensor | int = 0  # on the device: nobody waits for them before the end of a batch
        self.moved: Tensor | int = 0
        self.refused: Tensor | int = 0

    def settle(self, scores_TE: Tensor, preference_TE: Tensor, own_TK: Tensor) -> Tensor:
        """The experts of the next block, whose router would choose `own_TK`."""
        chosen_TK = own_TK
        if self.replay_TBK is not None:
            chosen_TK = self._replay(self.replay_TBK[:, len(self.chosen)], scores_TE, preference_TE, own_TK)
        self.chosen.append(chosen_TK)
        return chosen_TK

    def _replay(self, asked_TK: Tensor, scores_TE: Tensor, preference_TE: Tensor, own_TK: Tensor) -> Tensor:
        known_TK = asked_TK != UNROUTED
        places_TK = asked_TK.clamp(min=0).long()
        least_T1 = self.plausible * scores_TE.gather(-1, own_TK).amin(-1, keepdim=True)
        kept_TK = known_TK & (scores_TE.gather(-1, places_TK) >= least_T1)
        # those kept come before all others, the rest in the router's order
        first_TE = torch.zeros_like(preference_TE).scatter_add_(-1, places_TK, kept_TK.to(preference_TE.dtype))
        chosen_TK = preference_TE.masked_fill(first_TE > 0, torch.inf).topk(own_TK.shape[1], -1).indices
        self.replayed = self.replayed + known_TK.sum()
        self.moved = self.moved + (known_TK & (asked_TK[:, :, None] != own_TK[:, None, :]).all(-1)).sum()
        self.refused = self.refused + (known_TK & ~kept_TK).sum()
        return chosen_TK.sort(-1).values

    @property
    def chosen_TBK(self) -> Tensor:
        return torch.stack(self.chosen, dim=1)


def replay_metrics(routings: Sequence[Routing]) -> dict[str, float]:
    """The shares of the experts asked for that routers would not have chosen, and that they refused."""
    if not routings:
        return {}
    asked = max(1, sum(int(routing.replayed) for routing in routings))
    moved, refused = (sum(int(getattr(r, name)) for r in routings) for name in ("moved", "refused"))
    return {"replay_moved": moved / asked, "replay_refused": refused / asked}


class Router(nn.Module):
    """Which experts a token goes to, and with what weight.

    Sigmoid scores come with a correction bias that takes part in the choice, never in the weight: `balance` raises it
    for experts that got too few tokens. So the load evens out without a loss that pulls at the model.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.zeros(config.num_experts, config.hidden_size))
        if config.scoring == "sigmoid":
            self.register_buffer("e_score_correction_bias", torch.zeros(config.num_experts))
            self.e_score_correction_bias: Tensor
        self.register_buffer("load_E", torch.zeros(config.num_experts), persistent=False)  # tokens since `balance`
        self.load_E: Tensor

    def scores(self, x_TD: Tensor) -> Tensor:
        # float32, of the weight that an engine has
        logits_TE = F.linear(x_TD.float(), self.weight.to(x_TD.dtype).float())
        return logits_TE.sigmoid() if self.config.scoring == "sigmoid" else logits_TE.softmax(-1)

    def choose(self, scores_TE: Tensor, routing: Routing | None) -> Tensor:
        with torch.no_grad():
            preference_TE = self._preference(scores_TE)
            # in the order of their numbers, so that equal choices are added up in the same order
            chosen_TK = preference_TE.topk(self.config.num_experts_per_tok, -1).indices.sort(-1).values
            if routing is not None:
                chosen_TK = routing.settle(scores_TE, preference_TE, chosen_TK)
        # Only training moves the bias, so only training counts the load.
        if torch.is_grad_enabled():
            counted_T = None if routing is None else routing.counted_T
            counted_TK = chosen_TK if counted_T is None else chosen_TK[counted_T]
            self.load_E += _visits(counted_TK, self.config.num_experts)
        return chosen_TK

    def weights(self, scores_TE: Tensor, chosen_TK: Tensor) -> Tensor:
        weight_TK = scores_TE.gather(-1, chosen_TK)
        if self.config.norm_topk_prob:
            # Scores may all underflow to 0.
            weight_TK = weight_TK / (weight_TK.sum(-1, keepdim=True) + 1e-20)
        return weight_TK * self.config.routed_scaling_factor

    def _preference(self, scores_TE: Tensor) -> Tensor:
        """What experts are chosen by: the corrected scores, minus infinity outside of a token's groups."""
        config = self.config
        if config.scoring != "sigmoid":
            return scores_TE
        preference_TE = scores_TE + self.e_score_correction_bias
        if config.n_group > 1:
            groups_TGM = preference_TE.view(len(preference_TE), config.n_group, config.num_experts // config.n_group)
            best_TG = groups_TGM.topk(2, -1).values.sum(-1)
            allowed_TG = torch.zeros_like(best_TG, dtype=torch.bool)
            allowed_TG.scatter_(-1, best_TG.topk(config.topk_group, -1).indices, True)
            preference_TE = groups_TGM.masked_fill(~allowed_TG[:, :, None], -torch.inf).flatten(-2)
        return preference_TE


class Experts(nn.Module):
    """The stacked weights: E experts, F hidden dimensions of each, gate and up projections below one another."""

    precision = PLAIN
    compiles = True  # whether a compiler may take its forward

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        count, width, hidden = config.num_experts, config.hidden_size, config.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.zeros(count, 2 * hidden, width))
        self.down_proj = nn.Parameter(torch.zeros(count, width, hidden))

    def forward(self, x_TD: Tensor, chosen_TK: Tensor, weight_TK: Tensor) -> Tensor:
        visits = Visits(chosen_TK, self.gate_up_proj.shape[0])
        rows_ND = visits.spread(x_TD)
        out_ND = grouped_swiglu(self.precision, rows_ND, self.gate_up_proj, self.down_proj, visits.sizes_E)
        return visits.combine(out_ND, weight_TK)


def grouped_swiglu(
    precision: Precision, x_ND: Tensor, gate_up_EXD: Tensor, down_EDF: Tensor, sizes_E: Tensor
) -> Tensor:
    """Rows that lie expert by expert, `sizes_E` of each, through their experts."""
    gate_NF, up_NF = precision.grouped(x_ND, gate_up_EXD, sizes_E).chunk(2, -1)
    return precision.grouped(F.silu(gate_NF) * up_NF, down_EDF, sizes_E)


class Visits:
    """The tokens of a layer once for each expert that they go to: N = T * K visits, expert by expert."""

    def __init__(self, chosen_TK: Tensor, count: int) -> None:
        self.order_N = order_N = chosen_TK.flatten().argsort(stable=True)
        self.sizes_E = _visits(chosen_TK, count)
        self.back_N = torch.empty_like(order_N).scatter_(0, order_N, torch.arange(len(order_N), device=order_N.device))

    def spread(self, x_TD: Tensor) -> Tensor:
        rows_ND: Tensor = _Spread.apply(x_TD, self.order_N, self.back_N)  # type: ignore[no-untyped-call]
        return rows_ND

    def combine(self, out_ND: Tensor, weight_TK: Tensor) -> Tensor:
        """What the experts made of the visits -> of each token, by its weights."""
        visits_TKD = reorder(out_ND, self.back_N, self.order_N).view(*weight_TK.shape, out_ND.shape[1])
        if torch.compiler.is_compiling():  # which makes one operation of it, the reordering included
            return (weight_TK[:, :, None] * visits_TKD).sum(1)
        return torch.bmm(weight_TK[:, None], visits_TKD)[:, 0]


def reorder(x_ND: Tensor, order_N: Tensor, inverse_N: Tensor) -> Tensor:
    """Rows in another order; `inverse_N` brings them back."""
    rows_ND: Tensor = _Reorder.apply(x_ND, order_N, inverse_N)  # type: ignore[no-untyped-call]
    return rows_ND


class _Spread(torch.autograd.Function):
    """Tokens -> their visits, expert by expert. Torch's own gradient adds rows one by one, guarding each sum."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, order_N: Tensor, back_N: Tensor) -> Tensor:
        ctx.save_for_backward(back_N)
        ctx.tokens = len(x_TD)
        return x_TD[order_N // max(1, len(order_N) // max(1, len(x_TD)))]  # a rank of many may have no token at all

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (back_N,) = ctx.saved_tensors
        g_ND = gradients[0][back_N]
        return g_ND.view(ctx.tokens, len(g_ND) // max(1, ctx.tokens), g_ND.shape[1]).sum(1), None, None


class _Reorder(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, order_N: Tensor, inverse_N: Tensor) -> Tensor:
        ctx.save_for_backward(inverse_N)
        return x_ND[order_N]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (inverse_N,) = ctx.saved_tensors
        return gradients[0][inverse_N], None, None


class MixtureOfExperts(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = Router(config)
        self.experts = Experts(config)
        self.shared = config.n_shared_experts > 0
        if self.shared:
            self.shared_experts = SwiGLU(config.hidden_size, config.moe_intermediate_size * config.n_shared_experts)

    def forward(self, x_TD: Tensor, routing: Routing | None = None) -> Tensor:
        scores_TE = self.gate.scores(x_TD)
        return self.mixed(x_TD, scores_TE, self.gate.choose(scores_TE, routing))

    def mixed(self, x_TD: Tensor, scores_TE: Tensor, chosen_TK: Tensor) -> Tensor:
        """What the chosen experts, and the shared ones, make of the tokens."""
        weight_TK = self.gate.weights(scores_TE, chosen_TK).to(x_TD.dtype)
        out_TD: Tensor = self.experts(x_TD, chosen_TK, weight_TK)
        return out_TD + self.shared_experts(x_TD) if self.shared else out_TD


def _visits(chosen_TK: Tensor, count: int) -> Tensor:
    """How many tokens chose each of `count` experts."""
    flat_N = chosen_TK.flatten()
    if flat_N.device.type == "cpu" and not torch.compiler.is_compiling():
        return torch.bincount(flat_N, minlength=count)
    return flat_N.new_zeros(count).scatter_add_(0, flat_N, torch.ones_like(flat_N))  # bincount would wait for the GPU


@torch.no_grad()
def balance(decoder: nn.Module, rate: float) -> dict[str, float]:
    """Moves the correction biases by `rate` towards an even load, and forgets the load.

    Returns how uneven it was: the largest load of an expert over the mean, in the worst block.
    """
    worst = []
    for router in decoder.modules():
        if isinstance(router, Router):
            mean = router.load_E.mean()
            worst.append(router.load_E.max() / mean.clamp(min=1e-9))  # no load has no worst: 0
            if router.config.scoring == "sigmoid" and router.weight.requires_grad:  # a frozen router stays as it is
                router.e_score_correction_bias += rate * torch.sign(mean - router.load_E)
            router.load_E.zero_()
    found = float(torch.stack(worst).max()) if worst else 0.0
    return {"load_max": found} if found else {}
