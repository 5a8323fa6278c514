"""Made tasks are for training or held out, by what they have in common; training refuses what is held out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from etude.core.errors import EtudeError
from etude.forge.curriculum.sources import open_source, refuse_held_out
from etude.forge.pipeline.split import SplitDraw, sides, split_tasks, units, write_side
from etude.tasks.format.config import Answer, Config, Documentation, Facts, Refactor
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import SOLUTION, WORKSPACE, Task

WORDS = [f"word{number}" for number in range(19)]


def made(name: str, *symbols: str, package: str = "shop") -> Task:
    """A task that puts these functions back, each with a body of its own."""
    files: dict[str, bytes] = {}
    for symbol in symbols:
        path, _, function = symbol.partition(":")
        at = sum(map(ord, symbol)) % len(WORDS)
        body = " + ".join(f"{word}_{function}" for word in WORDS[at:] + WORDS[:at])
        files[f"{WORKSPACE}/{path}"] = b""
        files[f"{SOLUTION}/{path}"] = files.get(f"{SOLUTION}/{path}", b"") + f"def {function}():\n    {body}\n".encode()
    facts = Facts(deleted=list(symbols), allowed_paths=["**/*.py"], family=f"{package}: deletion, bodies")
    return Task(name, f"Bring back {' and '.join(symbols)}.", Config(), facts, Files(files))


def test_tasks_about_one_file_are_on_one_side() -> None:
    draw = SplitDraw()
    for number in range(40):
        task = made(f"t{number}", f"{number % 12}.py:f{number}")
        side = draw.side(task)
        assert side is not None
        draw.add(task, side)
    held = {unit for unit, side in draw._sides.items() if side == "held_out"}
    assert 0.15 * 40 <= draw.counts["held_out"] <= 0.4 * 40 and 0 < len(held) < 12
    assert draw.side(made("new", f"{min(held)}:g")) == "held_out"
    train = min(set(draw._sides) - held)
    assert draw.side(made("both", f"{min(held)}:g", f"{train}:g")) is None


def test_a_repository_of_one_file_is_divided_by_functions_and_classes() -> None:
    task = made("a", "one.py:Parser.feed", "one.py:parse")
    assert units(task, "symbol") == {"one.py:Parser", "one.py:parse"} and units(task, "file") == {"one.py"}
    draw = SplitDraw("symbol", share=0.5)
    for name in ("a", "b", "c", "d"):
        one = made(name, f"one.py:{name}.x")
        side = draw.side(one)
        assert side is not None
        draw.add(one, side)
    assert draw.counts == {"train": 2, "held_out": 2}


def test_a_task_that_deletes_nothing_is_about_what_its_kind_says() -> None:
    """Also one whose files say nothing of it: a question changes none."""
    plain = made("plain", "one.py:f")
    asked = {
        "answer": Answer(accepted=["two.py:Parser.feed"]),
        "documentation": Documentation(functions=["two.py:parse", "two.py:Parser.feed"]),
        "refactor": Refactor(kind="rename", symbol="two.py:parse", old="parse", new="read"),
    }
    found = {}
    for name, table in asked.items():
        task = replace(plain, facts=Facts(family="shop: x", **{name: table}))
        found[name] = units(task, "symbol")
        assert "two.py" in units(task, "file")
    assert found["answer"] == {"two.py:Parser"} and found["refactor"] == {"two.py:parse"}
    assert found["documentation"] == {"two.py:parse", "two.py:Parser"}


def test_alike_solutions_are_on_one_side_whatever_their_file() -> None:
    draw = SplitDraw(share=0.5)
    draw.add(made("a", "a.py:f"), "train")
    copied = made("b", "a.py:f")
    moved = Task("b", "", Config(), copied.facts.model_copy(update={"deleted": ["z.py:f"]}), copied.files)
    assert draw.side(made("c", "c.py:other")) == "held_out" and draw.side(moved) == "train"


def saved(root: Path, *tasks: Task) -> list[Path]:
    for task in tasks:
        task.save(root / task.name)
    return [root / task.name for task in tasks]


def test_several_packages_are_divided_whole(tmp_path: Path) -> None:
    tasks = [made(f"{package}-{n}", f"{n}.py:f", package=package) for package in "abcde" for n in range(4)]
    folders = saved(tmp_path, *tasks)
    assert split_tasks(folders) == {"train": 16, "held_out": 4}
    loaded = [Task.load(folder) for folder in folders]
    assert sides(loaded) == {"train": 16, "held_out": 4}
    assert len({task.name[0] for task in loaded if task.facts.split == "held_out"}) == 1
    assert {task.name[0] for task in loaded if task.facts.split == "train"}.__len__() == 4


def test_one_package_is_divided_by_file(tmp_path: Path) -> None:
    folders = saved(tmp_path, *(made(f"t{n}", f"{n // 2}.py:f{n}") for n in range(20)))
    assert split_tasks(folders, 0.2) == {"train": 16, "held_out": 4}
    of_file: dict[str, set[str | None]] = {}
    for folder in folders:
        task = Task.load(folder)
        of_file.setdefault(min(units(task, "file")), set()).add(task.facts.split)
    assert all(len(found) == 1 for found in of_file.values())


def test_training_leaves_held_out_tasks_out(tmp_path: Path) -> None:
    first, second = saved(tmp_path, made("a", "a.py:f"), made("b", "b.py:g"))
    write_side(second, Task.load(second), "held_out")
    spec = {"use": "folder", "path": str(tmp_path)}
    assert [task.name for task in open_source(spec, "rl.tasks").tasks()] == ["a"]
    assert [task.name for task in open_source(spec, "bench.tasks").tasks()] == ["a", "b"]
    held = spec | {"split": "held_out"}
    assert [task.name for task in open_source(held, "bench.tasks").tasks()] == ["b"]
    with pytest.raises(EtudeError, match="training refuses"):
        open_source(held, "rl.tasks")
    with pytest.raises(EtudeError, match="training refuses"):
        refuse_held_out(Task.load(second))
    write_side(first, Task.load(first), "held_out")
    with pytest.raises(EtudeError, match="none of the 2 tasks"):
        open_source({"use": "curriculum", "path": str(tmp_path)}, "demos.tasks")
