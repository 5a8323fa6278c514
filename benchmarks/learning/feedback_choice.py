"""Chooses the settings of feedback on a seed of its own, and compares them with RL alone on others, side by side.

    python benchmarks/learning/feedback_choice.py all --out OUT --minutes 25 [--device cuda] [--jobs 3]

Two cores for each arm, from those that this process may use (`taskset -c 10-15`). In this order: the fine-tuned models
of seeds 3, 0, 1 and 2 (on `--device`, unless they lie in `--runs`), RL alone and the candidates on seed 3, the
choice, then the arms of the study textual-feedback on seeds 0 to 2, with what was chosen. RL alone does not wait for
the choice. What has a result is not run again, so the same command goes on where it was ended. With `--at-once`, where
cores are many and time is short, every candidate is run on every seed and nothing waits for the choice; the study's
results are still those of what seed 3 chose.

The rule of the choice, fixed before anything was run: over the last two thirds of the steps (in the last third of one
seed two steps had 61% of the sites), of the candidates whose pass rate in training is at most 3 points below that of RL
alone the one whose worse ratio of the two error classes is the lowest; without any, the one with the highest pass rate.

OUT/choice.json says what was chosen and why, OUT/choice-NAME.json has the steps of each arm of seed 3, OUT/results.json
the study's results, which `etude study add` takes in; OUT/logs has a log for each command.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.learning.feedback_effect import mean
from etude.bench.studies.bases import Places, is_made, make_base
from etude.bench.studies.many_arms import collect, end_session, wait_or_kill
from etude.bench.studies.run_arms import run_command
from etude.bench.studies.study import open_study
from etude.core.durable import write_whole

ROOT = Path(__file__).parents[2]
STUDY = "textual-feedback"
CHOICE_SEED = 3
SEEDS = (0, 1, 2)
ALONE, FEEDBACK = "rl", "feedback"
OTHERS = ("sdpo", "sdft", "opsd")  # reported, if there is time
# Which tokens are taught: see "Focus" in docs/rooms/feedback.md.
CANDIDATES: dict[str, tuple[str, ...]] = {
    "even": (),  # the recipe as it is, with hints for every kind of error in a rollout
    "focus": ("rl.feedback.focus=0.5",),
}
JUDGED = ("text_not_found", "no_such_file")
MOST_LOWER = 0.03  # of the pass rate
CORES = 2  # of one arm
PAUSE = 0.5
MINUTES = {"base": 3.0, "arm": 4.5, "pair": 5.2}  # on two cores, about


@dataclass(frozen=True)
class Step:
    """One command: it begins behind `after` and is done when its result is there."""

    name: str
    words: Callable[[], Sequence[str]]
    is_done: Callable[[], bool]
    minutes: float
    after: tuple[str, ...] = ()


@dataclass
class Running:
    step: Step
    process: subprocess.Popen[bytes]
    slot: int
    began: float


def judge(runs: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Of each candidate: its ratios to RL alone and what it gains, over the last two thirds of the steps."""
    late = {name: [run["steps"][len(run["steps"]) // 3 :]] for name, run in runs.items()}
    found = {}
    for name, steps in late.items():
        if name == ALONE:
            continue
        rates = {kind: mean(steps, kind) / max(1e-9, mean(late[ALONE], kind)) for kind in JUDGED}
        found[name] = rates | {"gain": mean(steps, "pass_rate") - mean(late[ALONE], "pass_rate")}
    return found


def choose(found: dict[str, dict[str, float]]) -> str:
    """By the rule above."""
    kept = {name: rates for name, rates in found.items() if rates["gain"] >= -MOST_LOWER}
    if not kept:
        return max(found, key=lambda name: found[name]["gain"])
    return min(kept, key=lambda name: (max(kept[name][kind] for kind in JUDGED), kept[name][JUDGED[0]]))


def chosen(out: Path) -> str:
    """The candidate that is compared; the one that was chosen before, when it goes on."""
    file = out / "choice.json"
    if not file.is_file():
        runs = {name: out / f"choice-{name}.json" for name in (ALONE, *CANDIDATES)}
        read = {name: json.loads(path.read_text()) for name, path in runs.items() if path.is_file()}
        if ALONE not in read or len(read) < 2:
            raise ValueError("nothing can be chosen: RL alone or all candidates have no result")
        found = judge(read)
        name = choose(found)
        write_whole(file, json.dumps({"chosen": name, "settings": CANDIDATES[name], "found": found}, indent=1) + "\n")
    return str(json.loads(file.read_text())["chosen"])


def plan(options: argparse.Namespace) -> list[Step]:
    out, runs = options.out.resolve(), options.runs.resolve()
    study = open_study(STUDY, ROOT / "studies")
    (base,) = study.arms("cpu")[ALONE].bases
    python, here = sys.executable, str(Path(__file__).resolve())

    def made(seed: int) -> Callable[[], bool]:
        return lambda: is_made(base, Places(runs, seed, study.path), options.change)

    def model(seed: int) -> str:
        return str(Places(runs, seed, study.path).base(base) / "model")

    def base_step(seed: int) -> Step:
        own = ["base", "--seed", str(seed), "--runs", str(runs), "--device", options.device, *options.change]
        return Step(f"base-{seed}", lambda: [python, here, *own], made(seed), MINUTES["base"])

    def candidate(name: str) -> Step:
        file, arm = out / f"choice-{name}.json", ALONE if name == ALONE else FEEDBACK
        keys = [*CANDIDATES.get(name, ()), *options.change]
        words = [python, str(ROOT / "benchmarks/learning/feedback_effect.py"), "arm", "--arm", arm]
        words += ["--seed", str(CHOICE_SEED), "--steps", str(options.steps), "--model", model(CHOICE_SEED)]
        words += ["--out", str(file), *keys]
        after = (f"base-{CHOICE_SEED}",)
        return Step(f"choice-{name}", lambda: words, file.is_file, MINUTES["arm"], after)

    def pair(arm: str, seed: int, name: str = "") -> Step:
        """An arm of the study; of feedback, one with the settings of a candidate, or of the one that is chosen."""
        results = apart(out, name) if name else out
        file = results / STUDY / "results" / f"{arm}-{seed}.json"
        words = [python, "-m", "etude", "study", "run", STUDY, "--arm", arm, "--seed", str(seed), "--json"]
        words += ["--results", str(results), "--studies", str(ROOT / "studies")]

        def full() -> list[str]:
            own = runs_apart(runs, name, Places(runs, seed, study.path).base(base)) if name else runs
            words.extend(["--runs", str(own)])
            keys = [*(CANDIDATES[name or chosen(out)] if arm == FEEDBACK else ()), *options.change]
            return [*words, *(word for key in keys for word in ("--set", key))]

        waits = arm == FEEDBACK and not name
        after = (f"base-{seed}", *((f"choice-{each}" for each in (ALONE, *CANDIDATES)) if waits else ()))
        return Step(f"{arm}-{seed}" + (f"-{name}" if name else ""), full, file.is_file, MINUTES["pair"], after)

    first, last = [base_step(seed) for seed in (CHOICE_SEED, *SEEDS[:-1])], base_step(SEEDS[-1])
    steps = [*first, *(candidate(name) for name in (ALONE, *CANDIDATES)), last]
    steps += [pair(ALONE, seed) for seed in SEEDS]
    if options.at_once:
        return steps + [pair(FEEDBACK, seed, name) for seed in SEEDS for name in CANDIDATES]
    steps += [pair(FEEDBACK, seed) for seed in SEEDS]
    return steps + [pair(arm, SEEDS[0]) for arm in OTHERS]


def apart(out: Path, name: str) -> Path:
    """Where the results of a candidate lie while it is not known which one is chosen."""
    return out / "candidates" / name


def runs_apart(runs: Path, name: str, base: Path) -> Path:
    """Where a candidate's runs lie, which have the names of others'; the model that all start from is one."""
    own = runs / f"candidate-{name}"
    own.mkdir(parents=True, exist_ok=True)
    if not (own / base.name).exists():
        (own / base.name).symlink_to(base)
    return own


def take_chosen(out: Path) -> None:
    """The results of the chosen candidate become those of the study."""
    results = out / STUDY / "results"
    results.mkdir(parents=True, exist_ok=True)
    for file in (apart(out, chosen(out)) / STUDY / "results").glob("*.json"):
        write_whole(results / file.name, file.read_text())
    collect(out)


def run_all(
    steps: Sequence[Step], out: Path, slots: Sequence[set[int]], seconds: float, say: Callable[[str], None] = print
) -> bool:
    """Runs the steps in their order, one in each slot; begins none that would not end in time. Whether all are done."""
    deadline, ended = time.monotonic() + seconds, {step.name for step in steps if step.is_done()}
    waiting = [step for step in steps if step.name not in ended]
    running, free, failed = list[Running](), list(range(len(slots))), set[str]()
    (out / "logs").mkdir(parents=True, exist_ok=True)
    try:
        while (waiting or running) and time.monotonic() < deadline:
            for each in [each for each in running if each.process.poll() is not None]:
                running.remove(each)
                free.append(each.slot)
                ended.add(each.step.name)
                done, minutes = each.step.is_done(), (time.monotonic() - each.began) / 60
                failed |= set() if done else {each.step.name}
                say(f"{each.step.name}: {'done' if done else 'failed'} in {minutes:.1f} minutes")
                collect(out)
            ready = [
                step
                for step in waiting
                if ended.issuperset(step.after) and time.monotonic() + 60 * step.minutes < deadline
            ]
            for step in ready[: len(free)]:
                waiting.remove(step)
                try:
                    words = step.words()
                except ValueError as error:
                    ended.add(step.name)
                    failed.add(step.name)
                    say(f"{step.name}: left out, {error}")
                    continue
                running.append(start(step, words, out / "logs" / f"{step.name}.log", free.pop(0), slots))
                say(f"{step.name}: begun")
            if not running and not ready:
                break
            time.sleep(PAUSE)
    finally:  # Ctrl-C, too: sessions of their own hear of nothing
        for each in running:
            end_session(each.process)
        for each in running:
            wait_or_kill(each.process)
            say(f"{each.step.name}: ended at the deadline")
    collect(out)
    say(f"left: {', '.join(step.name for step in waiting) or 'none'}; failed: {', '.join(sorted(failed)) or 'none'}")
    return not waiting and not failed and not running


def start(step: Step, words: Sequence[str], log: Path, slot: int, slots: Sequence[set[int]]) -> Running:
    with log.open("wb") as file:
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
    # Before the process has started a thread: what it starts later has the same cores, sandboxes too.
    if hasattr(os, "sched_setaffinity") and slots[slot]:
        os.sched_setaffinity(process.pid, slots[slot])
    return Running(step, process, slot, time.monotonic())


def slots_of(jobs: int) -> list[set[int]]:
    """Two cores for each of the jobs, of those that this process may use; none of their own where there are too few."""
    mine = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return [set(mine[CORES * n : CORES * (n + 1)]) if len(mine) >= CORES * jobs else set() for n in range(jobs)]


def base(options: argparse.Namespace) -> int:
    study = open_study(STUDY, ROOT / "studies")
    machine = [f"run.device={options.device}", "run.compute.precision=float32"]
    machine += ["run.compute.compile=false"] if options.device != "cpu" else []
    for each in study.arms("cpu")[ALONE].bases:
        make_base(each, Places(options.runs, options.seed, study.path), run_command, [*machine, *options.change])
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    every, one = verbs.add_parser("all"), verbs.add_parser("base")
    every.add_argument("--out", type=Path, required=True)
    every.add_argument("--minutes", type=float, required=True, help="begin nothing that would not end by then")
    every.add_argument("--jobs", type=int, default=3, help="arms side by side, two cores each")
    every.add_argument("--at-once", action="store_true", help="every candidate on every seed; nothing waits")
    every.add_argument("--steps", type=int, default=50, help="of the arms on the seed of the choice")
    one.add_argument("--seed", type=int, required=True)
    for verb in (every, one):
        verb.add_argument("--runs", type=Path, default=Path("runs/studies"), help="folder for runs and bases")
        verb.add_argument("--device", default="cuda", help="that makes the bases")
        verb.add_argument("change", nargs="*", help="settings of everything, to try it smaller: KEY=VALUE")
    options = parser.parse_args()
    if options.verb == "base":
        return base(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is ended, too
    options.out.mkdir(parents=True, exist_ok=True)

    def say(text: str) -> None:
        print(time.strftime("%H:%M:%S"), text, flush=True)

    done = run_all(plan(options), options.out.resolve(), slots_of(options.jobs), 60 * options.minutes, say)
    if options.at_once:
        try:
            take_chosen(options.out.resolve())
        except ValueError as error:
            say(str(error))
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
