"""Which of a decoder's weights are matrices that act on hidden states, which parts of one act by themselves, and the
orthogonal factors of such parts.

For optimisers that treat a matrix as a whole. Knows parameter names, no optimiser.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

_INSIDE_BLOCKS = ("model.layers.", "mtp.")
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # five steps of this quintic bring singular values between 0.7 and 1.2
_ROUTER = "mlp.gate.weight"  # a table of experts, like an embedding


def is_matrix(name: str, parameter: Tensor) -> bool:
    return parameter.ndim > 1 and name.startswith(_INSIDE_BLOCKS) and not name.endswith(_ROUTER)


def slices(name: str, x: Tensor, heads: Mapping[str, int]) -> Tensor:
    """A view [slices, shorter, longer] of the parts of a weight that act each by itself: heads, and experts.

    `heads` says how many dimensions one head has in each projection that is made of heads.
    """
    projection = name.removesuffix(".weight").rpartition(".")[2]
    if projection == "o_proj":
        x = x.view(x.shape[0], -1, heads[projection]).movedim(1, 0)
    elif projection in heads:
        x = x.view(-1, heads[projection], x.shape[1])
    elif projection == "gate_up_proj":  # of experts, which are stacked already
        x = x.view(2 * x.shape[0], -1, x.shape[2])
    elif x.ndim == 2:
        x = x[None]
    # Wide, so that the Gram matrix in Newton-Schulz is the small one.
    return x.mT if x.shape[-2] > x.shape[-1] else x


def fast(x: Tensor) -> Tensor:
    """In bfloat16, which is enough for orthogonalisation, where that is fast."""
    return x.bfloat16() if x.is_cuda else x


def orthogonal(x_BMN: Tensor) -> Tensor:
    """Each matrix with its singular values brought near 1 by Newton-Schulz."""
    a, b, c = NEWTON_SCHULZ
    x_BMN = x_BMN / x_BMN.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram_BMM = x_BMN @ x_BMN.mT
        x_BMN = torch.baddbmm(x_BMN, torch.baddbmm(gram_BMM, gram_BMM, gram_BMM, beta=b, alpha=c), x_BMN, beta=a)
    return x_BMN
