"""The learner: a decoder, its optimiser, and five verbs.

forward_backward(batch)   adds gradients and returns metrics, any number of times before a step
score(items)              log-probabilities of given tokens
step()                    clips, updates, averages; leaves out gradients that are not finite
save(directory)           a Hugging Face model, and all that an exact resume needs
publish(to, version)      the weights, to the engines
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from etude.core.policy import Version
from etude.core.settings import OptimSettings
from etude.learn import state
from etude.learn.background_save import BackgroundSave
from etude.learn.drafts import Piece, drafts
from etude.learn.loss import MicroBatch, Tally, packed
from etude.learn.optim import Optimiser, rate
from etude.learn.packing import can_share, families, ordered, pack
from etude.learn.streams import Batch, Floats, Item
from etude.model.decoder import Decoder
from etude.model.experts import balance
from etude.model.lora_linear import copy_trained
from etude.model.replicas import Replicas
from etude.model.weight_transfer.publish import Publisher


class AnyLearner(Protocol):
    """What stages need of a learner, on one rank or on several (parallel/lead.py)."""

    total_steps: int
    optim: OptimSettings
    ranks: int

    @property
    def steps(self) -> int: ...

    @property
    def skipped(self) -> int: ...

    @property
    def decoder(self) -> Decoder: ...

    @property
    def weights(self) -> dict[str, Decoder]: ...

    @property
    def optimiser(self) -> Trained: ...

    def forward_backward(self, batch: Batch) -> dict[str, float]: ...

    def score(self, items: Sequence[Item], weights: str = "live") -> list[Floats]: ...

    def drafts(self, pieces: Sequence[Piece]) -> tuple[torch.Tensor, torch.Tensor]: ...

    def step(self) -> dict[str, float]: ...

    def save(self, directory: Path) -> None: ...

    def begin_save(self, directory: Path) -> None: ...

    @property
    def saved(self) -> bool: ...

    def finish_save(self) -> None: ...

    def restore(self, directory: Path) -> None: ...

    def publish(self, weights: Publisher, version: Version) -> None: ...


class Trained(Protocol):
    """What is trained, by name, and with what settings."""

    parameters: dict[str, torch.nn.Parameter]
    settings: OptimSettings


class Learner:
    """Trains the parameters of `decoder` that require a gradient. `frozen` are reference weights for twins."""

    ranks = 1

    def __init__(
        self,
        decoder: Decoder,
        optim: OptimSettings,
        total_steps: int,
        micro_tokens: int,
        device: str = "cpu",
        frozen: Decoder | None = None,
    ) -> None:
        self.decoder, self.optim = decoder.to(device), optim
        self.total_steps, self.micro_tokens = total_steps, micro_tokens
        self.weights = {"live": self.decoder}
        if frozen is not None:
            self.weights["frozen"] = frozen.to(device).requires_grad_(False)
        if optim.ema:
            self.weights["ema"] = copy_trained(self.decoder).requires_grad_(False)
        trained = {name: p for name, p in self.decoder.named_parameters() if p.requires_grad}
        self.optimiser = Optimiser(trained, optim, decoder.config.head_dims)
        self.replicas = Replicas(self.decoder)
        self.steps = self.skipped = 0
        self.saving = BackgroundSave()

    def forward_backward(self, batch: Batch) -> dict[str, float]:
        items = [item for item in batch.items if item.forward_tokens]
        # Kernels of a GPU take whole sequences; routers count every token of everybody.
        on_cpu = self.decoder.lm_head.weight.device.type == "cpu" and self.decoder.share is None
        shared = on_cpu and not self.decoder.config.num_experts and can_share(items)
        spared: list[int] = []  # tokens of each micro-batch that were computed for another item of it

        def work(decoder: Decoder, micro_batches: list[list[int]]) -> Tally:
            tally = Tally()
            for micro in micro_batches:
                chosen, weights = [items[i] for i in micro], self.weights | {"live": decoder}
                order, common = ordered(chosen) if shared else (range(len(chosen)), ())
                spared.append(sum(common))
                MicroBatch([chosen[i] for i in order], batch.correction, weights, tally, common).backward()
            return tally

        tallies = self.replicas.run(work, self._shares_of(items, shared))
        self.replicas.gather()
        tokens = {"forward_tokens": sum(item.computed_tokens for item in items), "shared_tokens": sum(spared)}
        return tokens | Tally(tallies).metrics()

    def score(self, items: Sequence[Item], weights: str = "live") -> list[Floats]:
        """Log-probability of each token at its item's temperature; the first token has none: 0.0."""
        scores: dict[int, Floats] = {}

        def work(_: Decoder, micro_batches: list[list[int]]) -> None:
            for micro in micro_batches:
                chosen = [items[i] for i in micro]
                flat = packed(self.weights[weights], chosen)
                parts = torch.split(flat.scores(), flat.lengths)
                scores.update({i: part.cpu().numpy() for i, part in zip(micro, parts, strict=True)})

        self.replicas.run(work, self._shares([len(item.tokens_T) for item in items]))
        return [scores[i] for i in range(len(items))]

    def drafts(self, pieces: Sequence[Piece]) -> tuple[torch.Tensor, torch.Tensor]:
        """How the drafts of the MTP heads fare on text (learn/drafts.py)."""
        return drafts(self.decoder, pieces)

    def step(self) -> dict[str, float]:
        """Moves the weights along the gradients gathered since the last step, and forgets those."""
        # one of the two waits for a GPU in a step; the other is for the metrics (docs/operate/gpu.md)
        norm = float(torch.nn.utils.clip_grad_norm_(self.decoder.parameters(), self.optim.clip or math.inf))
        factor = rate(self.steps, self.total_steps, self.optim)
        self.steps += 1
        self.skipped += not math.isfinite(norm)
        if math.isfinite(norm):
            self.optimiser.step(factor)
        self.decoder.zero_grad(set_to_none=True)
        # A skipped step changes nothing: its load is forgotten like its gradient, and no bias moves.
        load = balance(self.decoder, self.optim.balance if math.isfinite(norm) else 0.0)
        if self.optim.ema and math.isfinite(norm):
            state.average(self)
        return {"lr": self.optim.lr * factor, "grad_norm": norm, "skipped": self.skipped} | load

    def save(self, directory: Path) -> None:
        state.save(self, directory)

    def begin_save(self, directory: Path) -> None:
        """As `save`, written beside the next verbs; one at a time, whole when `finish_save` has returned."""
        self.saving.start(state.writing(self, directory, copy=True), directory)

    @property
    def saved(self) -> bool:
        """Whether `finish_save` would not wait for this process."""
        return self.saving.done

    def finish_save(self) -> None:
        """Waits for what `begin_save` began; its error, if it had one."""
        self.saving.finish()

    def restore(self, directory: Path) -> None:
        """Continues exactly where `save` was called: weights, optimiser, averages and counters."""
        state.restore(self, directory)

    def publish(self, weights: Publisher, version: Version) -> None:
        weights.publish(self.decoder, version)

    def _shares_of(self, items: Sequence[Item], shared: bool) -> list[list[list[int]]]:
        """Micro-batches of items for each thread; where beginnings are shared, of items that begin alike."""
        if not shared:
            return self._shares([item.room for item in items])
        found = families(items, self.micro_tokens)
        shares = self._shares([family.tokens for family in found])
        return [[[i for family in micro for i in found[family].members] for micro in share] for share in shares]

    def _shares(self, lengths: list[int]) -> list[list[list[int]]]:
        """Micro-batches for each thread that gets any."""
        # attention costs about n * n * width against 12 * n * width * width of the products
        ranks, quadratic = len(self.replicas.decoders), 1 / (12 * self.decoder.config.hidden_size)
        shares = pack(lengths, self.micro_tokens, ranks, quadratic)
        return [share for rank in shares if (share := [micro for micro in rank if micro])]
