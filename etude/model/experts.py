"""Experts: a router sends each token to a few of many small feed-forward networks.

Weights of all experts lie stacked, so that tokens sorted by expert go through one grouped product. What the routers
of a forward choose is written into a `Routing`; one that was given the choices of an earlier forward makes the
routers choose the same again (router replay), while their scores, and so the gradients, are computed anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.model.config import ModelConfig
from etude.model.mlp import SwiGLU
from etude.policy import UNROUTED


class Routing:
    """The experts of one forward: those chosen, block by block, and those to be chosen again.

    Shapes: T tokens, B blocks with experts, K experts of a token, E experts there are. An entry of `replay_TBK` that
    is UNROUTED leaves the choice of that token to the router.

    A replayed expert must be plausible: its score at least `plausible` times that of the router's own last choice.
    One that is not gives its place to the best of the router's own that is still free. 0 replays everything.
    """

    def __init__(self, replay_TBK: Tensor | None = None, plausible: float = 0.0) -> None:
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

    def forward(self, x_TD: Tensor, routing: Routing | None) -> tuple[Tensor, Tensor]:
        config = self.config
        logits_TE = F.linear(x_TD.float(), self.weight.float())
        scores_TE = logits_TE.sigmoid() if config.scoring == "sigmoid" else logits_TE.softmax(-1)
        with torch.no_grad():
            preference_TE = self._preference(scores_TE)
            # in the order of their numbers, so that equal choices are added up in the same order
            chosen_TK = preference_TE.topk(config.num_experts_per_tok, -1).indices.sort(-1).values
            if routing is not None:
                chosen_TK = routing.settle(scores_TE, preference_TE, chosen_TK)
        if torch.is_grad_enabled():
            self.load_E += torch.bincount(chosen_TK.flatten(), minlength=config.num_experts)
        weight_TK = scores_TE.gather(-1, chosen_TK)
        if config.norm_topk_prob:
            weight_TK = weight_TK / (weight_TK.sum(-1, keepdim=True) + 1e-20)
        return chosen_TK, (weight_TK * config.routed_scaling_factor).to(x_TD.dtype)

    def _preference(self, scores_TE: Tensor) -> Tensor:
        """What experts are chosen by: the corrected scores, minus infinity outside of a token's groups."""
        config = self.config
        if config.scoring != "sigmoid":
            return scores_TE
        preference_TE = scores_TE + self.e_score_correction_bias
        if config.n_group > 1:
            groups_TGM = preference_TE.view(len(preference_TE), config.n_group, -1)
            best_TG = groups_TGM.topk(2, -1).values.sum(-1)
            allowed_TG = torch.zeros_like(best_TG, dtype=torch.bool)
            allowed_TG.scatter_(-1, best_TG.topk(config.topk_group, -1).indices, True)
            preference_TE = groups_TGM.masked_fill(~allowed_TG[:, :, None], -torch.inf).flatten(-2)
        return preference_TE


class Experts(nn.Module):
    """The stacked weights: E experts, F hidden dimensions of each, gate and up projections below one another."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        count, width, hidden = config.num_experts, config.hidden_size, config.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.zeros(count, 2 * hidden, width))
        self.down_proj = nn.Parameter(torch.zeros(count, width, hidden))

    def forward(self, x_TD: Tensor, chosen_TK: Tensor, weight_TK: Tensor) -> Tensor:
        count, per_token = self.gate_up_proj.shape[0], chosen_TK.shape[1]
        order_N = chosen_TK.flatten().argsort(stable=True)  # N = T * K visits, expert by expert
        sizes_E = torch.bincount(chosen_TK.flatten(), minlength=count)
        gate_NF, up_NF = grouped_mm(x_TD[order_N // per_token], self.gate_up_proj, sizes_E).chunk(2, -1)
        out_ND = grouped_mm(F.silu(gate_NF) * up_NF, self.down_proj, sizes_E)
        back_N = torch.empty_like(order_N).scatter_(0, order_N, torch.arange(len(order_N), device=order_N.device))
        return torch.bmm(weight_TK[:, None], out_ND[back_N].view(len(x_TD), per_token, -1))[:, 0]


class MixtureOfExperts(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = Router(config)
        self.experts = Experts(config)
        self.shared = config.n_shared_experts > 0
        if self.shared:
            self.shared_experts = SwiGLU(config.hidden_size, config.moe_intermediate_size * config.n_shared_experts)

    def forward(self, x_TD: Tensor, routing: Routing | None = None) -> Tensor:
        out_TD: Tensor = self.experts(x_TD, *self.gate(x_TD, routing))
        return out_TD + self.shared_experts(x_TD) if self.shared else out_TD


def grouped_mm(x_ND: Tensor, weight_EMD: Tensor, sizes_E: Tensor) -> Tensor:
    """Rows sorted by expert, `sizes_E` of each, times the transposed weight of their expert: the one place for it."""
    if x_ND.is_cuda and x_ND.dtype == torch.bfloat16:
        return F.grouped_mm(x_ND, weight_EMD.mT, offs=sizes_E.cumsum(0, dtype=torch.int32))
    # a product for each expert that has rows: on a CPU no slower than torch's grouped product
    parts = zip(torch.split(x_ND, sizes_E.tolist()), weight_EMD.unbind(), strict=True)
    return torch.cat([F.linear(rows_D, weight_MD) for rows_D, weight_MD in parts if len(rows_D)])


@torch.no_grad()
def balance(decoder: nn.Module, rate: float) -> dict[str, float]:
    """Moves the correction biases by `rate` towards an even load, and forgets the load.

    Returns how uneven it was: the largest load of an expert over the mean, in the worst block.
    """
    worst = 0.0
    for router in decoder.modules():
        if isinstance(router, Router):
            mean = router.load_E.mean()
            if mean > 0:
                worst = max(worst, float(router.load_E.max() / mean))
                if router.config.scoring == "sigmoid" and router.weight.requires_grad:  # a frozen router stays as it is
                    router.e_score_correction_bias += rate * torch.sign(mean - router.load_E)
            router.load_E.zero_()
    return {"load_max": worst} if worst else {}
