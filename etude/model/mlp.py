"""The feed-forward half of a block: SwiGLU. Experts (experts.py) are another."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from etude.model.low_precision.mlp_fp8 import feed_forward, in_eight_bits
from etude.model.low_precision.products import Linear, side_by_side


class SwiGLU(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = Linear(width, hidden, bias=False)
        self.up_proj = Linear(width, hidden, bias=False)
        self.down_proj = Linear(hidden, width, bias=False)

    def forward(self, x_TD: Tensor) -> Tensor:
        eight = in_eight_bits((self.gate_proj, self.up_proj, self.down_proj))
        if eight is not None:
            return feed_forward(x_TD, *eight)
        gate_TF, up_TF = side_by_side(x_TD, (self.gate_proj, self.up_proj))
        out: Tensor = self.down_proj(F.silu(gate_TF) * up_TF)
        return out
