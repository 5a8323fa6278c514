"""Runs what a study lacks: one arm and seed after another, each a chain of `etude` commands in a process of its own.

A command that was stopped goes on where its run was, so a study can be run in pieces; an arm that is done is not run
again.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from etude.bench.studies.study import ArmResult, Command, Size, StudyFolder, write_result
from etude.core.errors import EtudeError
from etude.core.run import machine_facts

DONE = "prepared"  # file in the run that arms start from, once it is whole


def run_arms(
    study: StudyFolder,
    size: Size,
    runs: Path,
    *,
    only: Sequence[tuple[str, int]] = (),
    seconds: float = 0.0,
    keep: bool = False,
    say: Callable[[str], None] = print,
) -> list[tuple[str, int]]:
    """Runs the arms that have no result, or those of `only`; begins none after so many `seconds`. What was run."""
    began, done = time.monotonic(), []
    for arm, seed in only or study.missing(size):
        if seconds and time.monotonic() - began > seconds:
            say(f"stopped after {seconds / 60:.0f} minutes; the same command goes on")
            break
        base = runs / f"{study.name}-{size}-base-{seed}"
        if study.study.prepare and not (base / DONE).exists():
            say(f"{study.name}: the run that all arms of seed {seed} start from")
            _run(study.study.prepare, base, base, seed)
            (base / DONE).touch()
        run = runs / f"{study.name}-{size}-{arm}-{seed}"
        say(f"{study.name}: {arm}, seed {seed}: {study.arms(size)[arm].about}")
        started = time.monotonic()
        commands = _run(study.arms(size)[arm].commands, run, base, seed)
        result = ArmResult(
            arm=arm,
            seed=seed,
            seconds=round(time.monotonic() - started, 1),
            date=time.strftime("%Y-%m-%d"),
            machine={name: fact for name, fact in machine_facts().items() if name != "command"},
            # As somebody else would type them: without the folders of this machine.
            commands=[[_plain(word, runs) for word in command] for command in commands],
            values=study.study.measure(run),
        )
        write_result(study.result_file(size, arm, seed), result)
        done.append((arm, seed))
        if not keep:
            shutil.rmtree(run, ignore_errors=True)
    return done


def _run(commands: Sequence[Command], run: Path, base: Path, seed: int) -> list[list[str]]:
    filled = [[word.format(run=run, base=base, seed=seed) for word in command] for command in commands]
    for command in filled:
        if status := run_command(command):
            raise EtudeError(f"`etude {' '.join(command)}` ended with status {status}; run the study again")
    return filled


def run_command(words: Sequence[str]) -> int:
    """One `etude` command in a process of its own; its exit status."""
    return subprocess.run([sys.executable, "-m", "etude", *words], check=False).returncode


def _plain(word: str, runs: Path) -> str:
    return word.replace(str(runs), "runs/studies")
