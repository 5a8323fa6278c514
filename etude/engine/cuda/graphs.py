"""Recorded steps: hundreds of launches as one, for a few numbers of rows or tokens; a step takes the next larger.

A step with prompts is recorded, too: each of its tokens is a query of its own over its request's pages, as those of
decoding requests are. That reads a request's keys once for each token of its prompt, which for the results of tools
behind a cached prefix costs less than launching the step one operation at a time; where it would cost more, the runner
does that. On a CPU nothing is recorded and a step is simply computed, so that all the rest is tested without a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor

from etude.engine.cuda.batch import Answers, MixedStaging, Staging
from etude.engine.cuda.forward import Forward

Replay = Callable[[], Tensor]
MIXED_TOKENS = (32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)


def sizes(most: int) -> list[int]:
    """Numbers of rows that are recorded: few enough to record at a start, close enough to waste little."""
    out = [1, 2, 4]
    while out[-1] < most:
        out.append(out[-1] + (4 if out[-1] < 8 else 8 if out[-1] < 32 else 16 if out[-1] < 128 else 32))
    return [size for size in out if size < most] + [most]


class Recorder:
    """Records steps that write into the same answers."""

    def __init__(self, answers: Answers) -> None:
        self.answers, self.device = answers, answers.device_2S.device
        # One pool for all of them: only one of the graphs runs at a time, so they can use the same memory.
        self._memory = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None

    def record(self, compute: Callable[[Answers], Tensor]) -> Replay:
        """`compute` samples into the answers that it is given, and returns the logits."""
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


class Graphs:
    """Steps in which everybody decodes, by the number of rows."""

    def __init__(self, forward: Forward, recorder: Recorder, rows: int, blocks: int) -> None:
        self.forward, self.recorder, self.blocks = forward, recorder, blocks
        self.sizes = sizes(rows)
        self._recorded: dict[int, tuple[Staging, Replay]] = {}

    def record_all(self) -> None:
        for size in reversed(self.sizes):  # the largest first, so that the others find its memory
            self._find(size)

    def staging(self, rows: int) -> tuple[Staging, Replay]:
        """Where the arguments of a step with so many rows go, and what computes it and gives its logits."""
        return self._find(next(size for size in self.sizes if size >= rows))

    def _find(self, size: int) -> tuple[Staging, Replay]:
        if size not in self._recorded:
            staging = Staging(size, self.blocks, self.forward.cache.nobody, self.recorder.device)
            step = staging.step(self.forward.angles)

            def compute(answers: Answers) -> Tensor:
                logits_RV = self.forward.logits(self.forward.hidden(step, answers.tokens_S))
                f = staging.fields
                self.forward.ops.pick(logits_RV, f.temperatures, f.uniforms, answers.tokens_S, answers.logprobs_S)
                return logits_RV

            self._recorded[size] = staging, self.recorder.record(compute)
        return self._recorded[size]


class MixedGraphs:
    """Steps with prompts in them, by the number of tokens."""

    def __init__(self, forward: Forward, recorder: Recorder, requests: int, blocks: int, most: int) -> None:
        self.forward, self.recorder, self.requests, self.blocks = forward, recorder, requests, blocks
        larger = next((size for size in MIXED_TOKENS if size >= most), MIXED_TOKENS[-1])
        self.sizes = [size for size in MIXED_TOKENS if size <= larger]
        self.failed = ""  # why nothing is recorded
        self._recorded: dict[int, tuple[MixedStaging, Replay]] = {}
        if recorder.device.type == "cuda":
            self.staging(1)  # what cannot be recorded shows at the start

    def staging(self, tokens: int) -> tuple[MixedStaging, Replay] | None:
        """As of `Graphs`; None where a step has to be launched: it is too large, or recording failed."""
        size = next((size for size in self.sizes if size >= tokens), None)
        if size is None or self.failed:
            return None
        if size not in self._recorded:
            try:
                self._recorded[size] = self._record(size)
            # Whatever a driver or a compiler says: the other way computes the same.
            except Exception as error:
                self.failed = f"{type(error).__name__}: {error}"
                print(f"steps with prompts are launched, not recorded: {self.failed}", file=sys.stderr, flush=True)
                return None
        return self._recorded[size]

    def _record(self, size: int) -> tuple[MixedStaging, Replay]:
        forward = self.forward
        staging = MixedStaging(size, self.requests, self.blocks, forward.cache.nobody, self.recorder.device)

        def compute(answers: Answers) -> Tensor:
            f, hidden_TD = staging.fields, forward.hidden(staging.step(forward.angles), answers.tokens_S)
            logits_RV = forward.logits(hidden_TD.index_select(0, f.last))
            forward.ops.pick(logits_RV, f.temperatures, f.uniforms, answers.tokens_S, answers.logprobs_S)
            return logits_RV

        return staging, self.recorder.record(compute)
