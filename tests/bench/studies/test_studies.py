"""Studies: arms are run where a result is missing, seed by seed; the page has verdict, table and a figure."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from etude.bench.run_data import read_run
from etude.bench.studies import run_arms as running
from etude.bench.studies.bases import Places, is_made, make_base, missing_bases, with_needs
from etude.bench.studies.many_arms import Bases, Job, collect, run_many, spread
from etude.bench.studies.measures import (
    base_ends,
    mean_lines,
    mixed_groups,
    paired_by_seed,
    paired_by_task,
    ratio_by_seed,
    ratio_by_task,
)
from etude.bench.studies.page import write_page
from etude.bench.studies.run_arms import run_arms
from etude.bench.studies.study import ArmResult, Base, StudyFolder, Verdict, open_study, study_names, write_result
from etude.cli.main import app
from etude.core.component import load_file
from etude.core.errors import EtudeError
from etude.core.run import Run

OWN = """
from etude.bench.report.charts import Line
from etude.bench.stats import mean_interval
from etude.bench.studies.study import Arm, Base, Figure, Study, Verdict

ROOT = Base("root", (("base", "root", "{seed}", "--run", "{run}"),), seeded=False)
TUNED = Base("tuned", (("base", "{root}/model", "{seed}", "--run", "{run}"),), needs=(ROOT,))

LATER = ("score", "run", "{seed}", "--run", "{run}", "{tuned}/model")

def measure(run):
    return {"score": float((run / "score").read_text())}

def conclude(results):
    gain = mean_interval([b.values["score"] - a.values["score"] for a, b in zip(results["old"], results["new"])])
    return Verdict("confirmed" if gain.low > 0 else "not confirmed", f"gain {gain.mean:.1f}")

def figures(results):
    lines = [Line(arm, [(each.seed, each.values["score"]) for each in some]) for arm, some in results.items()]
    return [Figure("Scores", lines, "seed")]

STUDY = Study(
    claim="New is better.", shown="A higher score.",
    arms={"cpu": {
        n: Arm(n, (("score", n, "{seed}", "--run", "{run}", "{tuned}/model"), *more), (TUNED,))
        for n, more in (("old", ()), ("new", (LATER,)))
    }},
    measure=measure, conclude=conclude, figures=figures, columns={"score": "score"}, seeds=2,
)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[StudyFolder, list[list[str]]]:
    """A study whose commands are played by a function that knows what each arm would come to."""
    (tmp_path / "studies" / "better").mkdir(parents=True)
    (tmp_path / "studies" / "better" / "study.py").write_text(OWN)
    typed: list[list[str]] = []

    def play(words: list[str]) -> int:
        typed.append(words)
        run = Path(words[words.index("--run") + 1])
        run.mkdir(parents=True, exist_ok=True)
        if words[0] == "score":
            assert (Path(words[-1]) / "weights").read_text() == words[2]
            (run / "score").write_text(str(int(words[2]) + (0 if words[1] == "old" else 10)))
        else:
            saved = run / "checkpoints" / "sft-0000007"
            saved.mkdir(parents=True)
            (saved / "weights").write_text(words[2])
            (saved / "optimiser.safetensors").write_text("large")
        return 0

    monkeypatch.setattr(running, "run_command", play)
    return open_study("better", tmp_path / "studies"), typed


def test_missing_arms_are_run_seed_by_seed_and_finished_ones_never_again(
    own: tuple[StudyFolder, list[list[str]]], tmp_path: Path
) -> None:
    study, typed = own
    assert study.verdict("cpu").verdict == "open"
    done = run_arms(study, "cpu", tmp_path / "runs", only=[("old", 0)])
    assert done == [("old", 0)] and study.missing("cpu") == [("new", 0), ("old", 1), ("new", 1)]
    run_arms(study, "cpu", tmp_path / "runs")
    # One base for all seeds, one for each, and every arm of a seed from the same; the new arm has a command more.
    assert [words[0] for words in typed] == [*("base", "base", "score", "score", "score"), "base", *["score"] * 3]
    assert sorted(path.name for path in (tmp_path / "runs" / "base-tuned-1").iterdir()) == ["base.json", "model"]
    assert not (tmp_path / "runs" / "base-tuned-1" / "model" / "optimiser.safetensors").exists()
    assert study.missing("cpu") == [] and run_arms(study, "cpu", tmp_path / "runs") == []
    kept = json.loads((study.path / "results" / "new-1.json").read_text())
    assert kept["values"] == {"score": 11.0} and kept["commands"][0][:2] == ["score", "new"]
    assert str(tmp_path) not in json.dumps(kept["commands"])  # nothing of this machine's folders
    assert not (tmp_path / "runs" / "better-cpu-new-1").exists()
    assert study.verdict("cpu").verdict == "confirmed"


def test_the_page_has_the_verdict_a_table_and_a_figure(
    own: tuple[StudyFolder, list[list[str]]], tmp_path: Path
) -> None:
    study, _ = own
    assert "open" in write_page(study, "cpu").read_text()
    run_arms(study, "cpu", tmp_path / "runs")
    page = write_page(study, "cpu").read_text()
    assert "**Verdict: confirmed.** gain 10.0" in page and "| new | 2 | 10.5" in page and "4 of 4 results" in page
    picture = ElementTree.fromstring((study.path / "figure-1.svg").read_text())  # well-formed, and of its own
    assert picture.tag.endswith("svg") and "prefers-color-scheme: dark" in (study.path / "figure-1.svg").read_text()


def test_a_command_that_fails_is_named(
    own: tuple[StudyFolder, list[list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "run_command", lambda words: 2)
    with pytest.raises(EtudeError, match=r"`etude base root 0 .* ended with status 2"):
        run_arms(own[0], "cpu", tmp_path / "runs")


def test_damaged_results_and_unknown_names_are_one_sentence(
    own: tuple[StudyFolder, list[list[str]]], tmp_path: Path
) -> None:
    study, _ = own
    file = study.result_file("cpu", "old", 0)
    file.parent.mkdir()
    file.write_text("{}")
    with pytest.raises(EtudeError, match="no result of a study"):
        study.results("cpu")
    with pytest.raises(EtudeError, match="there are better"):
        open_study("worse", tmp_path / "studies")
    with pytest.raises(EtudeError, match="no arms of size h200"):
        study.arms("h200")


def test_the_studies_of_the_project_are_listed() -> None:
    root = Path(__file__).parents[3] / "studies"
    found = CliRunner().invoke(app, ["study", "list", "--studies", str(root), "--json"])
    rows = json.loads(found.stdout.splitlines()[-1])["studies"]
    assert [row["name"] for row in rows] == study_names(root) and len(rows) >= 10
    for row in rows:
        assert row["claim"] and row["verdict"] and row["results"] <= row["of"]
    for path in root.glob("*/study.py"):
        assert len(path.read_text().splitlines()) <= 150


def test_a_base_is_made_again_when_its_commands_change(
    own: tuple[StudyFolder, list[list[str]]], tmp_path: Path
) -> None:
    study, _ = own
    (base,) = study.arms("cpu")["old"].bases
    places = Places(tmp_path / "runs", 0)
    make_base(base, places, running.run_command)
    assert is_made(base, places) and missing_bases((base,), places) == []
    other = replace(base, commands=(*base.commands, ("base", "more", "{seed}", "--run", "{run}")))
    assert not is_made(other, places) and missing_bases((other,), places) == [other]


def test_a_base_that_was_tried_smaller_is_not_taken_for_the_real_one(
    own: tuple[StudyFolder, list[list[str]]], tmp_path: Path
) -> None:
    (base,), places, smaller = own[0].arms("cpu")["old"].bases, Places(tmp_path / "runs", 0), ["rl.steps=3"]
    make_base(base, places, running.run_command, smaller)
    assert is_made(base, places, smaller) and not is_made(base, places) and missing_bases((base,), places)[-1] == base
    make_base(base, places, running.run_command)
    assert is_made(base, places) and is_made(base, places, smaller)  # a smaller size may be tried from the real one


def test_a_base_that_another_device_made_is_the_real_one(
    own: tuple[StudyFolder, list[list[str]]], tmp_path: Path
) -> None:
    (base,), places = own[0].arms("cpu")["old"].bases, Places(tmp_path / "runs", 0)
    make_base(base, places, running.run_command, ["run.device=cuda", "run.compute.compile=false"])
    assert is_made(base, places) and is_made(base, places, ["run.threads=1"])
    assert json.loads((places.base(base) / "base.json").read_text())["changes"][0] == "run.device=cuda"


def test_settings_are_added_before_a_commands_options_and_recorded(
    own: tuple[StudyFolder, list[list[str]]], tmp_path: Path
) -> None:
    study, typed = own
    run_arms(study, "cpu", tmp_path / "runs", only=[("new", 0)], changes=["rl.steps=3"])
    assert typed[-1][2:5] == ["0", "rl.steps=3", "--run"]
    assert "rl.steps=3" in study.results("cpu")["new"][0].commands[0]


def test_many_arms_run_side_by_side_and_what_fails_is_told(tmp_path: Path) -> None:
    (tmp_path / "studies" / "better").mkdir(parents=True)
    (tmp_path / "studies" / "better" / "study.py").write_text(OWN.replace('"score", n,', '"version", n,'))
    study, said = open_study("better", tmp_path / "studies"), list[str]()
    jobs = [Job(study, "old", 0), Job(study, "new", 0)]
    # No such command as `base`: its jobs are left out, and the log's end is told.
    found = run_many(jobs, tmp_path / "runs", tmp_path / "out", slots=2, seconds=3600.0, say=said.append)
    assert found.done == [] and sorted(found.failed) == ["better-new-0", "better-old-0"]
    assert any("No such command" in line for line in said) and any(
        "base root could not be made" in line for line in said
    )
    assert (tmp_path / "out" / "logs" / "base-root.log").is_file()
    # Nothing that would not end in time is begun.
    late = run_many(jobs, tmp_path / "runs", tmp_path / "out", slots=2, seconds=1.0, say=said.append)
    assert late.left == ["better-old-0", "better-new-0"] and late.failed == []


def test_every_study_has_a_place_among_the_priorities_and_every_job_comes_once() -> None:
    """A study that no line names would never be run beside others."""
    root = Path(__file__).parents[3] / "studies"
    many = load_file("run_many", root / "run_many.py")
    assert {line.split()[0].rstrip(":") for line in many.PRIORITY} == set(study_names(root))
    missing, again = ([job.name for job in many.jobs([], names)] for names in ([], ["async"]))
    studies = [open_study(name, root) for name in study_names(root)]
    assert set(missing) == {f"{study.name}-{arm}-{seed}" for study in studies for arm, seed in study.missing("cpu")}
    assert set(again) - set(missing) <= {f"async-{arm}-{seed}" for arm, seed in open_study("async", root).every("cpu")}
    assert len(set(again)) == len(again) >= 12  # three seeds of four arms, though they have results


def test_what_was_heard_of_just_before_the_end_keeps_nobody_running(
    own: tuple[StudyFolder, list[list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended in the middle of its books, it used to fail at the number of a process that was gone, and left the rest."""
    study, popen = own[0], subprocess.Popen
    begun: list[subprocess.Popen[bytes]] = []
    jobs = [Job(study, "old", 0), Job(study, "new", 0)]
    for base in with_needs(jobs[0].bases):
        make_base(base, Places(tmp_path / "runs", 0, study.path), running.run_command)

    def start(words: list[str], **how: Any) -> subprocess.Popen[bytes]:
        begun.append(popen([sys.executable, "-c", "" if "old" in words else "import time; time.sleep(600)"], **how))
        return begun[-1]

    def hear(text: str) -> None:
        said.append(text)
        if text == "better-new-0: begun":
            result = ArmResult("old", 0, 1.0, "", {}, [], {})
            write_result(tmp_path / "out" / "better" / "results" / "old-0.json", result)
            begun[0].wait(30)
            raise KeyboardInterrupt

    said: list[str] = []
    monkeypatch.setattr("etude.bench.studies.many_arms.subprocess.Popen", start)
    with pytest.raises(KeyboardInterrupt):
        run_many(jobs, tmp_path / "runs", tmp_path / "out", slots=2, seconds=3600.0, say=hear)
    assert [each.returncode for each in begun] == [0, -signal.SIGTERM]
    assert [text.partition(":")[0] for text in said if "at the deadline" in text] == ["better-new-0"]
    assert list(json.loads((tmp_path / "out" / "results.json").read_text())) == ["better/results/old-0.json"]


def test_the_line_that_said_it_has_ended_begins_again_with_what_is_left(tmp_path: Path) -> None:
    """Who began before was kept by its number: later lines, with other words too, only said that it has ended."""
    root = Path(__file__).parents[3]
    for name in ("studies/on_many_cores.sh", "benchmarks/install_wheels.sh", "bin/python"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((root / name).read_text() if name.endswith(".sh") else '#!/bin/sh\necho "$@"\n')
    (tmp_path / "bin" / "python").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    for words in (["--minutes", "1"], ["--only", "async"]):
        command = ["bash", "studies/on_many_cores.sh", "60", "out", *words]
        found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        assert found.stdout.endswith("ended\n") and " ".join(words) in found.stdout


def test_results_of_another_machine_are_taken_in(own: tuple[StudyFolder, list[list[str]]], tmp_path: Path) -> None:
    study, _ = own
    away = replace(study, results_in=tmp_path / "out" / "better")
    run_arms(away, "cpu", tmp_path / "runs")
    assert study.verdict("cpu").verdict == "open" and away.verdict("cpu").verdict == "confirmed"
    root = str(tmp_path / "studies")
    found = CliRunner().invoke(app, ["study", "add", str(collect(tmp_path / "out")), "--studies", root, "--json"])
    assert found.exit_code == 0 and len(json.loads(found.stdout.splitlines()[-1])["results"]) == 4
    assert study.verdict("cpu").verdict == "confirmed" and (study.path / "README.md").is_file()
    (tmp_path / "bad.json").write_text(json.dumps({"../x/results/a-0.json": json.loads(_one(study))}))
    with pytest.raises(EtudeError, match="belongs to no study"):
        spread(tmp_path / "bad.json", tmp_path / "studies")


def _one(study: StudyFolder) -> str:
    return study.result_file("cpu", "old", 0).read_text()


def test_differences_are_paired_by_task_and_by_seed() -> None:
    def result(arm: str, seed: int, tasks: dict[str, str], rate: float) -> ArmResult:
        return ArmResult(arm, seed, 1.0, "", {}, [], {"tasks": tasks, "rate": rate, "curve": [[5, rate], [10, rate]]})

    old = [result("old", 0, {"a": "1/4", "b": "0/4"}, 0.5), result("old", 1, {"a": "2/4"}, 0.25)]
    new = [result("new", 1, {"a": "4/4", "c": "4/4"}, 0.5), result("new", 0, {"a": "2/4", "b": "1/4"}, 1.0)]
    gain = paired_by_task(old, new)
    assert gain is not None and gain.mean == pytest.approx(((0.25 + 0.5) / 2 + 0.25) / 2) and gain.low < gain.mean
    twice = [[replace(each, seed=seed) for seed in (0, 1, 2)] for each in (old[0], new[1])]
    assert paired_by_task(*twice) == paired_by_task(old[:1], new[1:])  # the same tasks again are no more tasks
    assert paired_by_task(old[:1], new[:1]) is None  # no seed in common
    assert paired_by_seed(old, new, "rate").mean == pytest.approx((0.5 + 0.25) / 2)
    assert ratio_by_seed(old, new, "rate") == pytest.approx((2.0, 2.0, 2.0))
    counted = [[result("x", seed, {}, 0.0) for seed in (0, 1)] for _ in range(2)]
    for some, tokens in zip(counted, ((100.0, 50.0, 80.0), (200.0, 100.0, 80.0)), strict=True):
        some[0].values["tokens"], some[1].values["tokens"] = {"a": tokens[0], "b": tokens[1]}, {"b": tokens[2]}
    found = ratio_by_task(*counted, "tokens")  # a: 2; b: 2 and 1, its geometric mean
    assert found is not None and found.mean == pytest.approx(math.sqrt(2 * math.sqrt(2))) and found.low < 2**0.5
    assert ratio_by_task(counted[0][:1], counted[1][1:], "tokens") is None
    (line,) = mean_lines({"old": old}, "curve")
    assert line.points == [(5.0, 0.375), (10.0, 0.375)]


def test_what_a_small_context_costs_is_read_from_one_checkpoint() -> None:
    """RL may lift a small context to where a long one was before it, and still lose as much by being small.

    Nor is the claim shown by summaries as long as prompted ones, or by none: it says that they take fewer tokens.
    """
    conclude = open_study("self-summary", Path(__file__).parents[3] / "studies").study.conclude

    def verdict(demonstrated: int, tokens: float = 12.0) -> str:
        passed = {"long": 10, "none": 0, "prompted": 0, "demonstrated": demonstrated, "trained": 10}
        results = {}
        for arm, count in passed.items():
            tasks = {str(number): f"{2 * (number < count)}/2" for number in range(20)}
            values: dict[str, Any] = {"tasks": tasks, "pass_rate": count / 20, "tokens": 100.0}
            if arm not in ("long", "none") and tokens:
                values["summary_tokens"] = 48.0 if arm == "prompted" else tokens
            results[arm] = [ArmResult(arm, seed, 1.0, "", {}, [], values) for seed in (0, 1)]
        return conclude(results).verdict

    assert verdict(9) == "confirmed" and verdict(2) == "not confirmed"
    assert verdict(9, tokens=48.0) == verdict(9, tokens=0.0) == "not confirmed"


def test_a_penalty_that_shortens_by_giving_up_is_not_confirmed() -> None:
    """Fewer tokens on easy tasks that pass less often used to count as the same work done in fewer."""
    conclude = open_study("effort", Path(__file__).parents[3] / "studies").study.conclude

    def verdict(easy_passes: int) -> str:
        results = {}
        for arm, easy, hard in (("none", 100.0, 300.0), ("linear", 60.0, 150.0), ("non-linear", 60.0, 280.0)):
            passed = easy_passes if arm == "non-linear" else 16
            values: dict[str, Any] = {"easy_tokens": easy, "hard_tokens": hard, "easy_passes": passed / 20}
            values |= {"hard_passes": 0.5, "hard": {"a": "1/2", "b": "1/2"}}
            values["easy"] = {str(number): f"{2 * (number < passed)}/2" for number in range(20)}
            values |= {
                f"{level}_task_tokens": {"a": mean - 5, "b": mean + 5}
                for level, mean in (("easy", easy), ("hard", hard))
            }
            results[arm] = [ArmResult(arm, seed, 1.0, "", {}, [], values) for seed in (0, 1)]
        return conclude(results).verdict

    assert verdict(16) == "confirmed" and verdict(4) == "not confirmed"


def test_the_study_of_staleness_names_where_both_bounds_hold() -> None:
    """One of three levels is enough for the verdict, and whoever reads it has to see which, and how narrowly."""
    conclude = open_study("async", Path(__file__).parents[3] / "studies").study.conclude
    seconds = {"0": (3.0, 3.3), "1": (3.1, 3.2), "4": (2.9, 3.4), "8": (2.86, 3.14)}
    results = {}
    for lag, each in seconds.items():
        values = {"pass_rate": 0.5, "curve": [[60.0, 0.5]], "tasks": {"a": "2/4", "b": f"{2 + (lag == '8')}/4"}}
        rows = [values | {"seconds_a_step": one} for one in each]
        results[lag] = [ArmResult(lag, seed, 1.0, "", {}, [], row) for seed, row in enumerate(rows)]
    found = conclude(results)
    assert found.verdict == "confirmed"
    assert "Both bounds hold at staleness 8 (the interval ends at 0.9" in found.sentence
    assert conclude({**results, "8": results["1"]}).sentence.count("Both bounds") == 0


@pytest.mark.parametrize(("passed", "said"), [(0.0, "no rollout passes"), (0.5, "pass rate +0.0 points")])
def test_a_study_in_which_nothing_passes_has_no_interval_of_zeros(passed: float, said: str) -> None:
    conclude = open_study("router-replay", Path(__file__).parents[3] / "studies").study.conclude
    values = {"p50": 1e-4, "p99": 1.0, "k3": 0.1, "same_p99": 1e-3, "pass_rate": passed}
    results = {
        arm: [ArmResult(arm, seed, 1.0, "", {}, [], values) for seed in (0, 1)] for arm in ("none", "replay", "filter")
    }
    assert conclude(results).sentence.count(said) == 2


def test_fine_tuning_has_the_seconds_of_reinforcement_learning_by_the_clock_of_its_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Computed from the speed of one epoch they came out as 181 in place of 240 beside other jobs."""
    study = open_study("rl-against-sft", Path(__file__).parents[3] / "studies")
    for end in ("-long", "", "-300", "-6000"):
        rl, sft = (study.arms("cpu")[f"{kind}{end}"].commands[0] for kind in ("rl", "sft"))
        seconds = [word for word in rl if word.startswith("rl.seconds=")]
        assert [word.replace("sft.", "rl.") for word in sft if word.startswith("sft.seconds=")] == seconds != []
    monkeypatch.setitem(study.study.measure.__globals__, "bench_values", lambda *_: {})
    for stage, spent in (("rl", 240.3), ("sft", 240.1)):
        with Run.open(tmp_path / stage, {"run": {"seed": 0}}) as run:
            run.finish(stage, steps=7, seconds=spent)
        assert study.study.measure(run.path) == {"train_seconds": spent, "steps": 7}


def test_a_base_keeps_what_its_stages_logged_last(tmp_path: Path) -> None:
    """The run of a base is thrown away: the loss that a study compares would be lost with it."""

    def play(words: Sequence[str]) -> int:
        with Run.open(Path(words[-1]), {"run": {"seed": 0}}) as run:
            for step, loss in ((0, 3.0), (5, 2.0)):
                run.log("pretrain", step, held_out_loss=loss)
            with run.checkpoint("pretrain", 5):
                pass
            run.log("pretrain", 5, seconds=1.0)
        return 0

    base = Base("little", (("pretrain", "--run", "{run}"),), "pretrain")
    make_base(base, Places(tmp_path, 3), play)
    ends = base_ends(tmp_path / "study-cpu-arm-3" / "run", "little")
    assert ends["pretrain"]["held_out_loss"] == 2.0 and ends["pretrain"]["seconds"] == 1.0
    facts = tmp_path / "base-little-3" / "base.json"
    facts.write_text(json.dumps({"seconds": 1.0}))  # as it was made before it kept them
    with pytest.raises(EtudeError, match="delete it and run the study again"):
        base_ends(tmp_path / "study-cpu-arm-3" / "run", "little")


def test_groups_with_passes_and_failures_are_counted_by_family(tmp_path: Path) -> None:
    with Run.open(tmp_path / "run", {"run": {"seed": 0}}) as run:
        for step, task, passed in ((1, "pad-train-0-000001", 2), (2, "line-train-0-000002", 8), (11, "pad-0-1", 0)):
            run.log("rl.task", step, task=task, passed=passed, rollouts=8)
    data = read_run(tmp_path / "run")
    assert mixed_groups(data) == [[10, 0.5], [20, 0.0]] and mixed_groups(data, ("pad",)) == [[10, 1.0], [20, 0.0]]


def test_bases_may_be_made_beside_the_arms_on_another_device(
    own: tuple[StudyFolder, list[list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One arm at a time, bases in a place of their own, with settings of the machine and no others."""
    study, _ = own
    begun: list[tuple[str, bool]] = []

    class Done:
        returncode, pid = 0, 0

        def __init__(self, words: list[str], **_: object) -> None:
            self.words = words
            job = next(job for job in jobs if words[words.index("--arm") + 1] == job.arm)
            name = words[words.index("--base") + 1] if "--base" in words else ""
            begun.append((name or job.arm, "run.device=cuda" in words))
            if name:
                base = next(each for each in with_needs(job.bases) if each.name == name)
                make_base(base, Places(tmp_path / "runs", job.seed), running.run_command)
            else:
                file = tmp_path / "out" / "better" / "results" / f"{job.arm}-{job.seed}.json"
                write_result(file, ArmResult(job.arm, job.seed, 1.0, "", {}, [], {"score": 1.0}))

        def poll(self) -> int:
            return 0

    jobs = [Job(study, "old", 0), Job(study, "new", 0)]
    monkeypatch.setattr("etude.bench.studies.many_arms.subprocess.Popen", Done)
    monkeypatch.setattr("etude.bench.studies.many_arms._cores", lambda _: set())
    found = run_many(
        jobs, tmp_path / "runs", tmp_path / "out", slots=1, seconds=3600.0, bases=Bases(2, ["run.device=cuda"])
    )
    assert found.done == ["better-old-0", "better-new-0"]
    assert begun == [("root", True), ("tuned", True), ("old", False), ("new", False)]
    with pytest.raises(EtudeError, match="would make another base"):
        Bases(1, ["sft.epochs=1"])


def test_one_base_is_made_by_its_name(own: tuple[StudyFolder, list[list[str]]], tmp_path: Path) -> None:
    words = ["study", "run", "better", "--runs", str(tmp_path / "runs"), "--studies", str(tmp_path / "studies")]
    found = CliRunner().invoke(app, [*words, "--arm", "old", "--seed", "1", "--base", "root"])
    assert found.exit_code == 0, found.output
    assert sorted(path.name for path in (tmp_path / "runs").glob("base-*") if path.is_dir()) == ["base-root"]
    refused = CliRunner().invoke(app, [*words, "--arm", "old", "--seed", "1", "--base", "other"])
    assert refused.exit_code != 0 and "root, tuned" in refused.output
    every = CliRunner().invoke(app, [*words, "--arm", "old", "--base", "root"])
    assert every.exit_code != 0 and "give --arm and --seed" in every.output


def test_hidden_families_say_why_they_are_not_learnt() -> None:
    conclude = open_study("hidden-families", Path(__file__).parents[3] / "studies").study.conclude

    def verdict(after: int) -> Verdict:
        results = {arm: list[ArmResult]() for arm in ("before", "rl", "soft", "near", "sft")}
        for arm, passed in (("before", 0), ("rl", after), ("soft", 0), ("near", 0)):
            tasks = {str(number): f"{4 * (number < passed)}/4" for number in range(20)}
            values = {"tasks": tasks, "pass_rate": passed / 20, "best": 0.25, "unseen_best": 0.0}
            values |= {"signal_first": 0.0, "signal_last": 0.5}
            results[arm] = [ArmResult(arm, seed, 1.0, "", {}, [], values) for seed in (0, 1)]
        results["sft"] = [replace(results["near"][0], arm="sft")]
        return conclude(results)

    assert "sft: 0.0% (one seed), " in verdict(10).sentence  # it used to have an interval from 0 to 100%
    assert verdict(10).verdict == "confirmed" and verdict(1).verdict == "not confirmed"
    assert "25.0% of tasks in 16 tries" in verdict(0).sentence and "failures 0% in the first" in verdict(0).sentence


def test_pretraining_is_judged_by_ranks_and_by_the_largest_amount() -> None:
    conclude = open_study("pretraining-helps-rl", Path(__file__).parents[3] / "studies").study.conclude

    def verdict(rewards: tuple[float, float, float]) -> Verdict:
        results = {}
        for arm, loss, reward in zip(("small", "medium", "large"), (2.0, 1.5, 1.0), rewards, strict=True):
            values = {"loss": loss, "reward": reward, "tasks": {"a": "1/2", "b": "0/2"}}
            some = [values | {"loss": loss + seed / 100, "reward": reward + seed / 100} for seed in (0, 1, 2)]
            results[arm] = [ArmResult(arm, seed, 1.0, "", {}, [], each) for seed, each in enumerate(some)]
        return conclude(results)

    assert verdict((0.1, 0.2, 0.3)).verdict == "confirmed" and verdict((0.3, 0.2, 0.1)).verdict == "not confirmed"
    found = verdict((0.1, 0.2, 0.3)).sentence
    assert "nats a doubling of the steps" in found and "reward is -0.80 (-0.96 to" in found
