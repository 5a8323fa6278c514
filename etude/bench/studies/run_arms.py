"""Runs what a study lacks: one arm and seed after another, each a chain of `etude` commands in processes of their own.

A command that was stopped goes on where its run was, so a study can be run in pieces; an arm that is done is not run
again. Every arm and seed has a run folder of its own, so several may run side by side (`many_arms`).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from etude.bench.studies.bases import Places, make_base, run_commands
from etude.bench.studies.study import ArmResult, Size, StudyFolder, write_result
from etude.core.run import machine_facts


def run_arms(
    study: StudyFolder,
    size: Size,
    runs: Path,
    *,
    only: Sequence[tuple[str, int]] = (),
    seconds: float = 0.0,
    keep: bool = False,
    changes: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> list[tuple[str, int]]:
    """Runs the arms that have no result, or those of `only`; begins none after so many `seconds`. What was run.

    `changes` are settings added to every command that takes a recipe, to try a study with a smaller size.
    """
    began, done = time.monotonic(), []
    for arm, seed in only or study.missing(size):
        if seconds and time.monotonic() - began > seconds:
            say(f"stopped after {seconds / 60:.0f} minutes; the same command goes on")
            break
        say(f"{study.name}: {arm}, seed {seed}: {study.arms(size)[arm].about}")
        write_result(study.result_file(size, arm, seed), run_arm(study, size, arm, seed, runs, keep, changes))
        done.append((arm, seed))
    return done


def run_arm(
    study: StudyFolder, size: Size, arm: str, seed: int, runs: Path, keep: bool = False, changes: Sequence[str] = ()
) -> ArmResult:
    """One arm under one seed, from its bases on, measured."""
    what, places = study.arms(size)[arm], Places(runs, seed, study.path)
    for base in what.bases:  # shared: a smaller size is tried in another folder of runs, or from the real ones
        make_base(base, places, run_command, changes)
    folder, started = runs / f"{study.name}-{size}-{arm}-{seed}", time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    run = folder / "run"
    commands = run_commands(what.commands, run, places, what.bases, run_command, changes)

    result = ArmResult(
        arm=arm,
        seed=seed,
        seconds=round(time.monotonic() - started, 1),
        date=time.strftime("%Y-%m-%d"),
        machine={name: fact for name, fact in machine_facts().items() if name != "command"},
        # As somebody else would type them: without the folders of this machine.
        commands=[[_plain(word, runs, study.path) for word in command] for command in commands],
        values=study.study.measure(run),
    )
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return result


def run_command(words: Sequence[str]) -> int:
    """One `etude` command in a process of its own; its exit status."""
    return subprocess.run([sys.executable, "-m", "etude", *words], check=False).returncode


def _plain(word: str, runs: Path, folder: Path) -> str:
    return word.replace(str(runs), "runs/studies").replace(str(folder.resolve()), f"studies/{folder.name}")
