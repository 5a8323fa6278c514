"""Refactorings: another name or place, everywhere, proven by running; and nothing that stays behind passes."""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from etude.core.policy import Assistant, Call
from etude.forge.environments.environment import Environment
from etude.forge.gates.attacks.refactoring import NAMES, refactoring_attacks
from etude.forge.install.checkout import Repo
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.origins.refactoring import origin
from etude.forge.origins.refactoring.candidate import Refactoring
from etude.forge.origins.refactoring.move_module import move
from etude.forge.origins.refactoring.name_uses import Uses
from etude.forge.origins.refactoring.propose import refactorings
from etude.forge.origins.refactoring.rename_parameter import parameters
from etude.forge.origins.refactoring.rename_symbol import renames
from etude.forge.origins.refactoring.replace_name import in_braces, respelled_code, respelled_text
from etude.forge.origins.refactoring.synonyms import is_distinct, is_pythons, other_name
from etude.forge.pipeline.journal import Journal
from etude.forge.pipeline.make import make_tasks
from etude.forge.steps.context import MakeRequest
from etude.policies.scripted import Scripted, scripted
from etude.rollout.rollout import Scored, build_setup, run_rollout
from etude.sandbox.hosts import StoringHost
from etude.tasks.check import check
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import Task
from etude.tasks.grade import grade
from etude.tasks.grading.submission import submission_of
from tests.forge.small_repositories import FILES, Build, write_tree

Sandboxes = tuple[asyncio.AbstractEventLoop, StoringHost]
PLAIN = {"PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture(scope="module")
def uses(shop_repository: PythonRepository) -> Uses:
    return Uses(shop_repository)


# Words


def test_another_name_keeps_the_spelling_and_is_no_word_of_python() -> None:
    def other(name: str) -> str | None:
        return other_name(name, lambda _: False, random.Random(1))

    assert other("parse_price") in ("read_price", "parse_amount")
    assert other("IncompleteParseError") in ("PartialParseError", "IncompleteParseFailure")
    assert other("_lexer") == "_scanner" and other("base64url") is None and other("quux") is None
    names = [other(name) for name in ("count_lines", "TokenList", "map_values", "sum_of_lines")]
    assert all(name is not None and name.isidentifier() and not is_pythons(name) for name in names)
    assert other_name("_lexer", lambda name: name == "_scanner", random.Random(1)) is None


def test_code_is_respelled_by_tokens_and_sentences_only_where_it_is_certain() -> None:
    source = (
        'def slug(x):\n    """Make a slug with `slug`.\n\n    >>> slug("A b")\n    """\n'
        '    return f"{slug(x)} slug"  # slug\n'
    )
    found = respelled_code(source.encode(), "slug", "handle", distinct=False)
    assert found is not None and found.decode() == (
        'def handle(x):\n    """Make a slug with `handle`.\n\n    >>> handle("A b")\n    """\n'
        '    return f"{handle(x)} slug"  # slug\n'
    )
    distinct = respelled_code(
        b'x = "see read_me"  # read_me, read_me2\r\nread_me()\r\n', "read_me", "skim", distinct=True
    )
    assert distinct == b'x = "see skim"  # skim, read_me2\r\nskim()\r\n'
    assert respelled_text("a slug, shop.slug, `slug()`", "slug", "handle", distinct=False) == (
        "a slug, shop.handle, `handle()`"
    )
    assert in_braces("{{a}} {a:{a}} a", lambda part: part.replace("a", "b")) == "{{a}} {b:{b}} a"
    assert respelled_code(b"def (", "a", "b", distinct=True) is None
    assert is_distinct("a_b") and is_distinct("TokenList") and not is_distinct("total") and not is_distinct("_total")


# What is proposed


def test_the_same_seed_proposes_the_same_each_once_and_with_all_kinds(shop_repository: PythonRepository) -> None:
    found = list(refactorings(shop_repository, random.Random(1)))
    assert {each.how for each in found} == {"rename", "parameter", "move"}
    assert len({each.key for each in found}) == len(found)
    assert [each.key for each in refactorings(shop_repository, random.Random(1))] == [each.key for each in found]
    assert all(not each.changes and each.edits for each in found)


def test_a_rename_leaves_the_old_name_in_no_file(uses: Uses) -> None:
    found = {each.old: each for each in renames(uses, random.Random(1))}
    assert {"parse_price", "show_price"} <= set(found)
    for old, each in found.items():
        assert each.new not in uses.words
        for path, data in uses.repository.files.items():
            text = (each.edits.get(path, data) or b"").decode()
            words = re.findall(r"\w+", re.sub(r'""".*?"""|#.*', "", text, flags=re.DOTALL))
            assert old not in words, (old, path)
    assert set(found["show_price"].edits) == {
        *("src/shop/__init__.py", "src/shop/money.py", "src/shop/cart.py", "tests/test_money.py")
    }


def test_names_with_another_meaning_keep_theirs(build_repository: Build) -> None:
    files = {
        "src/tiny/__init__.py": "",
        "src/tiny/a.py": (
            "import json\n\n\ndef loads(text):\n    return json.loads(text)\n\n\n"
            "def parse_it(text):\n    return text\n\n\ndef render_it(text):\n    return text\n\n\nclass Reader:\n"
            "    def append(self, x):\n        return x\n\n"
            "    def visit_name(self, x):\n        return getattr(self, 'visit_' + x)\n"
        ),
        "pyproject.toml": '[project.scripts]\ntiny = "tiny.a:parse_it"\n',
        "tests/test_a.py": (
            "from tiny.a import Reader, loads, parse_it, render_it\n\n\ndef test_all(render_it=1):\n"
            "    assert loads and parse_it and Reader().append(1) and Reader().visit_name\n"
        ),
    }
    found = Uses(build_repository(files, {"tests/test_a.py::test_all": set()}))
    assert {each.old for each in renames(found, random.Random(1))} <= {"Reader"}


def test_a_parameter_is_renamed_in_function_calls_overrides_and_documents(build_repository: Build) -> None:
    files = {
        "src/tiny/__init__.py": "",
        "src/tiny/a.py": (
            'class Base:\n    def lay(self, width, mark="."):\n        """Lay.\n\n        :param mark: A sign.\n'
            '        """\n        return f"{mark:>{width}}" + mark * width\n\n\nclass Heir(Base):\n'
            '    def lay(self, width, mark="."):\n'
            "        return [mark for _ in range(width)], super().lay(width, mark=mark)\n"
        ),
        "README.md": 'Use `Base().lay(3, mark="!")`; a mark is a sign.\n',
        "tests/test_a.py": 'from tiny.a import Heir\n\n\ndef test_lay():\n    assert Heir().lay(1, mark="x")\n',
    }
    found = list(parameters(Uses(build_repository(files, {"tests/test_a.py::test_lay": set()})), random.Random(1)))
    (each,) = [each for each in found if each.old == "mark"]
    code = (each.edits["src/tiny/a.py"] or b"").decode()
    assert each.new == "sign" and "mark" not in code and 'f"{sign:>{width}}" + sign * width' in code
    assert ":param sign: A sign." in code and "super().lay(width, sign=sign)" in code
    assert each.edits["README.md"] == b'Use `Base().lay(3, sign="!")`; a mark is a sign.\n'
    assert [piece.name for piece in each.pieces] == ["Base.lay", "Heir.lay"]


def run_python(tree: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Without our sandbox, runner or reporter: files on a disk, and the exit code."""
    env = PLAIN | {"PYTHONPATH": str(tree / "src")}
    return subprocess.run([sys.executable, "-B", *arguments], cwd=tree, env=env, capture_output=True)


def laid_out(files: dict[str, str], edits: dict[str, bytes | None], tree: Path) -> Path:
    write_tree(tree, files)
    for path, data in edits.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        if data is None:
            (tree / path).unlink()
        else:
            (tree / path).write_bytes(data)
    return tree


def test_all_imports_follow_a_module_wherever_it_goes(build_repository: Build, tmp_path: Path) -> None:
    files = {
        "src/tiny/__init__.py": "from .low.words import slug\nfrom .base import ROOT, \\\n    double\n",
        "src/tiny/base.py": "ROOT = 2\n\n\ndef double(x):\n    return ROOT * x\n",
        "src/tiny/low/__init__.py": "",
        "src/tiny/low/words.py": (
            "from .. import base\nfrom ..base import double\nfrom . import other\n\n\ndef slug(x):\n"
            "    return double(base.ROOT) + other.ONE + len(x)\n"
        ),
        "src/tiny/low/other.py": "import tiny.base\n\nONE = 1\n\n\ndef far():\n    return tiny.base.double(ONE)\n",
        "docs/index.md": "See `tiny.low.words` in src/tiny/low/words.py.\n",
        "tests/test_a.py": (
            "import importlib\nfrom tiny import base, slug\nfrom tiny.low import other, words as w\n"
            "import tiny.base as b\n\n\ndef test_all():\n"
            "    assert slug('a') == w.slug('a') == 6 and other.far() == 2\n"
            "    assert b is base is importlib.import_module('tiny.base')\n"
        ),
    }
    uses = Uses(build_repository(files, {"tests/test_a.py::test_all": set()}))
    places = {
        "src/tiny/low/words.py": ("src/tiny/words.py", "src/tiny/low/core/words.py"),
        "src/tiny/base.py": ("src/tiny/core/base.py",),
    }
    for old, targets in places.items():
        for new in targets:
            made = move(uses, old, new)
            assert made is not None, new
            tree = laid_out(files, dict(made.edits), tmp_path / new.replace("/", "-"))
            found = run_python(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")
            assert found.returncode == 0, found.stdout.decode()
            assert run_python(tree, "-c", f"import {made.dotted[0]}").returncode == 1
    made = move(uses, "src/tiny/low/words.py", "src/tiny/words.py")
    assert made is not None and made.edits["docs/index.md"] == b"See `tiny.words` in src/tiny/words.py.\n"
    assert move(uses, "src/tiny/base.py", "src/tiny/ground.py") is None  # somebody calls it base


# What becomes of it


@pytest.fixture(scope="module")
def make(sandboxes: Sandboxes, tiny_environment: Environment, shop_repo: Repo) -> Callable[..., Journal]:
    loop, host = sandboxes

    def run(out: Path, count: int, **wanted: Any) -> Journal:
        asked = MakeRequest(count, out, origins=("refactor",), **wanted)
        return loop.run_until_complete(make_tasks(shop_repo, tiny_environment, host, asked))

    return run


@pytest.fixture(scope="module")
def made(make: Callable[..., Journal], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Task]:
    out = tmp_path_factory.mktemp("refactor")
    tasks = [Task.load(out / name) for name in make(out, 3).tasks]
    return {task.facts.refactor.kind: task for task in tasks if task.facts.refactor is not None}


def test_each_kind_becomes_a_task_of_its_category(made: dict[str, Task]) -> None:
    categories = {kind: task.facts.category for kind, task in made.items()}
    assert categories == {"rename": "refactor", "parameter": "migration", "move": "project structure"}
    for kind, task in made.items():
        facts = task.facts
        assert facts.refactor is not None and facts.fail_to_pass and facts.held_out and 1 <= facts.level <= 5
        assert {path: data.decode() for path, data in task.workspace.items()} == FILES
        assert not set(facts.fail_to_pass) & set(facts.pass_to_pass) and not facts.deleted
        proof = {test.partition("::")[0] for test in facts.held_out}
        assert proof.isdisjoint(task.workspace) and proof.isdisjoint(task.solution) and proof <= set(task.tests)
        assert all(task.allows(path) for path in [*task.solution, *facts.removed])
        assert bool(facts.removed) == (kind == "move")
        for prompt_style in ("terse", "plain", "detailed"):
            said, old = task.worded(prompt_style).instruction, facts.refactor.old
            old = old if kind != "move" else old.removeprefix("src/").removesuffix(".py").replace("/", ".")
            assert old in said and facts.refactor.new in said
            assert prompt_style == "terse" or "tests of the repository" in said


def test_pytest_alone_says_the_same_of_the_reference_and_of_doing_nothing(
    made: dict[str, Task], tmp_path: Path
) -> None:
    for kind, task in made.items():
        asked = [*task.facts.fail_to_pass, *task.facts.held_out]
        for name, edits, code in (("done", task.reference, 0), ("null", {}, 1)):
            tests = {path: task.tests[path] for path in task.tests if path.startswith("tests/")}
            tree = laid_out(FILES, {**edits, **tests}, tmp_path / f"{kind}-{name}")
            found = run_python(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *asked)
            assert min(found.returncode, 1) == code, found.stdout.decode()


def test_the_script_for_harbor_does_what_the_reference_does(made: dict[str, Task], tmp_path: Path) -> None:
    task, app = made["move"], tmp_path / "app"
    task.workspace.write(app)
    task.files.under("solution").write(tmp_path / "solution")
    script = tmp_path / "solution/solve.sh"
    script.write_text(script.read_text().replace("/app", str(app)))
    subprocess.run(["sh", str(script)], check=True, env=PLAIN)
    assert Files.scan(app) == task.workspace.replaced(task.reference)


def test_the_reference_passes_and_is_honest_and_null_does_not_pass(made: dict[str, Task], sandboxes: Sandboxes) -> None:
    loop, host = sandboxes
    for task in made.values():
        for policy, passed in (("reference", True), ("null", False), ("stub", False)):
            outcome = loop.run_until_complete(run_rollout(task, scripted(policy, task), host, build_setup()))
            assert isinstance(outcome, Scored) and outcome.passed is passed, outcome
            assert outcome.ruling is not None and outcome.ruling.verdict == "clean", outcome.ruling


def test_the_checker_calls_it_valid(made: dict[str, Task], sandboxes: Sandboxes) -> None:
    loop, host = sandboxes
    report = loop.run_until_complete(check(made["move"], host))
    assert report.ok, report.problems


def test_whoever_has_both_is_rejected(made: dict[str, Task], sandboxes: Sandboxes) -> None:
    loop, host = sandboxes
    tried = []
    for task in made.values():
        for name, files in refactoring_attacks(task).items():
            found = loop.run_until_complete(grade(task, host, submission_of(task, files), quick=True))
            assert not found.passed, (task.name, name)
            tried.append(name)
    assert set(tried) <= set(NAMES) and len(tried) >= 13


def test_what_the_agent_does_to_the_visible_tests_changes_nothing(made: dict[str, Task], sandboxes: Sandboxes) -> None:
    loop, host = sandboxes
    task = made["rename"]
    tests = [path for path in task.solution if path in task.tests]
    gone = dict.fromkeys(tests)
    empty = dict.fromkeys(tests, b"def test():\n    pass\n")
    assert tests and loop.run_until_complete(grade(task, host, submission_of(task, {**task.reference, **gone}))).passed
    assert not loop.run_until_complete(grade(task, host, submission_of(task, {**empty}))).passed


def test_editing_other_tests_is_still_seen(made: dict[str, Task], sandboxes: Sandboxes) -> None:
    loop, host = sandboxes
    task = made["rename"]
    tests = [path for path in task.tests if path.startswith("tests/test_") and path in task.workspace]
    other = next(path for path in tests if path not in task.solution)
    turns = [
        Assistant(calls=(Call("write", {"path": other, "text": "def test():\n    pass\n"}),)),
        Assistant(calls=(Call("finish", {}),)),
    ]
    outcome = loop.run_until_complete(run_rollout(task, Scripted(turns), host, build_setup()))
    assert isinstance(outcome, Scored) and outcome.ruling is not None and outcome.ruling.verdict == "hack"


def test_the_same_seed_gives_the_same_task_and_a_resume_repeats_nothing(
    make: Callable[..., Journal], made: dict[str, Task], tmp_path: Path
) -> None:
    first = make(tmp_path, 1, workers=1)
    (name,) = first.tasks
    assert Task.load(tmp_path / name).digest in {task.digest for task in made.values()}
    assert make(tmp_path, 1, workers=1).tasks == [name]


def test_what_the_edit_breaks_is_refused_with_its_reason(
    sandboxes: Sandboxes, tiny_environment: Environment, tmp_path: Path
) -> None:
    """Nobody sees from the text that a name is put together as the program runs."""
    loop, host = sandboxes
    code = "def find_word(text):\n    return text\n\n\ndef ask(text):\n    return globals()['find' + '_word'](text)\n"
    test = "from shop.ask import ask, find_word\n\n\ndef test_ask():\n    assert ask('a') == find_word('a')\n"
    files = {**FILES, "src/shop/ask.py": code, "tests/test_ask.py": test}
    repo = Repo("ask", "1.0", "path", write_tree(tmp_path / "ask", files), None)
    original = origin.refactorings

    def one(repository: PythonRepository, rng: random.Random) -> Iterator[Refactoring]:
        return (each for each in original(repository, rng) if each.old == "find_word")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(origin, "refactorings", one)
        wanted = MakeRequest(1, tmp_path / "out", origins=("refactor",))
        journal = loop.run_until_complete(make_tasks(repo, tiny_environment, host, wanted))
    (entry,) = journal.entries
    assert entry.reason == "the edit breaks a test" and "test_ask" in entry.detail
