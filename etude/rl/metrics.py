"""The numbers of a step: what the rollouts were like, how old their tokens were, and where the time went.

Knows finished rollouts and process clocks; writes nothing.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from etude.audit.base import Verdict
from etude.core import process
from etude.core.run_files import read_metrics
from etude.harness.failures import ErrorClass
from etude.rl.groups import SPENT, Rollout

BUG: ErrorClass = "HarnessBug"  # the class of failed calls that are ours to mend, and never the model's
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100

FIRST = 32  # groups without a pass: four steps of eight, and 256 rollouts of eight each; said again at twice that
OLD = 8  # steps from which on the histogram of staleness has one column


def describe(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Means and counts over the rollouts of a step or an evaluation."""
    if not rollouts:
        return {}
    count = len(rollouts)
    turns = sum(rollout.turns for rollout in rollouts)
    found = {
        "reward": sum(rollout.reward for rollout in rollouts) / count,
        "pass_rate": sum(rollout.passed for rollout in rollouts) / count,
        "sampled_tokens": sum(rollout.sampled_tokens for rollout in rollouts),
        "rollout_tokens": sum(rollout.tokens for rollout in rollouts) / count,
        "turns": turns / count,
        "tool_errors": sum(rollout.tool_errors for rollout in rollouts) / count,
        "harness_bugs": sum(rollout.errors.get(BUG, 0) for rollout in rollouts),
        "malformed": sum(rollout.malformed for rollout in rollouts) / max(1, turns),
        "rollout_seconds": sum(rollout.seconds for rollout in rollouts) / count,
        **{f"{name}_seconds": sum(r.spent.get(name, 0.0) for r in rollouts) / count for name in SPENT},
        "edit_rate": sum(rollout.edited for rollout in rollouts) / count,
    }
    if calling := [rollout.parallel_calls for rollout in rollouts if rollout.tools]:
        found["parallel_calls"] = sum(calling) / len(calling)
    lengths = sorted(rollout.sampled_tokens for rollout in rollouts)
    found |= {f"sampled_tokens_p{share}": lengths[(count - 1) * share // 100] for share in (50, 90)}
    found["sampled_tokens_max"] = lengths[-1]
    for part in dict.fromkeys(name for rollout in rollouts for name in rollout.parts):
        # A part is asked only about tasks that it concerns: the others say nothing about its mean.
        values = [rollout.parts[part] for rollout in rollouts if part in rollout.parts]
        found[f"reward_{part}"] = sum(values) / len(values)
    kinds = Counter(site.kind for rollout in rollouts for site in rollout.sites)
    found |= {f"behaviour_{kind}": times / count for kind, times in sorted(kinds.items())}  # sites of a rollout
    if summaries := sum(rollout.summaries for rollout in rollouts):
        found["summaries"] = summaries / count
    for level in sorted({rollout.terms.effort for rollout in rollouts} - {""}):
        told = [rollout for rollout in rollouts if rollout.terms.effort == level]
        found[f"effort_{level}_tokens"] = sum(rollout.sampled_tokens for rollout in told) / len(told)
        found[f"effort_{level}_pass_rate"] = sum(rollout.passed for rollout in told) / len(told)
    found |= tool_rates(rollouts)
    for cause, times in sorted(Counter(rollout.stop or "none" for rollout in rollouts).items()):
        found[f"stop_{cause}"] = times
    verdicts = Counter(rollout.verdict for rollout in rollouts if rollout.verdict)
    if verdicts:  # somebody was asked; each verdict then has a column, so that none appears only when it is late
        found |= {f"verdict_{name.replace(' ', '_')}": verdicts[name] for name in get_args(Verdict)}
    return found


def tool_rates(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """For each tool that was called: calls of a rollout, the share of them that failed, and that of each class.

    And `tool_mix`, the entropy of the calls over the tools in bits: a policy that uses one tool alone has 0.
    """
    counts: dict[str, Counter[str]] = {}
    for rollout in rollouts:
        for name, times in rollout.tools.items():
            counts.setdefault(name, Counter()).update(times)
    found: dict[str, float] = {}
    used = [times["calls"] for name, times in counts.items() if name != "unknown" and times["calls"]]
    if used:
        shares = [calls / sum(used) for calls in used]
        found["tool_mix"] = sum(share * math.log2(1 / share) for share in shares)
    for name, times in sorted(counts.items()):
        calls = times.pop("calls")
        found[f"tool_{name}_calls"] = calls / len(rollouts)
        found[f"tool_{name}_errors"] = times.total() / max(1, calls)
        found |= {f"tool_{name}_{kind}": number / max(1, calls) for kind, number in sorted(times.items())}
    return found


def bug_alarm(row: Mapping[str, float]) -> str:
    """What to say of a step in which calls failed by a bug of ours; nothing where none did."""
    if not (bugs := int(row.get("harness_bugs", 0))):
        return ""
    were = "call failed by a bug" if bugs == 1 else "calls failed by bugs"
    return f"{bugs} tool {were} of the harness ({BUG}): read them in the trajectories of this step, and mend them"


class NoPasses:
    """Hears of trained groups; speaks while none of their rollouts has passed: such a run would be silent for hours."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.groups = 0
        self.passed = False
        self._next = FIRST
        self.heard(row["passed"] for row in read_metrics(run) if row["stage"] == "rl.task")  # before this command

    def heard(self, passes: Iterable[int]) -> str:
        """`passes` has the number of rollouts that passed, for each group of a step. A sentence, or nothing."""
        for number in passes:
            self.groups += 1
            self.passed = self.passed or number > 0
        if self.passed or self.groups < self._next:
            return ""
        self._next = 2 * self.groups
        return (
            f"no rollout of the first {self.groups} groups passed. What helps: "
            "easier tasks (or rl.tasks.begin=detailed, which says more), fine-tuning on demonstrations before "
            "(etude sft), a stronger rl.model, more room (harness.limits); "
            f"`etude rollouts {self.run} --only failed` shows what goes wrong"
        )


def by_source(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """A few figures for each of several mixed sources; nothing where there is only one."""
    found: dict[str, float] = {}
    names = sorted({rollout.source for rollout in rollouts})
    for name in names if len(names) > 1 or any(names) else ():
        some = [rollout for rollout in rollouts if rollout.source == name]
        facts = describe(some)
        shown = ("reward", "pass_rate", "turns", "rollout_tokens", "tool_errors", "malformed")
        found |= {f"source_{name}_{key}": facts[key] for key in shown}
        found[f"source_{name}_rollouts"] = len(some)
    return found


def pass_at(outcomes: Sequence[tuple[str, bool]]) -> dict[str, float]:
    """pass@1 and pass@k over tasks, for k up to the rollouts that every task has: of (task, passed) of each rollout.

    1 - C(n - c, k) / C(n, k) is the chance that k of a task's n rollouts, c of which passed, hold one that passed.
    """
    tried, passed = Counter(task for task, _ in outcomes), Counter(task for task, good in outcomes if good)
    most = min(tried.values(), default=0)
    chances = {
        k: [1 - math.comb(n - passed[task], k) / math.comb(n, k) for task, n in tried.items()]
        for k in sorted({1, *(2**i for i in range(most.bit_length()) if 2**i <= most), most} - {0})
        if most
    }
    return {f"pass_at_{k}": sum(each) / len(each) for k, each in chances.items()}


def staleness(
    rollouts: Sequence[Rollout], step: int, branches: Mapping[int, int], unmoved: Sequence[int] = ()
) -> dict[str, float]:
    """How many optimiser steps lie between the weights that sampled each token and those of `step` that it trains.

    `branches` says up to which step an earlier lineage is part of our history; a token sampled past that point is as
    many steps away from it on its own branch, and those count too. `unmoved` are steps of our history that left the
    weights as they were, in order: they were never published, and make no token older.
    """
    versions = [trace.version_T2[trace.sampled_T] for rollout in rollouts for trace in rollout.traces]
    if not versions or not sum(map(len, versions)):
        return {}
    age_N = ages(np.concatenate(versions), step, branches, unmoved)
    found = {"staleness_mean": float(age_N.mean()), "staleness_max": int(age_N.max())}
    # A histogram: the share of tokens of each age, all from OLD on together.
    counts = np.bincount(np.clip(age_N, 0, OLD), minlength=OLD + 1)
    return found | {f"staleness_share_{age}": count / len(age_N) for age, count in enumerate(counts.tolist()) if count}


def ages(
    version_N2: npt.NDArray[np.int32], step: int, branches: Mapping[int, int], unmoved: Sequence[int] = ()
) -> npt.NDArray[np.int64]:
    """How many steps lie between each version (lineage and step) and the weights of `step`; see `staleness`."""
    common_N, past_N = version_N2[:, 1].astype(np.int64), np.zeros(len(version_N2), np.int64)
    for before, last in branches.items():
        left_N = (version_N2[:, 0] == before) & (version_N2[:, 1] > last)
        past_N = np.where(left_N, version_N2[:, 1] - last, past_N)
        common_N = np.where(left_N, last, common_N)
    quiet = np.array([at for at in unmoved if at <= step], np.int64)
    return np.asarray(step - common_N - (len(quiet) - np.searchsorted(quiet, common_N, side="right")) + past_N)


class Deltas:
    """What counters grew by since they were last asked; one that was started again counts from nothing."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def row(self, counts: Mapping[str, float]) -> dict[str, float]:
        found = {name: value - self._last.get(name, 0.0) for name, value in counts.items()}
        self._last = dict(counts)
        return {name: max(0.0, grown) for name, grown in found.items()}


SUMMED = ("groups", "zero_variance", "rollouts", "sampled_tokens", "trained_tokens")


@dataclass
class Totals:
    """Sums over all lineages that survive."""

    seconds: float = 0.0
    groups: int = 0
    zero_variance: int = 0
    rollouts: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0
    feedback_tokens: int = 0  # of turns that learnt from themselves with a hint above
    void: dict[str, int] = field(default_factory=dict)  # rollouts by whose failure it was, and whole groups
    probes: int = 0
    probe_sum: float = 0.0
    probe_max: float = 0.0
    staleness_max: int = 0

    def add(self, row: Mapping[str, float]) -> None:
        """Counts the row of a step."""
        for name in SUMMED:
            setattr(self, name, getattr(self, name) + int(row[name]))
        self.feedback_tokens += int(row.get("feedback_tokens", 0))
        self.staleness_max = max(self.staleness_max, int(row["staleness_max"]))

    def facts(self) -> dict[str, Any]:
        """What the stage's facts say of them."""
        names = (
            "groups",
            "zero_variance",
            "rollouts",
            "sampled_tokens",
            "trained_tokens",
            "probe_max",
            "staleness_max",
        )
        hinted = {"feedback_tokens": self.feedback_tokens} if self.feedback_tokens else {}
        return (
            {name: getattr(self, name) for name in names}
            | hinted
            | {"probe_mean": self.probe_sum / max(1, self.probes)}
        )


class Clock:
    """Where the time went between two rows: each process's share of the wall time, and who waited for whom."""

    def __init__(self, pids: Mapping[str, int | Callable[[], Sequence[int]]]) -> None:
        # A function where there are several, or where one may be started again.
        self._pids: dict[str, Callable[[], Sequence[int]]] = {
            name: found if callable(found) else partial(_only, found) for name, found in pids.items()
        }
        self._shared = {"cores": process.available_cores(), "by_session": float(process.shared_by_session())}
        self._waits = {"data": 0.0, "learner": 0.0, "probe": 0.0}
        self._at = time.monotonic()
        self._used, self._machine = self._processors(), machine_seconds()
        self._launchers = self._launcher_seconds()
        self._learner = 0.0

    def wait(self, name: str, seconds: float) -> None:
        self._waits[name] += seconds

    def row(self, learner_seconds: float) -> dict[str, float]:
        """Shares since the last row; `learner_seconds` is how long the learner has been busy in all."""
        now, used, machine = time.monotonic(), self._processors(), machine_seconds()
        wall = max(now - self._at, 1e-9)
        found = {
            "seconds": wall,
            "learner_busy": min(1.0, (learner_seconds - self._learner) / wall),
            # one thread that computes whenever there is a request: its processor time is its busy time
            "engine_busy": min(1.0, max(0.0, used["engine"] - self._used["engine"]) / wall),
        }
        found |= {f"wait_{name}": seconds / wall for name, seconds in self._waits.items()}
        # A process that was started again counts from nothing.
        found |= {f"cpu_{name}": max(0.0, used[name] - self._used[name]) / wall for name in used}
        ours = sum(max(0.0, used[name] - self._used[name]) for name in used)
        # What other programs of this machine took: without it nobody can say afterwards why a step was slow.
        found["cpu_others"] = max(0.0, machine - self._machine - ours) / wall
        if "sandboxes" in self._pids:
            launchers, self._launchers = self._launchers, self._launcher_seconds()
            found["launcher_busy"] = max(0.0, self._launchers - launchers) / wall
        found |= self._shared
        for name, pids in self._pids.items():
            facts = [held(pid) for pid in pids()]
            found[f"mb_{name}"], found[f"files_{name}"] = sum(mb for mb, _ in facts), sum(files for _, files in facts)
        self._at, self._used, self._machine, self._learner = now, used, machine, learner_seconds
        self._waits = dict.fromkeys(self._waits, 0.0)
        return found

    def _processors(self) -> dict[str, float]:
        return {name: sum(map(processor_seconds, pids())) for name, pids in self._pids.items()}

    def _launcher_seconds(self) -> float:
        """Of the processes that start sandboxes, without what they started."""
        pids = self._pids.get("sandboxes", lambda: ())()
        return sum(processor_seconds(pid, children=False) for pid in pids)


def _only(pid: int) -> Sequence[int]:
    return (pid,)


def held(pid: int) -> tuple[float, int]:
    """Memory in MB and open files of a process; 0 where the system does not say."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return 0.0, 0


def processor_seconds(pid: int, children: bool = True) -> float:
    """Processor time of a process, and of its ended children, so far; 0 where the system does not say."""
    try:
        # A process's name may hold blanks and brackets, so the fields are counted from behind it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11 : 15 if children else 13])) / _TICKS


def machine_seconds() -> float:
    """Processor time that all programs have taken of the cores that this one may use; 0 where nobody says."""
    mine = {f"cpu{core}" for core in os.sched_getaffinity(0)} if hasattr(os, "sched_getaffinity") else {"cpu"}
    found = 0
    try:
        for line in Path("/proc/stat").read_text().splitlines():
            name, *ticks = line.split()
            if name in mine:
                user, nice, system, _idle, _waiting, *rest = map(int, ticks)
                found += user + nice + system + sum(rest[:2])
    except (OSError, ValueError):
        return 0.0
    return found / _TICKS
