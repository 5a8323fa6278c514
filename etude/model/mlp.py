"""The feed-forward half of a block: SwiGLU. Experts (experts.py) are another."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class SwiGLU(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x_TD: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x_TD)) * self.up_proj(x_TD))
        return out
