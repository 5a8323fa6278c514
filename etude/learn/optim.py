"""AdamW for embeddings, head, routers, norms, biases and adapters; Muon (or AdamW) for the matrices inside the blocks.

Muon moves a matrix along the orthogonal factor of its momentum; each attention head's slice of a projection and each
expert is a matrix by itself. Slices of one shape are one batch. Beside them the rate over a stage, and how far a step
moved the weights. Knows nothing of clipping or files.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from etude.core.settings import OptimSettings
from etude.model.lora_linear import ADAPTER
from etude.model.matrices import fast, is_matrix, orthogonal, slices

# Turns the update of each matrix, by name, into the direction in which it is moved, in place.
Directions = Callable[[Mapping[str, Tensor]], None]

ENTRIES = 4096  # of a tensor, evenly spread: a copy of all weights would double their memory for one figure


def rate(step: int, total: int, settings: OptimSettings) -> float:
    """Factor of the peak for optimiser step `step` (0 is the first) of `total`; `final_lr` from then on."""
    warmup = round(settings.warmup * total)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    begin = max(warmup, total - round(settings.decay * total)) if settings.schedule == "wsd" else warmup
    if settings.schedule == "constant" or step < begin:
        return 1.0
    done = min(1.0, (step - begin + 1) / max(1, total - begin))
    shape = (1 + math.cos(math.pi * done)) / 2 if settings.schedule == "cosine" else 1 - done
    return settings.final_lr + (1 - settings.final_lr) * shape


class Optimiser:
    """`directions` is for parameters that are parts of matrices, where others have the rest of them."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        settings: OptimSettings,
        heads: Mapping[str, int],
        directions: Directions | None = None,
    ) -> None:
        self.parameters, self.settings, self.heads, self.directions = dict(parameters), settings, heads, directions
        matrices = [name for name, p in parameters.items() if is_matrix(name, p)]
        self.muon = [n for n in matrices if settings.matrices == "muon" and not n.endswith(ADAPTER)]
        self.momentum = {name: torch.zeros_like(parameters[name]) for name in self.muon}
        others = {name: p for name, p in parameters.items() if name not in self.momentum}
        # weight decay is for matrices only: an embedding row that a batch does not use should not shrink
        self.decay = {name: settings.weight_decay if name in matrices else 0.0 for name in others}
        self.adamw: dict[str, dict[str, Tensor]] = {}
        for name, p in others.items():  # before the first step, so that every checkpoint has the same tensors
            moments = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            self.adamw[name] = {"step": torch.zeros((), device=p.device), **moments}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One update from the gradients, at `rate` times the peak learning rates."""
        self._step_adamw(self.settings.lr * rate)
        muon_lr, momentum = self.settings.muon_lr * rate, self.settings.momentum
        moved = [(name, p, g) for name in self.muon if (g := (p := self.parameters[name]).grad) is not None]
        if not moved:
            return
        names, weights, gradients = (list(column) for column in zip(*moved, strict=True))
        torch._foreach_lerp_([self.momentum[name] for name in names], gradients, 1 - momentum)
        torch._foreach_lerp_(gradients, [self.momentum[name] for name in names], momentum)  # Nesterov
        torch._foreach_mul_(weights, 1 - muon_lr * self.settings.weight_decay)
        if self.directions is not None:
            self.directions(dict(zip(names, gradients, strict=True)))
            torch._foreach_add_(weights, gradients, alpha=-muon_lr)
            return
        batches: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for name, p, update in moved:
            p_BMN, update_BMN = (slices(name, x, self.heads) for x in (p, update))
            batches[update_BMN.shape[1:]].append((p_BMN, update_BMN))
        for (_, longer), members in batches.items():
            updates = orthogonal(torch.cat([fast(update_BMN) for _, update_BMN in members]))
            parts = torch.split(updates, [len(p_BMN) for p_BMN, _ in members])
            for (p_BMN, _), part_BMN in zip(members, parts, strict=True):
                # an RMS of 0.2 whatever the shape: that of a typical AdamW update
                p_BMN.add_(part_BMN, alpha=-muon_lr * 0.2 * longer**0.5)

    def _step_adamw(self, lr: float) -> None:
        """The kernel of `torch.optim.AdamW(fused=True)`; that class would load a compiler: a second in each process."""
        batches: dict[tuple[float, torch.dtype], list[str]] = defaultdict(list)
        for name, decay in self.decay.items():
            if self.parameters[name].grad is not None:
                batches[decay, self.parameters[name].dtype].append(name)
        (beta1, beta2), eps = self.settings.betas, self.settings.eps
        for (decay, _), names in batches.items():
            weights, states = [self.parameters[name] for name in names], [self.adamw[name] for name in names]
            gradients = [p.grad for p in weights if p.grad is not None]
            means, squares, steps = ([state[key] for state in states] for key in ("exp_avg", "exp_avg_sq", "step"))
            torch._foreach_add_(steps, 1)
            torch._fused_adamw_(
                [*weights], gradients, means, squares, [], steps,
                lr=lr, beta1=beta1, beta2=beta2, weight_decay=decay, eps=eps, amsgrad=False, maximize=False,
            )  # fmt: skip
            # the fused kernel does not count its writes, by which others know that what they made of a weight is old
            torch.autograd.graph.increment_version(weights)

    def state(self) -> dict[str, Tensor]:
        """All that the next step depends on, by name: the tensors themselves, to be saved or copied into."""
        state = {f"momentum.{name}": tensor for name, tensor in self.momentum.items()}
        for name in self.parameters:
            state |= {f"{key}.{name}": tensor for key, tensor in self.adamw.get(name, {}).items()}
        return state


@dataclass
class UpdateSize:
    rms: float = 0.0  # the root mean square, over some entries of every tensor


@contextmanager
def measured_update(parameters: Iterable[Tensor]) -> Iterator[UpdateSize]:
    """The size of what happens to the parameters inside the block; each tensor counts by its number of entries."""
    watched = [p for p in parameters if p.numel()]  # a rank may hold nothing of one
    before = [_some(p).clone() for p in watched]
    found = UpdateSize()
    yield found
    squares = [(_some(p) - b).float().square().mean() * p.numel() for p, b in zip(watched, before, strict=True)]
    found.rms = math.sqrt(float(torch.stack(squares).sum()) / sum(p.numel() for p in watched)) if watched else 0.0


def _some(tensor: Tensor) -> Tensor:
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, -(-len(flat) // ENTRIES))]
