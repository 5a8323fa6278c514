"""Rollouts of 200,000 tokens and 300 calls, summed up again and again: does memory stay flat?

    python benchmarks/long_rollouts.py --tokens 200000 --calls 300 --rollouts 4 --out long.json
    python benchmarks/long_rollouts.py --tokens 200000 --calls 300 --rollouts 1 --engine cuda --out long.json

A policy reads a file of many lines in a plain folder, 300 times in a rollout, and sums up when it is asked. Rollouts
run one after another. Reported: tokens, calls, summaries, seconds, and the process's memory at each tenth of a
rollout's calls and after it. The growth from the first tenth to the last is what a rollout holds of its own; the growth
after the first rollout is what leaks.

Without `--engine` the policy is a script: no model and no GPU, this measures the harness.

With `--engine cpu` or `cuda` our engine samples every token of every turn, in this process, from a model with random
weights. What a turn looks like is forced by a mask over the vocabulary, since such a model would never call a tool: at
the marks, the names and the path one token is left, so nothing is chosen there. Chosen by sampling are the thinking
(`--thinking` tokens, any text), the summary's text, and the three digits of the line from which the file is read. The
calls are carried out like any other, and what they read is most of a rollout's tokens. The memory of host is that of
harness and engine together, that of the GPU what torch has allocated and reserved.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from etude.core.policy import Assistant, Call, Context, Policy, Sample, Sampling, ToolResult, Version
from etude.core.settings import AgentLimits, EngineSettings, SummarySettings
from etude.engine.engine import Engine
from etude.engine.inline import InlinePolicy
from etude.engine.logit_rules import LogitRules
from etude.harness.loop import Event, run_agent
from etude.harness.summary import is_request
from etude.harness.tools.table import build_tools
from etude.harness.trajectory import Trajectory
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.torch_process import prepare
from etude.sandbox.base import WORKSPACE
from etude.sandbox.hosts import open_host
from etude.tokens.native import Native
from etude.tokens.tokenizer import Tokenizer

TEXT = "def add(a, b):\n    return a + b\nx = 12345\n" * 40
LINES = 40  # that a call reads
SUMMARY = 200  # tokens
PARTS = 10  # of a rollout, after each of which memory is looked at
# Width, MLP, layers, heads, their keys, size of a head.
SIZES = {"cuda": (512, 1536, 8, 8, 4, 64), "cpu": (64, 128, 2, 2, 1, 32)}


class Reader:
    """Reads the same file until it has called often enough. What it has done is counted, not read from the context."""

    def __init__(self, dialect: Native, calls: int) -> None:
        self.dialect, self.calls, self.done = dialect, calls, 0

    async def sample(self, context: Context, sampling: Sampling) -> Sample:
        if is_request(context.messages[-1]):
            turn = Assistant("What is left?", f"Read notes.txt {self.done} times of {self.calls}.")
        elif self.done < self.calls:
            self.done += 1
            lines = {"start": str(self.done), "end": str(self.done + LINES)}
            turn = Assistant(calls=(Call("read", {"path": "notes.txt", **lines}),))
        else:
            turn = Assistant(calls=(Call("finish", {}),))
        ids = tuple(self.dialect.turn_ids(turn))[: sampling.max_tokens]
        return Sample("", "stop", ids, (-0.5,) * len(ids), (Version(0, 0),) * len(ids))


class Turn:
    """A `Constraint`: which tokens may come at each place of a turn that reads, finishes or sums up."""

    def __init__(self, dialect: Native, says: str, thinking: int) -> None:
        self.dialect, control, encode = dialect, dialect.tokenizer.control, dialect.encode
        marks = set(control.values())
        text = [token for token in range(dialect.vocab_size) if token not in marks]
        self.end = [[control["end_of_turn"]]]
        self.lead = [[control["final"]], *[text] * SUMMARY]
        if says != "summary":
            self.lead = [[control["thinking"]], *[text] * thinking, *_one(control["call"], *encode(says))]
        if says == "read":
            self.lead += _one(control["argument"], *encode("path"), control["value"], *encode("notes.txt"))
            self.lead += _one(control["argument"], *encode("start"), control["value"])
            self.lead += [[encode(digit)[0] for digit in digits] for digits in ("123", "0123456789", "0123456789")]
            self.end = [*_one(control["argument"], *encode("end"), control["value"]), *self.end]
        self.says = says

    def allowed(self, sampled: Sequence[int]) -> npt.NDArray[np.bool_]:
        places, lead = self.lead, len(self.lead)
        if len(sampled) >= lead:
            places = [*places, *self.end]
            if self.says == "read":  # up to which line depends on the digits that were sampled
                last = str(int(self.dialect.decode(sampled[lead - 3 : lead])) + LINES)
                places[-1:-1] = _one(*self.dialect.encode(last))
        allowed_V = np.zeros(self.dialect.vocab_size, np.bool_)
        allowed_V[places[len(sampled)]] = True
        return allowed_V


def _one(*tokens: int) -> list[list[int]]:
    """Places with one token each."""
    return [[token] for token in tokens]


@dataclass
class Watch:
    """Calls that were answered, and memory at each tenth of them."""

    calls: int
    gpu: bool
    done: int = 0
    tenths: list[dict[str, float]] = field(default_factory=list)

    def hear(self, event: Event) -> None:
        if event.kind == "message" and event.entry is not None and isinstance(event.entry.message, ToolResult):
            self.done += event.entry.error is None
            if self.done * PARTS >= self.calls * (len(self.tenths) + 1) and len(self.tenths) < PARTS:
                self.tenths.append({"calls": self.done} | memory(self.gpu))
                print(json.dumps(self.tenths[-1]), file=sys.stderr, flush=True)  # what ends it early loses no more


async def one(
    root: Path, dialect: Native, policy: Policy, limits: AgentLimits, on_event: Callable[[Event], None]
) -> Trajectory:
    async with await open_host("plain", root / "store") as host, await host.start(()) as sandbox:
        notes = "".join(f"line {n} of the notes: {n * 7919 % 1000}\n" for n in range(500))
        await sandbox.write(f"{WORKSPACE}/notes.txt", notes.encode())
        return await run_agent(
            "Read the notes.",
            sandbox,
            policy,
            dialect=dialect,
            tools=build_tools([{"use": "read"}, {"use": "finish"}]),
            limits=limits,
            sampling=Sampling(max_tokens=512),
            summary=SummarySettings(),
            on_event=on_event,
        )


def make_engine(dialect: Native, device: str, context: int) -> Engine:
    prepare(1)
    width, mlp, layers, heads, key_heads, head_dim = SIZES[device]
    shape = ModelConfig(
        dialect.vocab_size, width, mlp, layers, heads, key_heads, head_dim, max_position_embeddings=context
    )
    decoder = Decoder(shape, seed=0).to(device).requires_grad_(False)
    for parameter in decoder.parameters() if device == "cuda" else ():
        parameter.data = parameter.data.bfloat16()
    settings = EngineSettings(max_running=4, max_length=context, cache_tokens=4 * context)
    return Engine(decoder, settings, Version(0, 0))


def sampled_policy(engine: Engine, dialect: Native, watch: Watch, thinking: int) -> Policy:
    def rules(context: Context) -> LogitRules:
        asked = "summary" if is_request(context.messages[-1]) else "read" if watch.done < watch.calls else "finish"
        return LogitRules(constraint=Turn(dialect, asked, thinking))

    return InlinePolicy(engine, rules=rules)


def memory(gpu: bool) -> dict[str, float]:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    found = {"memory_mb": pages * resource.getpagesize() / 1e6}
    if gpu:
        found |= {"gpu_mb": torch.cuda.memory_allocated() / 1e6, "gpu_reserved_mb": torch.cuda.memory_reserved() / 1e6}
    return {name: round(value, 1) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--context", type=int, default=16_384)
    parser.add_argument("--rollouts", type=int, default=4)
    parser.add_argument("--engine", choices=("cpu", "cuda"), help="sample from a random model there")
    parser.add_argument("--thinking", type=int, default=48, help="tokens sampled in a turn before its call")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    dialect = Native(Tokenizer.train([TEXT], 512))
    limits = AgentLimits(
        turns=2 * options.calls + 1,
        sampled_tokens=1 << 30,
        context_tokens=options.context,
        rollout_tokens=1 << 30,
        seconds=3600.0,
    )
    engine = make_engine(dialect, options.engine, options.context) if options.engine else None
    rows: list[dict[str, Any]] = []
    for _ in range(options.rollouts):
        began, cpu = time.monotonic(), time.process_time()
        watch = Watch(options.calls, options.engine == "cuda")
        policy: Policy = Reader(dialect, options.calls)
        if engine is not None:
            policy = sampled_policy(engine, dialect, watch, options.thinking)
        with TemporaryDirectory() as folder:
            trajectory = asyncio.run(one(Path(folder), dialect, policy, limits, watch.hear))
        tokens = sum(len(segment.ids) - segment.copied for segment in trajectory.segments)
        row = {
            "stop": trajectory.stop,
            "failed_calls": sum(entry.error is not None for entry in trajectory.entries),
            "tokens": tokens,
            "sampled_tokens": trajectory.sampled_tokens,
            "calls": trajectory.effort.calls,
            "summaries": trajectory.summaries,
            "longest_segment": max(len(segment.ids) for segment in trajectory.segments),
            "seconds": round(time.monotonic() - began, 2),
            "cpu_seconds": round(time.process_time() - cpu, 2),
            "tenths": watch.tenths,
        }
        del trajectory
        rows.append(row | memory(watch.gpu))
        print(json.dumps(rows[-1]), flush=True)
    grown = rows[-1]["memory_mb"] - rows[0]["memory_mb"]
    enough = all(row["tokens"] >= options.tokens and row["calls"] > options.calls for row in rows)  # and `finish`
    tenths = [[each["memory_mb"] for each in row["tenths"]] for row in rows if row["tenths"]]
    within = [round(each[-1] - each[0], 1) for each in tenths]
    found = {"long_enough": enough, "grown_mb_after_first": round(grown, 1), "grown_mb_within": within}
    if engine is not None:
        found |= {"engine": engine.stats() | {"device": options.engine}}
    print(json.dumps(found))
    if options.out:
        options.out.write_text(json.dumps(found | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
