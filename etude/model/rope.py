"""Rotary positions: angles for each token of a flat batch, and the rotation itself.

The rotation pairs dimension i with i + head_dim/2, as Hugging Face checkpoints of the Llama family do. Checkpoints
that have the two dimensions of a pair side by side are brought into that order first (`paired`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from etude.model.yarn import Yarn


class Rope(nn.Module):
    """Gives (cos, sin) for positions; the table grows when a longer sequence comes."""

    def __init__(self, head_dim: int, theta: float, yarn: Yarn | None = None) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.theta = theta
        self.yarn = yarn
        self.register_buffer("table", torch.empty(0, 2, head_dim // 2), persistent=False)
        self.table: Tensor

    def forward(self, positions_T: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """`longest` is an upper bound of the positions, known on the host, so no device sync is needed."""
        if self.table.shape[0] < longest or self.table.device != positions_T.device:
            # At least doubled, so that a sequence that grows does not make a table at every step.
            self.table = self._angles(max(longest, 2 * self.table.shape[0], 512), positions_T.device)
        rows = self.table[positions_T].unsqueeze(1)  # [T, 1, 2, D/2]
        return rows[:, :, 0], rows[:, :, 1]

    @torch.inference_mode(False)  # a table that an engine made must also serve a learner with the same decoder
    def _angles(self, length: int, device: torch.device) -> Tensor:
        # float32 like transformers, so that both round the angle of a late position the same way
        exponent = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=device) / self.head_dim
        frequency = 1.0 / (self.theta**exponent)
        if self.yarn is not None:
            frequency = self.yarn.frequencies(frequency, self.theta)
        angle = torch.arange(length, dtype=torch.float32, device=device)[:, None] * frequency
        return torch.stack((angle.cos(), angle.sin()), dim=1) * (self.yarn.magnitude if self.yarn else 1.0)


def paired(x_THD: Tensor) -> Tensor:
    """Dimensions that lie pair by pair -> the first of every pair, then the second of every pair."""
    return torch.cat((x_THD[..., 0::2], x_THD[..., 1::2]), dim=-1)


def _turn(x_THD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x_THD.shape[-1] // 2
    low, high = x_THD[..., :half], x_THD[..., half:]
    out = torch.empty_like(x_THD)
    torch.mul(low, cos, out=out[..., :half]).addcmul_(high, sin, value=-1)
    torch.mul(high, cos, out=out[..., half:]).addcmul_(low, sin)
    return out


class _Rotate(torch.autograd.Function):
    """A rotation's gradient is the rotation backwards; doing it by hand keeps four temporaries out of the graph."""

    @staticmethod
    def forward(ctx: Any, x_THD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turn(x_THD, cos, sin)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turn(gradients[0], cos, -sin), None, None


def rotate(x_THD: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = angles[0].to(x_THD.dtype), angles[1].to(x_THD.dtype)
    if torch.compiler.is_compiling():  # a compiler makes one operation of this, forward and backward
        low, high = x_THD.chunk(2, -1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)
    if torch.is_grad_enabled() and x_THD.requires_grad:
        turned: Tensor = _Rotate.apply(x_THD, cos, sin)  # type: ignore[no-untyped-call]
        return turned
    return _turn(x_THD, cos, sin)
