"""Service times of a finished run: its rows of metrics say what everything took, its journal what rollouts were like.

All processes share the machine's cores, so their processor time is what is measured: how fast it passes is simulated.
With a GPU an engine's step is processor time of its thread and the seconds that this slept; the learner's verbs are the
seconds they took. Both hold what engines and learner cost each other on one GPU in that run, and nothing corrects it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from etude.core.errors import EtudeError
from etude.core.recipe import Recipe
from etude.core.run_files import read_facts, read_metrics
from etude.learn.packing import LEAST, begin_alike
from etude.plan.simulator.service_times import EngineTimes, LearnerTimes, RolloutShape, ServiceTimes, check, graded
from etude.rl.groups import Rollout, slot_name, slot_of, spent_seconds, unpack
from etude.rl.probe import LENGTH, PROMPT
from etude.rl.rollout_files import RolloutFile, RolloutFiles
from etude.rollout.store import load_rollout, saved_rollouts

FEWEST = 5  # steps that figures are made from
MOST = 4_000  # rollouts that are drawn from: more change no mean
SCORED = 1 / 3  # of a token's gradient: a forward is a third of forward and backward


def measure_run(run: Path, recipe: Recipe) -> ServiceTimes:
    """What the steps of `run`, which was made by `recipe`, took."""
    read_facts(run)  # says so where it is no run
    rows = [row for row in read_metrics(run) if row["stage"] == "rl"]
    if len(rows) < FEWEST:
        raise EtudeError(f"{run} has {len(rows)} steps of reinforcement learning; service times need {FEWEST}")
    devices = recipe.run.device != "cpu"
    # With a device, processor time of steps without what the thread slept for them is less than they took.
    needed = "engine_waited_seconds" if devices else "engine_step_seconds"
    if not all(needed in row for row in rows):
        raise EtudeError(
            f"{run} was made before steps of the engine were counted as now; train a few steps again with this version"
        )
    if not _sum(rows, "engine_steps"):
        raise EtudeError(f"{run} has no service times: its engine counts no steps, as vLLM; sample with our engine")
    groups = read_groups(run)
    cores = float(rows[-1].get("cores", 0.0))
    rollouts, seconds = sum(row["rollouts"] for row in rows), sum(row["seconds"] for row in rows)

    def spent(name: str) -> npt.NDArray[np.float64]:
        return np.array([row.get(f"cpu_{name}", 0.0) * row["seconds"] for row in rows])

    busy = np.array([row["learner_busy"] * row["seconds"] for row in rows])
    workers = float(spent("workers").sum())
    loop = float(spent("loop").sum())
    starting = _mean(rows, "sandbox_start_seconds", "sandbox_starts")
    computed = _sum(rows, "engine_computed_tokens") - _sum(rows, "engine_sampled_tokens")
    shapes = [shape for group in groups for shape in group]
    prompts = sum(new for shape in shapes for new, _ in shape.turns) / len(shapes) * rollouts
    return check(
        ServiceTimes(
            engine=engine_times(rows, spent("engine"), recipe, groups),
            learner=replace(
                learner_times(rows, busy if devices else spent("learner"), recipe.rl.probe_tokens),
                host=min(1.0, float(spent("learner").sum() / max(busy.sum(), 1e-9))) if devices else 1.0,
            ),
            groups=groups,
            loop=loop / rollouts if workers else 0.0,
            worker=(workers or loop) / rollouts,
            sandbox=float(spent("sandboxes").sum()) / rollouts,
            launcher=launcher_seconds(rows, groups),
            starting=starting,
            ending=max(0.0, _mean(rows, "sandbox_seconds", "sandbox_ends") - starting),
            prefill=min(1.0, computed / max(1.0, prompts)),
            swap=_sum(rows, "swap_seconds") / len(rows),
            start=_start_seconds(run, rows),
            probe_tokens=recipe.rl.probe_tokens,
            save_tokens=recipe.cluster.save_tokens,
            cores=cores,
            others=others(rows, cores, devices),
            by_session=bool(rows[-1].get("by_session")),
            devices=devices,
            measured=f"{len(rows)} steps, {int(rollouts)} rollouts, {seconds:.0f} s",
        )
    )


def engine_times(
    rows: Sequence[dict[str, Any]],
    spent: npt.NDArray[np.float64],
    recipe: Recipe,
    groups: Sequence[Sequence[RolloutShape]],
) -> EngineTimes:
    """What a step, a token of an answer and a token of a prompt take, by least squares over the steps."""
    seconds, waited = _sum(rows, "engine_step_seconds"), _sum(rows, "engine_waited_seconds")
    # The rest of its process hands tokens over: while its thread waits for a device, else instead of it.
    rest = max(0.0, float(spent.sum()) - (seconds - waited))
    taken = seconds - waited + max(waited, rest)
    host, ahead = 1 - max(0.0, waited - rest) / taken, int(recipe.run.device != "cpu")
    step, token, prompt = _of_steps(rows, taken)
    longest = sum(shape.tokens for group in groups for shape in group) / sum(map(len, groups))
    fits = int(recipe.engine.cache_tokens * recipe.cluster.engines // max(1.0, longest))
    return EngineTimes(step, token, prompt, max(1, min(recipe.engine.max_running, fits)), host, ahead)


def _of_steps(rows: Sequence[dict[str, Any]], taken: float) -> list[float]:
    """Seconds of a step, a row and a token of a prompt, which are `taken` in all, from the engine's sums over steps."""

    def total(name: str) -> float:
        return _sum(rows, f"engine_{name}")

    steps, sampled = total("steps"), total("sampled_tokens")
    prompts = total("computed_tokens") - sampled
    products_33 = np.array(
        [
            [steps, sampled, prompts],
            [sampled, total("rows_rows"), total("rows_prompts")],
            [prompts, total("rows_prompts"), total("prompts_prompts")],
        ]
    )
    wanted_3 = np.array([total("step_seconds"), total("seconds_rows"), total("seconds_prompts")])
    # The same least squares as over the steps themselves.
    root_33 = np.linalg.cholesky(products_33)
    found = not_negative(root_33.T, np.linalg.solve(root_33, wanted_3), weighted=False)
    return [float(each * taken / wanted_3[0]) for each in found]


def learner_times(rows: Sequence[dict[str, Any]], spent: npt.NDArray[np.float64], probe_tokens: int) -> LearnerTimes:
    tokens = _column(rows, "forward_tokens") - _column(rows, "shared_tokens")
    # Answers of the probe with their prompts, and rollouts that begin with the learner's own weights.
    scored = (_column(rows, "real_scored") + probe_tokens * (1 + PROMPT / LENGTH)) * SCORED
    publish = _sum(rows, "publish_seconds") / len(rows)
    step, token = not_negative(np.stack([np.ones(len(rows)), tokens + scored], 1), spent)
    shares = any(row.get("shared_tokens") for row in rows)
    return LearnerTimes(max(0.0, step - publish), token, token * SCORED, publish, shares)


def launcher_seconds(rows: Sequence[dict[str, Any]], groups: Sequence[Sequence[RolloutShape]]) -> float:
    """Of the launcher's own thread for a sandbox; a rollout needs one for itself, and often one for its grade."""
    spent = sum(row.get("launcher_busy", 0.0) * row["seconds"] for row in rows)
    return float(spent / _sum(rows, "rollouts") / (1 + graded(groups)))


def not_negative(
    columns_NC: npt.NDArray[np.float64], wanted_N: npt.NDArray[np.float64], weighted: bool = True
) -> list[float]:
    """Least squares with no coefficient below 0: one that would be is left out, the most negative first.

    Rows are weighted by 1 / sqrt of what they took: a long step is no better a witness than several short ones.
    """
    weights_N1 = 1 / np.sqrt(np.maximum(wanted_N, 1e-6))[:, None] if weighted else np.ones((len(wanted_N), 1))
    left = list(range(columns_NC.shape[1]))
    found_C = np.zeros(columns_NC.shape[1])
    while left:
        solved, *_ = np.linalg.lstsq(columns_NC[:, left] * weights_N1, wanted_N * weights_N1[:, 0], rcond=None)
        if (solved >= 0).all():
            found_C[left] = solved
            break
        left.pop(int(solved.argmin()))
    return [float(each) for each in found_C]


def others(rows: Sequence[dict[str, Any]], cores: float, devices: bool) -> float:
    """How many threads of other programs wanted to compute all the time, on cores that were shared with them.

    While the learner works it gets the share of a core that everybody gets: that share, and the processor time of
    others, say how many they were. A learner with a device of its own waits for that, and says nothing.
    """
    busy = sum(row["learner_busy"] * row["seconds"] for row in rows)
    spent = sum(row.get("cpu_learner", 0.0) * row["seconds"] for row in rows)
    share = 1.0 if devices else min(1.0, spent / max(busy, 1e-9))
    taken = sum(row.get("cpu_others", 0.0) * row["seconds"] for row in rows) / sum(row["seconds"] for row in rows)
    return float(taken / max(share, 1e-3)) if cores else 0.0


def read_groups(run: Path) -> tuple[tuple[RolloutShape, ...], ...]:
    """The groups that the journal still holds, and those that were kept readable, newest first."""
    found: dict[int, dict[int, Member]] = {}
    for name, member in chain(_journalled(run / "rl" / "journal.db"), _readable(run / "rl" / "trajectories")):
        number, slot = slot_of(name)
        found.setdefault(number, {})[slot] = member
    if not found:
        raise EtudeError(f"{run} has kept no rollout; raise rl.keep_trajectories and train some steps again")
    most = max(map(len, found.values()))
    # One that is not whole may miss just those that were late.
    whole = [members for _, members in sorted(found.items(), reverse=True) if len(members) >= most - 1]
    return tuple(together([members[slot] for slot in sorted(members)]) for members in whole[: max(1, MOST // most)])


@dataclass(frozen=True)
class Member:
    """One rollout of a group, and what may be the same in others of it."""

    shape: RolloutShape
    texts: list[npt.NDArray[Any]]  # ids of its segments
    submission: str  # digest; empty where nobody kept it


def together(members: Sequence[Member]) -> tuple[RolloutShape, ...]:
    """A group's shapes, with what its members share."""
    before: list[npt.NDArray[Any]] = []
    grades: dict[str, int] = {}
    found = []
    for member in members:
        own = 0
        for ids in member.texts:
            alike = max((begin_alike(ids, other) for other in before), default=0)
            own += len(ids) - (alike if alike >= LEAST else 0)
            before.append(ids)
        grade = grades.setdefault(member.submission, len(grades)) if member.submission else -1
        found.append(replace(member.shape, own=own, grade=grade))
    return tuple(found)


def _journalled(path: Path) -> Iterator[tuple[str, Member]]:
    files = RolloutFiles(path.parent / "rollouts")
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
            for number, slot, data in base.execute("SELECT number, slot, data FROM rollouts"):
                yield slot_name(number, slot), _of_rollout(unpack(bytes(data)))
            for number, slot, *named in base.execute("SELECT number, slot, path, digest FROM files"):
                yield slot_name(number, slot), _of_rollout(unpack(files.read(RolloutFile(*named))))
    except sqlite3.Error as error:
        raise EtudeError(f"the journal {path} cannot be read: {error}") from None


def _readable(root: Path) -> Iterator[tuple[str, Member]]:
    for path in saved_rollouts(root) if root.is_dir() else ():
        saved = load_rollout(path)
        if saved.trajectory is not None and saved.reward is not None:
            segments = saved.trajectory.segments
            masks, tokens = [each.trained() for each in segments], sum(len(each.ids) for each in segments)
            spent = spent_seconds(saved.trajectory, saved.starting)
            shape = shape_of(masks, tokens, saved.reward, saved.seconds, spent)
            texts = [np.asarray(each.ids) for each in segments]
            yield path.name.rpartition("-")[0], Member(shape, texts, saved.changes.digest)


def _of_rollout(rollout: Rollout) -> Member:
    masks = [trace.sampled_T for trace in rollout.traces]
    shape = shape_of(masks, rollout.tokens, rollout.reward, rollout.seconds, rollout.spent)
    return Member(shape, [trace.ids_T for trace in rollout.traces], rollout.submission)


def shape_of(
    sampled: Sequence[npt.NDArray[np.bool_]], tokens: int, reward: float, seconds: float, spent: Mapping[str, float]
) -> RolloutShape:
    """Its turns are the runs of sampled tokens of each segment."""
    turns: list[tuple[int, int]] = []
    for sampled_T in sampled:
        edges = np.flatnonzero(np.diff(sampled_T.astype(np.int8), prepend=0, append=0))
        behind = 0
        for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            turns.append((first - behind, last - first))
            behind = last
    tools, starting = spent.get("tools", 0.0), spent.get("starting", 0.0)
    rest = max(0.0, seconds - spent.get("sampling", seconds) - tools - starting)
    return RolloutShape(tuple(turns) or ((0, 1),), tokens, reward, tools, rest, starting)


def _start_seconds(run: Path, rows: Sequence[dict[str, Any]]) -> float:
    """From the begin of the stage to its first row, that row's own seconds left out."""
    began = read_facts(run)["stages"].get("rl", {}).get("began")
    if began is None:
        return 0.0
    return float(max(0.0, rows[0]["time"] - datetime.fromisoformat(began).timestamp() - rows[0]["seconds"]))


def _column(rows: Sequence[dict[str, Any]], name: str) -> npt.NDArray[np.float64]:
    return np.array([row.get(name, 0.0) for row in rows], np.float64)


def _sum(rows: Sequence[dict[str, Any]], name: str) -> float:
    return float(sum(row.get(name, 0.0) for row in rows))


def _mean(rows: Sequence[dict[str, Any]], name: str, count: str) -> float:
    return _sum(rows, name) / max(1.0, _sum(rows, count))
