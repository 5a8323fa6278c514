"""Which of a decoder's weights are matrices that act on hidden states, and which parts of one act by themselves.

For optimisers that treat a matrix as a whole. Knows parameter names, no optimiser.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

_INSIDE_BLOCKS = ("model.layers.", "mtp.")
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
    return x.mT if x.shape[-2] > x.shape[-1] else x
