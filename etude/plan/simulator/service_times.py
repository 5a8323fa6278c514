"""What each part of the loop takes, as measured: seconds of the engine, the sandboxes, the loop and the learner.

Also the groups of rollouts that a run made, from which the simulation draws its own: their turns, their tokens and
their rewards belong together, and no formula says how.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from etude.core.durable import why_not
from etude.core.errors import EtudeError
from etude.core.transport import from_json

FORMAT = 1
SAVED = 48  # groups in a file


@dataclass(frozen=True)
class RolloutShape:
    """One rollout that was made."""

    turns: tuple[tuple[int, int], ...]  # of each: tokens of prompt that were new, tokens sampled
    tokens: int  # of all segments, as the learner reads them
    reward: float
    tools: float = 0.0  # seconds in tools
    rest: float = 0.0  # seconds behind the last turn: what is collected, grading, rewards
    starting: float = 0.0  # seconds until the sandbox was there; 0 where nobody measured it: then `rest` has them
    own: int = 0  # of `tokens`, those that no earlier rollout of its group begins with
    grade: int = -1  # which of its group's grades it shares with others that handed in the same; -1: none


@dataclass(frozen=True)
class EngineTimes:
    """A step of the engine takes `step + token * batch`; a token of a prompt takes `prompt` more, once."""

    step: float
    token: float
    prompt: float
    running: int  # requests decoded together at most
    host: float = 1.0  # share of these seconds that is work of the cores; the rest is a device's
    ahead: int = 0  # steps that are launched before a step is read: so many later a request has its tokens


@dataclass(frozen=True)
class LearnerTimes:
    step: float  # of each optimiser step, whatever is in it
    token: float  # of each token of the batch
    score: float  # of each token that is only scored
    publish: float = 0.0
    shares: bool = False  # whether it computes only once what rollouts of a group begin with
    host: float = 1.0  # beside a device: share of its seconds in which a thread of it is on the cores


@dataclass(frozen=True)
class SandboxWork:
    """Processor seconds beside those of the launcher."""

    start: float  # of a sandbox
    tools: float  # of a rollout
    tests: float  # of a grade
    end: float  # of a sandbox


@dataclass(frozen=True)
class ServiceTimes:
    """All of one run. With `cores` everything shares so many, or all but the devices; without, nothing is shared."""

    engine: EngineTimes
    learner: LearnerTimes
    groups: tuple[tuple[RolloutShape, ...], ...]
    loop: float = 0.0  # seconds of the orchestrator's thread for a rollout
    worker: float = 0.0  # seconds of a rollout worker's thread, or without workers of the orchestrator's
    sandbox: float = 0.0  # processor seconds of a rollout's sandboxes; without cores its shapes say how long they take
    launcher: float = 0.0  # of these, seconds of the launcher's thread for each sandbox that it starts
    starting: float = 0.0  # of these, seconds of each sandbox's init until it was ready
    ending: float = 0.0  # of these, seconds of each sandbox's init from then on
    prefill: float = 1.0  # share of the prompts' tokens that the prefix cache did not have
    swap: float = 0.0
    start: float = 0.0  # seconds that an engine or a learner needs to start
    probe_tokens: int = 512
    save_tokens: int = 8  # after which an answer under way is recorded
    cores: float = 0.0
    others: float = 0.0  # threads of other programs on those cores
    by_session: bool = False  # whether those cores are shared evenly by sessions, and not by threads
    devices: bool = False  # whether engine and learner have devices of their own beside those cores
    measured: str = ""  # what it was measured on

    def data(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    def grown(self, times: float, learner: float) -> ServiceTimes:
        """On so many times as many cores, with a learner `learner` times as fast."""
        return replace(self.faster_learner(learner), cores=self.cores * times, others=self.others * times)

    def faster_learner(self, times: float) -> ServiceTimes:
        """With a learner so many times as fast, as more ranks make it."""
        found = self.learner
        step, token, score = (each / times for each in (found.step, found.token, found.score))
        return replace(self, learner=replace(found, step=step, token=token, score=score))

    @property
    def sandbox_work(self) -> SandboxWork:
        """Processor time of sandboxes by what it was for. What is not known is where their seconds were."""
        shapes, grades = [shape for group in self.groups for shape in group], graded(self.groups)
        work = max(0.0, self.sandbox - (self.launcher + self.starting + self.ending) * (1 + grades))
        parts = [sum(getattr(shape, name) for shape in shapes) for name in ("starting", "tools", "rest")]
        if self.starting:
            parts[0] = 0.0  # its work is known
        starting, tools, rest = (work * part / sum(parts) for part in parts) if sum(parts) else (0.0, 0.0, work)
        # A grade's sandbox starts, too, and that is part of the rest.
        start = min(starting, (starting + rest) / (1 + grades))
        tests = (starting + rest - start) / grades - start
        return SandboxWork(self.starting or start, tools, max(0.0, tests), self.ending)

    @property
    def rollout_tokens(self) -> float:
        """Tokens sampled in a rollout, on average."""
        shapes = [shape for group in self.groups for shape in group]
        return sum(tokens for shape in shapes for _, tokens in shape.turns) / len(shapes)

    def save(self, path: Path) -> None:
        """With a sample of its groups: a few dozen say as much as hundreds, and the file stays small."""
        every = max(1, len(self.groups) // SAVED)
        path.write_text(json.dumps(replace(self, groups=self.groups[::every][:SAVED]).data()) + "\n")


def load_times(path: Path) -> ServiceTimes:
    """What `save` wrote."""
    try:
        found = json.loads(path.read_text())
        if found.pop("format", None) != FORMAT:
            raise EtudeError("it is of another format")
        return check(from_json(ServiceTimes, found))
    except OSError as error:
        wanted = "which has to be a finished run or a file of --keep-times"
        raise EtudeError(f"cannot read {path}, {wanted}: {why_not(error)}") from None
    except (ValueError, AttributeError, EtudeError) as error:
        raise EtudeError(f"{path} holds no service times of a run: {error}") from None


def check(times: ServiceTimes) -> ServiceTimes:
    if not times.groups or not all(times.groups):
        raise EtudeError("there is no group of rollouts to draw from")
    numbers = (times.engine.step + times.engine.token, times.engine.running, times.learner.step + times.learner.token)
    if min(numbers) <= 0:
        raise EtudeError("an engine and a learner that take no time cannot be simulated")
    return times


def graded(groups: Sequence[Sequence[RolloutShape]]) -> float:
    """Share of the rollouts that need a grade of their own."""
    shared = sum(len({shape.grade for shape in group if shape.grade >= 0}) for group in groups)
    alone = sum(shape.grade < 0 for group in groups for shape in group)
    return (shared + alone) / sum(map(len, groups))


def merged(turns: Sequence[tuple[int, int]], most: int) -> tuple[tuple[int, int], ...]:
    """The same tokens in at most so many turns, for simulations of very many rollouts."""
    if len(turns) <= most:
        return tuple(turns)
    bounds = [place * len(turns) // most for place in range(most + 1)]
    parts = [turns[first:last] for first, last in pairwise(bounds)]
    return tuple((sum(new for new, _ in part), sum(tokens for _, tokens in part)) for part in parts)
