"""YaRN: rotary positions stretched for longer sequences. A part of a shape, so it is read without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Yarn:
    """Positions stretched by `factor`: slow frequencies are interpolated, fast ones stay, with a ramp between.

    A frequency is fast if it turns at least `beta_fast` times over the original positions, slow if at most
    `beta_slow` times. Attention is made sharper to make up for the longer range: by `mscale` on queries and keys, or,
    where `mscale_all_dim` is given, in the softmax.
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True  # the ends of the ramp fall on whole dimensions

    def frequencies(self, plain_F: Tensor, theta: float) -> Tensor:
        """The plain frequencies of a head's pairs, slowed down."""
        pairs = plain_F.shape[0]

        def pair_that_turns(times: float) -> float:
            return pairs * math.log(self.original_max_position_embeddings / (times * 2 * math.pi)) / math.log(theta)

        low, high = pair_that_turns(self.beta_fast), pair_that_turns(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * pairs - 1)
        # A ramp of no length would divide by 0.
        high += 0.001 if low == high else 0
        place_F = plain_F.new_tensor(range(pairs))
        slow_F = ((place_F - low) / (high - low)).clamp(0, 1)
        return plain_F / self.factor * slow_F + plain_F * (1 - slow_F)

    @property
    def magnitude(self) -> float:
        """The factor on cosine and sine."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._sharper(self.mscale) / self._sharper(self.mscale_all_dim)
        return self._sharper(1.0)

    @property
    def softmax_scale(self) -> float:
        """The factor on the scores of latent attention."""
        return self._sharper(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0

    def _sharper(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0
