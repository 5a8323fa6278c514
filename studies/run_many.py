"""Runs the studies' arms by priority, several side by side, until a deadline; for a machine with many cores.

    python studies/run_many.py --jobs 8 --minutes 18 --results OUT
    python studies/run_many.py --cores 4-15 --bases 6 --bases-set run.device=cuda --minutes 25 --results OUT

Each arm and seed gets two cores. `OUT/results.json` has every result so far, in one file; `OUT/log` what happened.
Where the results were made on another machine, bring that file back and take it in with

    etude study add results.json

Models that arms start from lie in `runs/studies/base-*` (5 MB each, 10 MB for that with experts). Those that are there
are used, the others are made first: carry the folder `runs/studies` and nothing has to be made twice. With `--bases`
they are made beside the arms, and with `--bases-set run.device=cuda` on a GPU. What is not done at the deadline goes on
with the next command. `studies/on_many_cores.sh` starts this apart, where commands are cut after ten minutes.

`--only NAME` runs one study, `--set KEY=VALUE` tries it smaller.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from etude.bench.studies.many_arms import CORES, Bases, Job, collect, run_many
from etude.bench.studies.study import open_study

HERE = Path(__file__).parent
# What is wanted first: what has no verdict yet, then what decides the most, then what is only reported. A line is a
# study, its arms (all that are compared, where none is named) and seeds. Two seeds make a verdict; a third makes the
# interval over seeds three times as narrow.
PRIORITY = (
    *("effort: 0 1", "self-summary trained: 0 1", "pretraining-helps-rl: 0 1", "self-summary: 0 1"),
    "hidden-families: 0",
    *("effort: 2", "pretraining-helps-rl: 2", "self-summary: 2", "hidden-families: 1"),
    *("rl-against-sft: 0 1 2", "average-and-best: 0 1 2", "async: 0 1 2", "textual-feedback: 0 1 2"),
    *("reward-hacking: 0 1 2", "router-replay: 0 1 2", "task-quantity: 0 1 2"),
    "rl-against-sft rl-300 sft-300 rl-6000 sft-6000: 0",
)
GPU = 0.4  # of the time of two cores, to make a base
ALL_SEEDS = "0 1 2"


def jobs(only: Sequence[str], again: Sequence[str] = ()) -> list[Job]:
    """The arms without a result in the order above, those of `again`, then those that only reports want."""
    names = dict.fromkeys(line.split()[0].rstrip(":") for line in PRIORITY)
    rest = [f"{name} {' '.join(open_study(name, HERE).arms('cpu'))}: {ALL_SEEDS}" for name in names]
    found = [job for line in PRIORITY for job in _of_line(line)]
    found += [job for name in again for job in _of_line(f"{name}: {ALL_SEEDS}", with_results=True)]
    found += [job for line in rest for job in _of_line(line)]
    once = {job.name: job for job in found}
    return [job for job in once.values() if not only or job.study.name in only]


def _of_line(line: str, with_results: bool = False) -> list[Job]:
    """The jobs of a line, seed by seed: those that have no result, or all."""
    words, _, seeds = line.partition(":")
    name, *arms = words.split()
    study = open_study(name, HERE)
    chosen = arms or [arm for arm, what in study.arms("cpu").items() if what.compared]
    wanted = study.every("cpu") if with_results else study.missing("cpu")
    return [Job(study, arm, int(seed)) for seed in seeds.split() for arm in chosen if (arm, int(seed)) in wanted]


def core_numbers(text: str) -> set[int]:
    """Of `4-15` or `0,2,8-11`."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=0, help="arms side by side; 0: as many as the cores hold")
    parser.add_argument("--cores", type=core_numbers, default=set(), help="use these alone, such as 4-15; default: all")
    parser.add_argument("--bases", type=int, default=0, help="models that arms start from, made beside the arms")
    parser.add_argument(
        "--bases-set", action="append", default=[], metavar="KEY=VALUE", help="for those alone: run.device=cuda"
    )
    parser.add_argument(
        "--again", action="append", default=[], metavar="NAME", help="compared arms that have a result, too, last"
    )
    parser.add_argument("--minutes", type=float, required=True, help="begin nothing that would not end by then")
    parser.add_argument("--grace", type=float, default=1.0, help="minutes that what is under way then has to end in")
    parser.add_argument("--results", type=Path, required=True, help="folder for results and logs")
    parser.add_argument("--runs", type=Path, default=Path("runs/studies"), help="folder for runs and bases")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this study; may be given again")
    parser.add_argument("--arm", action="append", default=[], help="this arm; may be given again")
    parser.add_argument("--seed", type=int, action="append", default=[], help="this seed; may be given again")
    parser.add_argument(
        "--slower", type=float, default=1.0, help="how much slower than two quiet cores this machine is"
    )
    parser.add_argument(
        "--set", action="append", default=[], dest="changes", metavar="KEY=VALUE", help="in all recipes"
    )
    parser.add_argument("--list", action="store_true", help="say what would be run, in its order, and stop")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is ended, too
    if options.cores:
        os.sched_setaffinity(0, options.cores)
    wanted = [job for job in jobs(options.only, options.again) if not options.arm or job.arm in options.arm]
    wanted = [job for job in wanted if not options.seed or job.seed in options.seed]
    if options.list:
        for job in wanted:
            bases = ", ".join(base.name for base in job.bases)
            print(f"{job.name}: {job.study.minutes('cpu', job.arm):.1f} minutes, from {bases}")
        return 0
    options.results.mkdir(parents=True, exist_ok=True)
    with (options.results / "log").open("a") as log:

        def say(text: str) -> None:
            for where in (sys.stdout, log):
                print(text, file=where, flush=True)

        found = run_many(
            wanted,
            options.runs.resolve(),
            options.results.resolve(),
            slots=options.jobs or max(1, len(os.sched_getaffinity(0)) // CORES),
            seconds=60 * options.minutes,
            grace=60 * options.grace,
            slower=options.slower,
            changes=options.changes,
            bases=Bases(options.bases, options.bases_set, options.slower * (GPU if options.bases_set else 1.0)),
            say=say,
        )
    collect(options.results)
    print(json.dumps(vars(found)))
    return 1 if found.failed else 0


if __name__ == "__main__":
    sys.exit(main())
