"""Tasks that are nearly the same are named, those that only look related are not, and a corpus that saw one is."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from etude.core.settings import CorpusSettings, TokensSettings
from etude.corpus.build import build_corpus
from etude.corpus.sources.table import open_sources
from etude.forge.gates.near_duplicates import KnownTasks, compare_tasks, task_texts
from etude.tasks.format.config import Config, Facts
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import SOLUTION, TESTS, WORKSPACE, Task
from redteam.leaks.leak_probes import deleted_of

BODIES = {
    "area": "    total = 0\n    for left, right in zip(points, points[1:] + points[:1]):\n"
    "        total += left[0] * right[1] - left[1] * right[0]\n    return abs(total) / 2\n",
    "hull": "    ordered = sorted(set(points))\n    lower = []\n    for point in ordered:\n"
    "        while len(lower) > 1 and turn(lower[-2], lower[-1], point) <= 0:\n            lower.pop()\n"
    "        lower.append(point)\n    return lower\n",
    "centre": "    count = len(points)\n"
    "    return sum(x for x, _ in points) / count, sum(y for _, y in points) / count\n",
}


def module(missing: str, bodies: dict[str, str] = BODIES) -> str:
    stub = "    raise NotImplementedError\n"
    return "\n\n".join(f"def {name}(points):\n{stub if name == missing else body}" for name, body in bodies.items())


def task(name: str, missing: str, split: str = "train", words: str = "", bodies: dict[str, str] = BODIES) -> Task:
    path = "shapes/plane.py"
    files = {
        f"{WORKSPACE}/{path}": module(missing, bodies).encode(),
        f"{SOLUTION}/{path}": module("", bodies).encode(),
        f"{TESTS}/test_plane.py": f"from shapes.plane import {missing}\n\n\ndef test_{missing}():\n    pass\n".encode(),
    }
    facts = Facts.model_validate(
        {"deleted": [f"{path}:{missing}"], "fail_to_pass": [f"test_plane.py::test_{missing}"], "split": split}
    )
    text = words or f"`{missing}` in {path} is gone. Write it again so that the tests of {missing} pass."
    return Task(name, text, Config(), facts, Files(files))


def test_two_wordings_of_one_deletion_are_alike() -> None:
    tasks = [task("first", "area"), task("second", "hull"), task("third", "area", words="pls fix area thx")]
    (twin,) = compare_tasks(tasks).near_duplicates
    assert (twin.task, twin.like, twin.by, twin.similarity, twin.crosses) == ("third", "first", "change", 1.0, False)


def test_deletions_from_one_file_are_not_alike() -> None:
    assert compare_tasks([task(name, name) for name in BODIES]).near_duplicates == []


def test_a_small_change_does_not_make_another_task() -> None:
    longer = BODIES | {"hull": BODIES["hull"] + "    # the lower half\n"}
    assert compare_tasks([task("a", "hull"), task("b", "hull", bodies=longer)]).near_duplicates[0].similarity > 0.9


def test_a_pair_across_training_and_evaluation_is_told_apart() -> None:
    report = compare_tasks([task("train", "area"), task("test", "area", split="held_out")])
    assert [twin.crosses for twin in report.near_duplicates] == [True]
    against = compare_tasks([task("train", "area")], against=[task("bench", "area")])
    assert [(twin.task, twin.like, twin.crosses) for twin in against.near_duplicates] == [("train", "bench", True)]
    assert against.to_json()["drop"] == ["train"] and not against.to_json()["ok"]


def test_tasks_of_a_benchmark_are_never_to_be_dropped() -> None:
    report = compare_tasks([task("mine", "hull")], against=[task("one", "area"), task("two", "area")])
    assert report.near_duplicates == []


def test_the_gates_are_told_the_twin_of_a_new_task() -> None:
    known = KnownTasks()
    assert known.near_duplicate(task("first", "area")) is None
    known.add(task("first", "area"))
    known.add(task("second", "hull"))
    assert known.near_duplicate(task("again", "area", words="bring area back")) == "first"
    assert known.near_duplicate(task("third", "centre")) is None
    assert len(known) == 2


def test_what_a_task_deleted_is_read_from_its_solution() -> None:
    (piece,) = deleted_of(task("a", "hull"))
    assert (piece.path, piece.name) == ("shapes/plane.py", "hull")
    assert piece.source == f"def hull(points):\n{BODIES['hull']}"
    unnamed = task("a", "hull")
    unnamed = dataclasses.replace(unnamed, facts=unnamed.facts.model_copy(update={"deleted": []}))
    (piece,) = deleted_of(unnamed)
    assert piece.name == "" and piece.source == BODIES["hull"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small corpus in which one file holds a deleted function, another only calls it."""
    root = tmp_path_factory.mktemp("corpus")
    code = root / "code"
    code.mkdir()
    (code / "copy.py").write_text("import math\n\n\n" + module(""))
    (code / "caller.py").write_text("from shapes.plane import area, hull\n\n\nprint(area(POINTS), hull(POINTS))\n" * 8)
    for number in range(8):
        lines = [f"def f{number}_{i}(x):\n    return x * {number * 37 + i * 11} + len(str(x))\n" for i in range(20)]
        (code / f"module{number}.py").write_text("\n".join(lines))
    settings = CorpusSettings(sources=[{"use": "folder", "path": str(code)}], near_threshold=1.0, held_out=0.0)
    build_corpus(open_sources(settings.sources), settings, TokensSettings(vocab_size=400), root / "run" / "corpus", 0)
    return root / "run"


def test_a_corpus_that_has_seen_a_task_is_named(corpus: Path) -> None:
    report = compare_tasks([task("a", "hull", split="held_out")], corpus=corpus)
    assert report.documents >= 10
    assert report.contaminated == len(report.seen) == 1
    (seen,) = report.seen
    assert (seen.task, seen.part, seen.split) == ("a", "solution", "held_out")
    assert "while len lower" in seen.words


def test_tests_that_the_workspace_shows_are_no_secret() -> None:
    shown = task("a", "hull")
    tests = shown.files[f"{TESTS}/test_plane.py"]
    assert "tests" in dict(task_texts(shown))
    shown = dataclasses.replace(shown, files=shown.files.replaced({f"{WORKSPACE}/tests/test_plane.py": tests}))
    assert "tests" not in dict(task_texts(shown))


def test_the_command_answers_in_json(etude: Any, tmp_path: Path, corpus: Path) -> None:
    for name, missing in (("first", "area"), ("second", "area"), ("third", "centre")):
        task(name, missing).save(tmp_path / "tasks" / name)
    done = etude("tasks", "alike", tmp_path / "tasks", "--corpus", corpus, "--json")
    found = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 1 and not found["ok"], done.stderr
    assert found["tasks"] == 3 and len(found["drop"]) == 1 and found["contaminated"] == 1
    none = etude("tasks", "alike", tmp_path / "nowhere", "--json")
    assert none.returncode == 2 and "no task" in json.loads(none.stdout.splitlines()[-1])["error"]
