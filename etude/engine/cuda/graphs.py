"""Recorded decoding steps: hundreds of launches as one, for a few numbers of rows; a step takes the next larger.

On a CPU nothing is recorded and a step is simply computed, so that all the rest is tested without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from etude.engine.cuda.batch import Answers, Staging
from etude.engine.cuda.forward import Forward

Replay = Callable[[], Tensor]


def sizes(most: int) -> list[int]:
    """Numbers of rows that are recorded: few enough to record at a start, close enough to waste little."""
    out = [1, 2, 4]
    while out[-1] < most:
        out.append(out[-1] + (4 if out[-1] < 8 else 8 if out[-1] < 32 else 16 if out[-1] < 128 else 32))
    return [size for size in out if size < most] + [most]


class Graphs:
    def __init__(self, forward: Forward, answers: Answers, rows: int, blocks: int) -> None:
        self.forward, self.answers, self.blocks = forward, answers, blocks
        self.device = answers.device_2S.device
        self.sizes = sizes(rows)
        self._recorded: dict[int, tuple[Staging, Replay]] = {}
        # One pool for all sizes: only one of the graphs runs at a time, so they can use the same memory.
        self._memory = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None

    def record_all(self) -> None:
        for size in reversed(self.sizes):  # the largest first, so that the others find its memory
            self._find(size)

    def staging(self, rows: int) -> tuple[Staging, Replay]:
        """Where the arguments of a step with so many rows go, and what computes it and gives its logits."""
        return self._find(next(size for size in self.sizes if size >= rows))

    def _find(self, size: int) -> tuple[Staging, Replay]:
        if size not in self._recorded:
            staging = Staging(size, self.blocks, self.forward.cache.nobody, self.device)
            self._recorded[size] = staging, self._record(staging)
        return self._recorded[size]

    def _record(self, staging: Staging) -> Replay:
        step = staging.step(self.forward.angles)

        def compute(answers: Answers) -> Tensor:
            logits_RV = self.forward.logits(self.forward.hidden(step, answers.tokens_S))
            fields = staging.fields
            self.forward.ops.pick(logits_RV, fields.temperatures, fields.uniforms, answers.tokens_S, answers.logprobs_S)
            return logits_RV

        if self.device.type != "cuda":
            return lambda: compute(self.answers)
        # kernels are compiled and libraries loaded in a first run, whose answers nobody may take for a step's
        compute(Answers(self.answers.device_2S.shape[1], self.device))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            logits_RV = compute(self.answers)

        def replay() -> Tensor:
            graph.replay()
            return logits_RV

        return replay
