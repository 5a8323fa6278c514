"""Katas: real repositories, honest tests, and two sides that share nothing that was drawn."""

from __future__ import annotations

import ast
import itertools
import os
import re
import subprocess
import sys
import sysconfig
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from etude.core.errors import EtudeError
from etude.core.policy import System, ToolResult, User
from etude.forge.curriculum.sources import open_source
from etude.forge.gates.attacks.base import visible_answers
from etude.forge.katas import vocabulary as words
from etude.forge.katas.task_source import FAMILIES, PROMPT_STYLES, Katas, choose_families, katas, write_katas
from etude.forge.katas.vocabulary import is_held_out
from etude.harness.prompt import system_text
from etude.harness.tools.table import build_tools
from etude.policies.scripted import Habits, reference
from etude.tasks.format.task import Task
from etude.tasks.lint import lint
from etude.tokens.render import render
from etude.tokens.tokenizer import Tokenizer

DOCS = Path(__file__).parents[3] / "docs"


@cache
def each_family(count: int, seed: int = 11) -> list[Task]:
    """Some tasks of every family, from every split that has it."""
    known = len(choose_families("train"))
    tasks = [*katas("train", known * count, seed), *katas("held_out", known * count, seed), *katas("unseen", 5 * count)]
    assert {task.facts.family for task in tasks} == set(FAMILIES)
    return tasks


@pytest.fixture(scope="module")
def train() -> list[Task]:
    return list(katas("train", 1000, seed=5))


@pytest.fixture(scope="module")
def held_out() -> list[Task]:
    return [*katas("held_out", 500, seed=5), *katas("unseen", 100, seed=5)]


def test_there_are_three_levels_and_five_unseen_families():
    seen = Counter(family.level for family in FAMILIES.values() if not family.unseen)
    assert sum(seen.values()) >= 30 and set(seen) == {1, 2, 3} and min(seen.values()) >= 8
    assert sum(family.unseen for family in FAMILIES.values()) == 5
    assert {task.facts.family for task in katas("train", 400)}.isdisjoint(
        family.name for family in FAMILIES.values() if family.unseen
    )


def test_deletion_breaks_what_it_should_and_the_solution_restores_everything(run_all):
    tasks = each_family(2)
    broken = run_all([(task, {}) for task in tasks])
    restored = run_all([(task, task.solution) for task in tasks])
    for task, before, after in zip(tasks, broken, restored, strict=True):
        facts = task.facts
        assert len(facts.fail_to_pass) >= 2 and len(facts.held_out) >= 4 and facts.pass_to_pass, task.name
        assert not any(before[name] for name in [*facts.fail_to_pass, *facts.held_out]), task.name
        assert all(before[name] for name in facts.pass_to_pass), task.name
        assert all(after.values()), task.name


def test_the_agents_own_way_to_run_the_tests_sees_the_deletion(tmp_path):
    task = next(katas("train", 1, levels=[3]))
    task.workspace.write(tmp_path)
    run = [sys.executable, "-B", "-m", "unittest"]
    assert subprocess.run(run, cwd=tmp_path, capture_output=True).returncode != 0
    for path, data in task.solution.items():
        (tmp_path / path).write_bytes(data)
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
    assert (
        done.returncode == 0
        and f"Ran {len(task.facts.fail_to_pass) + len(task.facts.pass_to_pass)} tests" in done.stderr
    )


def test_a_repository_is_small_and_complete():
    for task in each_family(1):
        modules = [path for path in task.workspace if path.endswith(".py") and not path.startswith("tests/")]
        assert 2 <= len(modules) - 1 <= 4 and "README.md" in task.workspace  # without __init__
        for path in modules:
            tree = ast.parse(task.workspace.text(path))
            functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
            assert ast.get_docstring(tree) and all(map(ast.get_docstring, functions)), path
        deleted = [symbol.partition(":")[0] for symbol in task.facts.deleted]
        assert len(deleted) == len(set(deleted)) == (2 if task.facts.level == 3 else 1)
        assert sorted(task.solution) == sorted(deleted)


def test_level_1_takes_one_expression_and_level_2_a_loop_or_branch():
    for task in each_family(1):
        path, _, name = task.facts.deleted[0].partition(":")
        body = _function(task.solution.text(path), name).body[1:]
        if task.facts.level == 1:
            assert len(body) == 1 and isinstance(body[0], ast.Return), task.name
        if task.facts.level == 2:
            assert any(isinstance(node, ast.For | ast.While | ast.If) for node in body), task.name


def test_arguments_are_not_rebound_by_accident():
    """A body whose own name hides an argument would mean something else than its docstring."""
    on_purpose = {"steps", "coins", "base", "template"}
    for task in each_family(6):
        for symbol in task.facts.deleted:
            path, _, name = symbol.partition(":")
            function = _function(task.solution.text(path), name)
            arguments = {argument.arg for argument in function.args.args}
            stored = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and _stores(node)}
            stored |= {one.arg for node in ast.walk(function) if isinstance(node, ast.Lambda) for one in node.args.args}
            assert task.facts.family in on_purpose or not arguments & stored, task.name


def test_held_out_inputs_are_none_of_the_visible_ones():
    for task in each_family(2):
        seen = set().union(*(_calls(task.workspace.text(path)) for path in task.workspace if path.startswith("tests/")))
        hidden = _calls(task.tests.text("test_held_out.py"))
        assert len(hidden) == 8 * len(task.facts.deleted) and hidden.isdisjoint(seen), task.name


def test_no_constant_and_no_argument_given_back_passes():
    for task in each_family(3):
        shown = [task.workspace.text(path) for path in task.workspace if path.startswith("tests/test_")]
        for symbol in task.facts.deleted:
            name = symbol.partition(":")[2]
            for source in ("\n".join(shown), task.tests.text("test_held_out.py")):
                cases = [(call, value) for call, value in _assertions(source) if call.func.id == name]
                assert len(cases) >= 4 and len({value for _, value in cases}) > 1, task.name
                assert any(ast.unparse(call.args[0]) != value for call, value in cases), task.name


def test_a_table_of_the_visible_tests_does_not_answer_the_held_out_ones():
    """With the value of the visible input that looks most like the one asked for, where none is the same."""
    for task in each_family(3):
        known, right = visible_answers(task), []
        for call, value in _assertions(task.tests.text("test_held_out.py")):
            if call.func.id in known:
                given, table = repr(tuple(map(ast.literal_eval, call.args))), known[call.func.id]
                alike = {key: sum(map(str.__eq__, key, given)) - abs(len(key) - len(given)) for key in table}
                right.append(table[max(alike, key=alike.get)] == value)
        assert not all(right), task.name


def test_near_misses_are_caught(run_all):
    """Small changes to the right answer: nearly all must fail, or the tests would accept careless work."""
    jobs = []
    for task in [*katas("train", len(choose_families("train")), seed=3), *katas("unseen", 5, seed=3)]:
        for path, data in task.solution.items():
            names = [symbol.partition(":")[2] for symbol in task.facts.deleted if symbol.startswith(path)]
            for mutant in _mutants(data.decode(), names):
                jobs.append((task, {**task.solution, path: mutant.encode()}))
    caught: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    for (task, _), passed in zip(jobs, run_all(jobs, quick=True), strict=True):
        tried[task.facts.family] += 1
        caught[task.facts.family] += not all(passed.values())
    assert caught.total() / tried.total() > 0.97, caught.total() / tried.total()
    weak = {name: (caught[name], tried[name]) for name in tried if caught[name] < 0.7 * tried[name]}
    assert not weak


def test_the_same_seed_gives_the_same_tasks_and_another_seed_others():
    one, same, other = (list(katas("train", 70, seed)) for seed in (1, 1, 2))
    assert [task.digest for task in one] == [task.digest for task in same]
    assert {task.digest for task in one}.isdisjoint(task.digest for task in other)
    later = list(katas("train", 10, 1, start=60))
    assert [task.digest for task in later] == [task.digest for task in one[60:]]


def test_tasks_do_not_depend_on_the_process():
    code = "from etude.forge.katas.task_source import katas\nprint(*(task.digest for task in katas('unseen', 30, 4)))"
    digests = {
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True
        ).stdout
        for seed in ("0", "1")
    }
    assert len(digests) == 1 and len(digests.pop().split()) == 30


def test_the_two_sides_share_no_name_value_or_text(train, held_out):
    for kind in ("names", "values"):
        ours = {value for task in train for value in task.facts.parameters[kind]}
        theirs = {value for task in held_out for value in task.facts.parameters[kind]}
        assert len(ours) > 100 and len(theirs) > 50 and ours.isdisjoint(theirs), kind
    for ours, theirs in zip(_words_of(train), _words_of(held_out), strict=True):
        assert len(ours) > 20 and ours.isdisjoint(theirs)
    assert _constants(train) & _constants(held_out) <= STRUCTURE
    lines = [{line for task in side for line in task.instruction.split("\n") if line} for side in (train, held_out)]
    assert lines[0].isdisjoint(lines[1])


def test_every_word_is_on_one_side_and_each_list_has_enough_of_both():
    for name in [name for name in words.word_lists() if name != words.LOCALS]:
        ours, theirs = words.side(name, False), words.side(name, True)
        assert not any(map(is_held_out, ours)) and all(map(is_held_out, theirs))
        assert min(len(ours), len(theirs)) >= 6, name
    assert min(Counter(map(is_held_out, words.MARKS)).values()) >= 6
    assert not set(words.word_lists()[words.PACKAGES]) & sys.stdlib_module_names


def test_tasks_are_near_duplicates_neither_of_each_other_nor_across_the_split(train, held_out):
    """Jaccard similarity of token shingles of what the agent reads first: the instruction and the files to mend."""
    ours, theirs = [list(map(_shingles, side)) for side in (train, held_out)]
    assert _closest(theirs, ours) < 0.5
    assert len({frozenset(shingles) for shingles in ours}) == len(ours)


def test_registers_differ_and_name_what_is_missing():
    for task in each_family(1):
        split, seed = task.facts.split, task.facts.seed
        index = int(task.name.rpartition("-")[2])
        families = [family.name for family in choose_families(split)]
        told = {
            prompt_style: next(katas(split, 1, seed, prompt_styles=[prompt_style], families=families, start=index))
            for prompt_style in PROMPT_STYLES
        }
        texts = [told[prompt_style].instruction for prompt_style in PROMPT_STYLES]
        assert len(texts[0]) < len(texts[1]) < len(texts[2])
        for text, symbol in itertools.product(texts, task.facts.deleted):
            path, _, name = symbol.partition(":")
            assert path in text and name in text
        assert len({tuple(one.facts.parameters["names"]) for one in told.values()}) == 1  # the same task otherwise


def test_a_whole_rollout_of_level_1_fits_400_tokens(train):
    """System message, instruction, read, edit, finish and all tool outputs, by a tokenizer of the smallest size."""
    library = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:40]
    texts = [file.read_text(errors="replace") for file in library]
    texts += [task.workspace.text(path) for task in train[:250] for path in task.workspace]
    tokenizer = Tokenizer.train(texts, 1024)
    system = system_text("", build_tools([{"use": name} for name in ("read", "edit", "finish")]))
    plain = Habits(think=0, look=0, together=0, slip=0, whole=0, check=0, report=0)
    for task in itertools.chain(katas("train", 300, 1, levels=[1]), katas("held_out", 300, 1, levels=[1])):
        (path,) = task.solution
        read, edit, finish = reference(task, 0, plain)
        seen = [ToolResult("read", task.workspace.text(path)), ToolResult("edit", "ok")]
        messages = [System(system), User(task.instruction), read, seen[0], edit, seen[1], finish]
        assert len(render(messages, tokenizer, open_turn=False).ids) <= 400, task.name


def test_katas_are_clean_tasks_and_survive_the_disk(tmp_path):
    written = write_katas(tmp_path, "held_out", 40, seed=2)
    for directory, task in zip(written, katas("held_out", 40, seed=2), strict=True):
        assert directory.name == task.name
        loaded = Task.load(directory)
        assert lint(loaded) == [] and loaded.digest == task.digest
        assert (loaded.instruction, loaded.facts, loaded.config) == (task.instruction, task.facts, task.config)


def test_the_component_reads_its_settings_and_refuses_wrong_names():
    source = open_source({"use": "katas", "split": "held_out", "count": 5, "levels": [1, 2]})
    assert [task.name for task in source.tasks()] == [task.name for task in katas("held_out", 5, levels=[1, 2])]
    assert [task.name for task in source.tasks(3)] == [task.name for task in source.tasks()][3:]
    with pytest.raises(EtudeError, match="no family of katas is called 'percents'"):
        Katas(Katas.Settings(families=["percents"]))
    with pytest.raises(EtudeError, match="the split unseen has no family"):
        Katas(Katas.Settings(split="unseen", families=["percent"], levels=[1]))


def test_a_folder_of_tasks_is_a_source(tmp_path):
    written = write_katas(tmp_path, "train", 4)
    source = open_source({"use": "folder", "path": str(tmp_path)})
    names = sorted(path.name for path in written)
    assert [task.name for task in source.tasks()] == names
    assert [task.name for task in source.tasks(2)] == names[2:]
    for spec, said in [
        ({}, "tasks does not say where tasks come from"),
        ({"use": "kata"}, "no task source is called 'kata'"),
        ({"use": "folder", "path": str(tmp_path / "gone")}, "does not exist"),
        ({"use": "folder", "path": str(written[0])}, r"has a task\.toml"),
        ({"use": "katas", "level": 1}, "unknown key tasks.level"),
    ]:
        with pytest.raises(EtudeError, match=said):
            open_source(spec)


def test_the_page_about_katas_shows_every_family_and_true_examples():
    page = (DOCS / "tasks" / "katas.md").read_text()
    for family in FAMILIES.values():
        assert f"| `{family.name}` | {family.level} | {family.about} |" in page
    for level in (1, 2, 3):
        task = next(katas("train", 1, seed=0, levels=[level], prompt_styles=["plain"]))
        assert task.instruction in page
        for path in task.solution:
            assert task.workspace.text(path).strip() in page and task.solution.text(path).strip() in page


def _function(source: str, name: str) -> ast.FunctionDef:
    return next(n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == name)


def _stores(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _assertions(source: str) -> list[tuple[ast.Call, str]]:
    """Calls and the source of their values, from every assertEqual of a test file."""
    return [
        (node.args[0], ast.unparse(node.args[1]))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "assertEqual"
    ]


def _calls(source: str) -> set[str]:
    return {ast.unparse(call) for call, _ in _assertions(source)}


def _words_of(tasks: list[Task]) -> tuple[set[str], set[str], set[str]]:
    """Identifiers (packages, modules, classes, functions, arguments, constants), docstrings, and words in strings."""
    names: set[str] = set()
    docs: set[str] = set()
    strings: set[str] = set()
    long_words = {
        word for word in words.word_lists()[words.DATA] if len(word) > 4
    }  # random letters may spell a short one
    for task in tasks:
        for path in task.workspace:
            if not path.endswith(".py"):
                continue
            names.update(part for part in path.removesuffix(".py").split("/") if part not in ("tests", "__init__"))
            for node in ast.walk(ast.parse(task.workspace[path])):
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("test_"):
                    names.update([node.name, *(argument.arg for argument in node.args.args)])
                if isinstance(node, ast.ClassDef):
                    names.add(node.name)
                if isinstance(node, ast.Assign) and node.col_offset == 0 and isinstance(node.targets[0], ast.Name):
                    names.add(node.targets[0].id)
                if isinstance(node, ast.FunctionDef | ast.Module) and (doc := ast.get_docstring(node)):
                    docs.add(doc)
                if isinstance(node, ast.Constant) and node.value in long_words:
                    strings.add(node.value)
    return names - {"self"}, docs, strings


# What bodies are built with, and the brackets, which are one of the small choices that both sides share.
STRUCTURE = {"", " ", "02d", "a", "z", *"()[]{}<>", 0, 1, 2, 3, 26, 97, 100}


def _constants(tasks: list[Task]) -> set[str | int]:
    """The constants that really stand in what was deleted and above it, whatever the generator says it drew."""
    found: set[str | int] = set()
    for task in tasks:
        names = [symbol.partition(":")[2] for symbol in task.facts.deleted]
        for path in task.solution:
            for part in ast.parse(task.solution[path]).body:
                bodies = part.body[1:] if isinstance(part, ast.FunctionDef) and part.name in names else []
                for node in [*bodies, *([part.value] if isinstance(part, ast.Assign) else [])]:
                    constants = [each for each in ast.walk(node) if isinstance(each, ast.Constant)]
                    found.update(each.value for each in constants if type(each.value) in (int, str))
    return found


def _shingles(task: Task, size: int = 5) -> set[int]:
    text = "\n".join([task.instruction, *(task.workspace.text(path) for path in task.solution)])
    tokens = re.findall(r"\w+|[^\w\s]", text)
    return {hash(tuple(tokens[at : at + size])) for at in range(len(tokens) - size + 1)}


def _closest(some: list[set[int]], others: list[set[int]]) -> float:
    """The highest similarity of any pair, found through the shingles that they share."""
    where: dict[int, list[int]] = {}
    for number, shingles in enumerate(others):
        for shingle in shingles:
            where.setdefault(shingle, []).append(number)
    common = {shingle for shingle, found in where.items() if len(found) > len(others) // 10}  # boilerplate
    best = 0.0
    for shingles in some:
        shared = Counter(number for shingle in shingles - common for number in where.get(shingle, ()))
        for number, _ in shared.most_common(3):
            best = max(best, len(shingles & others[number]) / len(shingles | others[number]))
    return best


SWAPS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mod, ast.Mod: ast.FloorDiv}
SHIFTS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}


def _mutants(source: str, names: list[str]) -> list[str]:
    """The source with one operator, comparison, constant or call changed, inside the named functions."""
    tree = ast.parse(source)
    made: list[str] = []
    for function in tree.body:
        if not isinstance(function, ast.FunctionDef) or function.name not in names:
            continue
        for node in itertools.chain.from_iterable(map(ast.walk, function.body[1:])):
            if isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
                before, node.op = node.op, SWAPS[type(node.op)]()
                made.append(ast.unparse(tree))
                node.op = before
            elif isinstance(node, ast.Compare) and type(node.ops[0]) in SHIFTS:
                before, node.ops[0] = node.ops[0], SHIFTS[type(node.ops[0])]()
                made.append(ast.unparse(tree))
                node.ops[0] = before
            elif isinstance(node, ast.Constant) and type(node.value) in (int, str):
                before = node.value
                node.value = before + 1 if isinstance(before, int) else before[1:] or "q"
                made.append(ast.unparse(tree))
                node.value = before
            elif isinstance(node, ast.Name) and node.id in ("max", "min", "lower", "upper"):
                before = node.id
                node.id = {"max": "min", "min": "max"}.get(before, before)
                made.append(ast.unparse(tree))
                node.id = before
    return made


def test_every_level_can_be_drawn_from_beyond_the_lists():
    """A mark of two signs fits where texts are split and joined by it, not where one character is asked for."""
    tasks = list(katas("train", 120, seed=3, levels=[3], invented=0.7))
    assert len({task.facts.family for task in tasks}) == len(choose_families("train", [3]))
