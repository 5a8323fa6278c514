"""Runs the studies' arms by priority, several side by side, until a deadline; for a machine with many cores.

    python studies/run_many.py --jobs 8 --minutes 18 --results OUT

Each arm and seed gets two cores. `OUT/results.json` has every result so far, in one file; `OUT/log` what happened.
Where the results were made on another machine, bring that file back and take it in with

    etude study add results.json

Models that arms start from lie in `runs/studies/base-*` (5 MB each, 10 MB for that with experts). Those that are there
are used, the others are made first: carry the folder `runs/studies` and nothing has to be made twice. What is not done
at the deadline goes on with the next command. Where commands are cut after ten minutes, start it apart and wait:

    setsid nohup python studies/run_many.py --jobs 8 --minutes 18 --results runs/out > runs/many.log 2>&1 & sleep 580
    sleep 570; cp runs/out/results.json runs/out/log WHERE_IT_COMES_BACK_FROM

`--only NAME` runs one study, `--set KEY=VALUE` tries it smaller.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from etude.bench.studies.many_arms import Job, collect, run_many
from etude.bench.studies.study import open_study

HERE = Path(__file__).parent
# What is wanted first: seed 0 and 1 of what decides the most, then of the others, then third seeds. A line is a study,
# its arms (all that are compared, where none is named) and seeds.
PRIORITY = (
    *("rl-against-sft: 0", "rl-against-sft: 1", "average-and-best: 1 2", "async: 0 1", "rl-against-sft: 2"),
    *("textual-feedback: 0 1", "effort: 0 1", "reward-hacking: 0 1"),
    *("rl-against-sft hidden-before hidden-rl: 0", "self-summary: 0 1", "router-replay: 0 1"),
    *("rl-against-sft rl-300 sft-300: 0", "pretraining-helps-rl: 0 1", "task-quantity: 0 1"),
    *("textual-feedback: 2", "reward-hacking: 2", "effort: 2", "self-summary: 2", "router-replay: 2", "async: 2"),
    *("pretraining-helps-rl: 2", "task-quantity: 2"),
)


def jobs(only: Sequence[str]) -> list[Job]:
    """The arms without a result in the order above, then those that only reports want."""
    found: list[Job] = []
    names = [line.split()[0].rstrip(":") for line in PRIORITY]
    rest = [f"{name} {' '.join(open_study(name, HERE).arms('cpu'))}: 0 1 2" for name in dict.fromkeys(names)]
    for line in (*PRIORITY, *rest):
        words, _, seeds = line.partition(":")
        name, *arms = words.split()
        study = open_study(name, HERE)
        chosen = arms or [arm for arm, what in study.arms("cpu").items() if what.compared]
        missing = set(study.missing("cpu"))
        wanted = [Job(study, arm, int(seed)) for seed in seeds.split() for arm in chosen]
        known = {job.name for job in found}
        found += [job for job in wanted if (job.arm, job.seed) in missing and job.name not in known]
    return [job for job in found if not only or job.study.name in only]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1, help="arms side by side, two cores each")
    parser.add_argument("--minutes", type=float, required=True, help="begin nothing that would not end by then")
    parser.add_argument("--grace", type=float, default=1.0, help="minutes that what is under way then has to end in")
    parser.add_argument("--results", type=Path, required=True, help="folder for results and logs")
    parser.add_argument("--runs", type=Path, default=Path("runs/studies"), help="folder for runs and bases")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this study; may be given again")
    parser.add_argument("--arm", action="append", default=[], help="this arm; may be given again")
    parser.add_argument(
        "--slower", type=float, default=1.0, help="how much slower than two quiet cores this machine is"
    )
    parser.add_argument(
        "--set", action="append", default=[], dest="changes", metavar="KEY=VALUE", help="in all recipes"
    )
    parser.add_argument("--list", action="store_true", help="say what would be run, in its order, and stop")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is ended, too
    wanted = [job for job in jobs(options.only) if not options.arm or job.arm in options.arm]
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
            slots=options.jobs,
            seconds=60 * options.minutes,
            grace=60 * options.grace,
            slower=options.slower,
            changes=options.changes,
            say=say,
        )
    collect(options.results)
    print(json.dumps(vars(found)))
    return 1 if found.failed else 0


if __name__ == "__main__":
    sys.exit(main())
