"""The ladder: mistakes that can be undone, draws that are even, sources and scripts, without a sandbox."""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path

import pytest

from etude.core.errors import EtudeError
from etude.core.policy import Assistant
from etude.forge.curriculum.sources import open_source
from etude.forge.ladder.check import wrong_edits
from etude.forge.ladder.command import make_ladders, package_name
from etude.forge.ladder.instruct import DETAILED, PLAIN, TERSE, instruct
from etude.forge.ladder.invert_baseline import inverted
from etude.forge.ladder.propose import steps
from etude.forge.ladder.rungs import RUNGS, search_bits, text_bits
from etude.forge.languages.python.one_token import OPERATORS, local_names, one_token_mistakes
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.source import Module
from etude.policies.ladder_script import lines_of
from etude.policies.scripted import Habits, edits_between, reference
from etude.tasks.format.config import Config, Facts
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import Task

SOURCE = b'''def chosen(items, start, most=3):
    """Some items."""
    found = []
    for item in items[start:]:
        if item.strip() and item not in found:
            found.append(item)
        if not item:
            continue
        if len(found) >= most - 1:
            return max(found, items)
    return all(found) or start is None
'''


def test_each_mistake_changes_one_place_and_the_right_token_is_among_its_alternatives() -> None:
    module = Module("a.py", SOURCE)
    function = module.definitions["chosen"]
    found = one_token_mistakes(module, function)
    assert {each.kind for each in found} == set(OPERATORS)
    for mistake in found:
        broken = Module.read("a.py", module.edited([mistake.edit]))
        assert broken is not None and broken.data != SOURCE
        again = one_token_mistakes(broken, broken.definitions["chosen"])
        assert SOURCE in {broken.edited([each.edit]) for each in again}, (mistake.kind, broken.text)
    assert search_bits(module, function) == pytest.approx(math.log2(len(found)))


def test_locals_are_those_of_the_function_itself() -> None:
    source = b"def f(self, a, *b, c=1, **d):\n    e = [x for x in a]\n    return e, (lambda y: y)\n"
    assert local_names(Module("a.py", source).definitions["f"]) == ["a", "c", "b", "d", "e"]


def test_operators_and_functions_take_turns(shop_repository: PythonRepository) -> None:
    found = list(steps(shop_repository, RUNGS[1], random.Random(0)))
    assert len({step.key for step in found}) == len(found)
    kinds = Counter(step.how for step in found[:6])
    assert max(kinds.values()) <= 2  # in a round each operator is asked once
    assert [step.key for step in found] == [step.key for step in steps(shop_repository, RUNGS[1], random.Random(0))]
    everywhere = list(steps(shop_repository, RUNGS[2], random.Random(0)))
    assert len({step.bits for step in everywhere}) == 1
    assert everywhere[0].bits >= max(step.bits for step in found)


def test_bodies_are_as_long_as_the_rung_says(shop_repository: PythonRepository) -> None:
    for rung, lines in ((3, {1}), (4, {2, 3})):
        found = list(steps(shop_repository, RUNGS[rung], random.Random(0)))
        assert found and {step.pieces[0].lines for step in found} <= lines
        assert all(b"raise NotImplementedError" in (step.changes[step.pieces[0].path] or b"") for step in found)
        assert all(step.bits > 0 for step in found)
    module = Module("a.py", SOURCE)
    assert text_bits(module, "return found") < text_bits(module, "return unheard")


def test_wrong_edits_are_neither_the_bug_nor_the_fix(shop_repository: PythonRepository) -> None:
    for rung in (1, 3):
        step = next(iter(steps(shop_repository, RUNGS[rung], random.Random(1))))
        path = step.pieces[0].path
        texts = [files[path] for files in wrong_edits(shop_repository, step, random.Random(0))]
        assert len(set(texts)) == 2
        assert shop_repository.files[path] not in texts and step.changes[path] not in texts


def test_instructions_name_what_their_rung_names(shop_repository: PythonRepository) -> None:
    for number, rung in RUNGS.items():
        step = next(iter(steps(shop_repository, rung, random.Random(2))))
        texts = instruct(step, "shop", "tests/test_a.py::test_b[1]", random.Random(0)).by_style
        for text in texts.values():
            assert ("tests/test_a.py::test_b" in text) == rung.names_test and "[1]" not in text
            assert (step.pieces[0].path in text) == rung.names_place
            assert len(text) < 500
        assert number in TERSE and number in PLAIN and number in DETAILED


def task_of(repository: PythonRepository, rung: int, seed: int = 0, split: str = "train") -> Task:
    step = next(iter(steps(repository, RUNGS[rung], random.Random(seed))))
    path = step.pieces[0].path
    test = sorted(step.expected)[0]
    files = {f"environment/workspace/{name}": data for name, data in repository.files.items()}
    files |= {f"environment/workspace/{path}": step.changes[path] or b""}
    files |= {f"solution/files/{path}": repository.files[path]}
    facts = Facts(
        category="debugging" if rung < 3 else "feature iteration",
        rung=rung,
        bits=step.bits,
        split=split,  # type: ignore[arg-type]
        suite="pytest",
        fail_to_pass=[test],
        allowed_paths=["src/shop/*.py"],
        deleted=[step.pieces[0].id],
    )
    words = instruct(step, "shop", test, random.Random(seed))
    texts = {f"instructions/{name}.md": text.encode() for name, text in words.by_style.items()}
    return Task(f"shop-{rung}-{seed}-{split}", words.plain, Config(), facts, Files(files | texts))


def applied(task: Task, turns: list[Assistant]) -> dict[str, str]:
    """The files that the edits of a script leave; each old text has to be there once."""
    files: dict[str, str] = {}
    for call in (call for turn in turns for call in turn.calls if call.name == "edit"):
        path = call.arguments["path"]
        text = files.get(path, task.workspace.text(path))
        assert text.count(call.arguments["old"]) == 1
        files[path] = text.replace(call.arguments["old"], call.arguments["new"])
    return files


@pytest.mark.parametrize("rung", list(RUNGS))
def test_the_reference_looks_runs_edits_runs_and_finishes(shop_repository: PythonRepository, rung: int) -> None:
    task = task_of(shop_repository, rung)
    turns = reference(task, 0, Habits(test_first=1.0, test_after=1.0))
    names = [call.name for turn in turns for call in turn.calls]
    middle = ["run", "grep", "read"] if rung == 2 else ["run", "read"]
    assert names[: len(middle)] == middle
    assert names[len(middle)] == "edit" and names[-2:] == ["run", "finish"]
    assert applied(task, turns) == {path: task.solution.text(path) for path in task.solution}
    short = reference(task, 0, Habits().at_effort("low"))
    assert [call.name for turn in short for call in turn.calls].count("run") == (1 if rung == 2 else 0)
    path, _, name = task.facts.deleted[0].partition(":")
    read = next(call.arguments for turn in turns for call in turn.calls if call.name == "read")
    assert (int(read["start"]), int(read["end"])) == lines_of(task.workspace.text(path), name)
    assert edits_between(task.workspace.text(path), task.solution.text(path))


@pytest.mark.parametrize("rung", list(RUNGS))
def test_the_reference_gives_text_for_every_argument(shop_repository: PythonRepository, rung: int) -> None:
    """Dialects write text alone: line numbers that were numbers once made 595 of 600 demonstrations void."""
    for seed in range(4):
        task = task_of(shop_repository, rung, seed)
        for habits in (Habits(think=1.0, test_first=1.0, test_after=1.0, report=1.0), Habits()):
            calls = [call for turn in reference(task, seed, habits) for call in turn.calls]
            assert {"read", "edit", "finish"} <= {call.name for call in calls}
            for call in calls:
                assert all(type(value) is str for value in call.arguments.values()), call


def test_the_inverting_script_edits_one_function_that_is_pointed_at(shop_repository: PythonRepository) -> None:
    for rung in (1, 2):
        task = task_of(shop_repository, rung)
        files = inverted(task)
        assert all(files[path] != task.workspace[path] for path in files)
        assert len(files) <= 1
    assert inverted(task_of(shop_repository, 1))


def test_tasks_of_a_folder_do_not_lie_in_that_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`out / name` with the path of a repository as the name would be the repository."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "other/shop.git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "other")
    assert [package_name(each) for each in (str(tmp_path / "shop"), "../shop", "shop.git")] == ["shop"] * 3
    assert [package_name(each) for each in ("toolz", "toolz==1.0.0")] == ["toolz"] * 2
    for packages, held_out, said in ((["toolz"], ["boltons"], "are not among"), (["toolz"] * 2, [], "the same name")):
        with pytest.raises(EtudeError, match=said):
            make_ladders(packages, tmp_path, [1], 1, held_out, 0, 1, tmp_path / "store", None)


def test_the_source_takes_rungs_and_sides(tmp_path: Path, shop_repository: PythonRepository) -> None:
    for rung, split in ((1, "train"), (2, "train"), (1, "held_out")):
        task = task_of(shop_repository, rung, split=split)
        task.save(tmp_path / "shop" / task.name)
    source = open_source({"use": "ladder", "tasks": str(tmp_path), "rungs": [1, 2]}, "rl.tasks")
    stream = source.tasks()
    names = [next(stream).name for _ in range(4)]
    assert names[:2] == names[2:] and set(names) == {"shop-1-0-train", "shop-2-0-train"}
    assert next(source.tasks(1)).name == names[1]
    easy = open_source(
        {"use": "ladder", "tasks": str(tmp_path), "rungs": [1, 2], "easiest_first": True, "again": False}
    )
    assert [task.facts.rung for task in easy.tasks()] == [1, 2]
    apart = {"use": "ladder", "tasks": str(tmp_path), "split": "held_out", "styles": ["terse"], "again": False}
    (held,) = open_source(apart, "bench.tasks").tasks()
    assert held.facts.split == "held_out" and held.facts.prompt_style == "terse"
    with pytest.raises(EtudeError, match="held-out tasks, which training refuses"):
        open_source(apart, "demos.tasks")
    katas = {"use": "katas", "levels": [1], "split": "train"}
    once = {"use": "ladder", "tasks": str(tmp_path), "again": False, "weight": 9}
    mixed = open_source({"use": "mixture", "sources": [katas, once]}, "demos.tasks").tasks()
    rungs = [next(mixed).facts.rung for _ in range(8)]  # katas go on when the ladder has no more
    assert rungs.count(1) == 1 and rungs.count(0) == 7
    for where in ("demos.tasks", "rl.tasks"):
        with pytest.raises(EtudeError, match=r"sources\[1\] asks for held-out tasks, which training refuses"):
            open_source({"use": "mixture", "sources": [katas, apart]}, where)
    folder = {"use": "mixture", "sources": [{"use": "folder", "path": str(tmp_path)}]}
    assert {task.facts.split for task in open_source(folder, "rl.tasks").tasks()} == {"train"}
    assert {task.facts.split for task in open_source(folder, "bench.tasks").tasks()} == {"train", "held_out"}
    with pytest.raises(EtudeError, match="has no ladder task of rungs"):
        open_source({"use": "ladder", "tasks": str(tmp_path), "rungs": [4]})
