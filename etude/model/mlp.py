"""The feed-forward half of a block: SwiGLU. Experts come as another module with the same call."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from etude.model.config import ModelConfig


class SwiGLU(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x_TD: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x_TD)) * self.up_proj(x_TD))
        return out
