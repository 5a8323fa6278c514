"""All layouts of a number of ranks: which fit, how fast they are, which are best, and why each of the others is not.

Blocks computed again (`run.compute.recompute`) are tried beside the recipe's own choice, as they decide what fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from etude.core.errors import EtudeError
from etude.learn.parallel.layout import Layout
from etude.plan.machines import GIB, Machine
from etude.plan.memory import Memory, memory, smallest_sharing
from etude.plan.step_time import StepTime, step_time
from etude.plan.workload import Workload

MOST_CONTEXT = 64  # ranks for one sequence
MOST_RANKS = 1 << 16


@dataclass(frozen=True)
class Candidate:
    """A layout with what it takes. `problem` says why it cannot be used; it is empty where it can."""

    layout: Layout
    recompute: bool
    memory: Memory
    time: StepTime
    problem: str = ""
    cause: str = ""  # the kind of problem, in two words
    slower: str = ""  # why it is not the best

    @property
    def why(self) -> str:
        return self.problem or self.slower

    def data(self) -> dict[str, Any]:
        """Plain data, for scripts."""
        time, flows = self.time, [asdict(flow) for flow in self.time.flows]
        parts = ("products", "experts", "attention", "memory", "optimiser", "hidden", "exposed")
        return {
            "layout": asdict(self.layout),
            "recompute": self.recompute,
            "fits": not self.problem,
            "why": self.why,
            "memory": self.memory.parts(),
            "seconds": time.seconds,
            "seconds_by_part": {name: getattr(time, name) for name in parts},
            "tokens_per_second": time.tokens_per_second,
            "mfu": time.mfu,
            "micro_batches": time.micro_batches,
            "wires": flows,
        }


def layouts(ranks: int, experts: int) -> Iterator[Layout]:
    """Every way to divide so many ranks; numbers of ranks for experts are those that divide the experts evenly."""
    for context in _divisors(ranks):
        if context > MOST_CONTEXT:
            break
        for shard in _divisors(ranks // context):
            sharing = shard * context
            over = [n for n in _divisors(sharing) if experts % n == 0] if experts else [1]
            for expert in over:
                yield Layout(ranks, ranks // sharing, shard, expert, context)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def assess(work: Workload, layout: Layout, machine: Machine) -> Candidate:
    """One layout: what it takes, and whether it can be used at all."""
    if work.precision not in machine.flops:
        raise EtudeError(
            f"{machine.name} does not compute in {work.precision}; set run.compute.precision to "
            f"{' or '.join(machine.flops)}"
        )
    found = Candidate(layout, work.recompute, memory(work, layout), step_time(work, layout, machine))
    cause, problem = _problem(work, found, machine)
    return replace(found, cause=cause, problem=problem)


def _problem(work: Workload, found: Candidate, machine: Machine) -> tuple[str, str]:
    """Why the layout cannot be used: the kind of cause, and a sentence; two empty texts where it can."""
    layout, config, peak = found.layout, work.config, found.memory.peak
    if layout.expert > 1 and (not config.num_experts or config.num_experts % layout.expert):
        return "cannot divide experts", f"{config.num_experts} experts cannot be divided over {layout.expert} ranks"
    # A sequence is cut into two pieces for each rank, one from its front and one from its back, to even the work out.
    if work.sequence % (2 * layout.context) and layout.context > 1:
        cut = f"sequences of {work.sequence} tokens cannot be cut into {2 * layout.context} pieces"
        return "cannot cut sequences", cut
    if peak > machine.usable:
        parts = found.memory.at_peak()
        largest = max(parts, key=parts.__getitem__)
        return "too large", (
            f"needs {peak / GIB:.0f} GiB a rank where {machine.usable / GIB:.0f} can be used; "
            f"{parts[largest] / GIB:.0f} of it {_NAMES.get(largest, f'are {largest}')}"
            f"{_advice(work, found, machine, largest)}"
        )
    if work.batch_tokens < work.micro_tokens * layout.data:
        idle = 1 - work.batch_tokens / (work.micro_tokens * layout.data)
        return "without enough work", (
            f"leaves {idle:.0%} of the ranks without work: a step of {work.batch_tokens:,} tokens is less than "
            f"{layout.data:,} micro-batches of {work.micro_tokens:,}"
        )
    return "", ""


_NAMES = {
    "gathered": "are gathered weights",
    "averages": "are averaged or frozen weights",
    "backward": "are what one block needs in its backward pass",
    "collectives": "are buffers of collectives",
    "optimiser": "is work of the optimiser",
    "copy": "is the copy of a checkpoint that is being written",
}


def _advice(work: Workload, found: Candidate, machine: Machine, largest: str) -> str:
    if found.memory.stays > machine.usable:
        return f": a copy of the model needs at least {smallest_sharing(work, machine.usable)} ranks"
    if largest == "activations" and not work.recompute:
        return ": recompute blocks, divide sequences over more ranks, or lower micro_tokens"
    if largest in ("activations", "backward"):
        return ": divide sequences over more ranks, or lower micro_tokens"
    if largest in ("gathered", "collectives") and work.expert_parameters:
        return ": divide experts over more ranks"
    return ""


def search(work: Workload, ranks: int, machine: Machine) -> list[Candidate]:
    """All candidates, best first: those that fit by their time, then those that do not by what they need."""
    if not 1 <= ranks <= MOST_RANKS:
        raise EtudeError(f"a plan is for 1 to {MOST_RANKS} ranks, not for {ranks}")
    found = []
    for layout in layouts(ranks, work.config.num_experts):
        # Not computing again is tried only where the recipe does not ask for it: it may want the memory for more.
        for recompute in sorted({work.recompute, True}):
            found.append(assess(replace(work, recompute=recompute), layout, machine))
    # Of two that take equally long the one with fewer dimensions, and then the smaller, is better.
    found.sort(key=lambda each: (bool(each.problem), each.time.seconds if not each.problem else each.memory.peak))
    return [explain(each, found[0]) for each in found]


def explain(candidate: Candidate, best: Candidate) -> Candidate:
    """With a sentence that says what it loses its time to, where it fits and is not the best."""
    if candidate.problem or best.problem or candidate is best:
        return candidate
    loss = candidate.time.seconds - best.time.seconds
    ours, theirs = candidate.time.waits(), best.time.waits()
    more = {name: seconds - theirs.get(name, 0.0) for name, seconds in ours.items()}
    cause = max(more, key=more.__getitem__)
    share = loss / best.time.seconds
    if share < 0.0005:
        return replace(candidate, slower="takes as long as the best")
    return replace(candidate, slower=f"{share:.1%} slower than the best: {_seconds(more[cause])} more for {cause}")


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
