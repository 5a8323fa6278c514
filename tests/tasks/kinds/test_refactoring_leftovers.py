"""What a refactoring left behind is read from files alone: each cheat of the gates is seen, other right work is not."""

from __future__ import annotations

import ast

import pytest

from etude.forge.gates.attacks.refactoring import refactoring_attacks
from etude.tasks.format.config import Config, Facts, Installed, Refactor, RefactorKind
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import SOLUTION, WORKSPACE, Task
from etude.tasks.kinds.refactoring_leftovers import left_behind
from redteam.grader.refactoring_forgers import refactoring_forgers

PARTS = '''"""Parts of a text."""


def pieces(text, limit=3):
    """The first words; `words` in earlier versions."""
    found = text.split()
    return found[:limit]


class Reader:
    def read(self, text):
        return pieces(text, limit=2)
'''
USER = """from .parts import Reader, pieces


def first(text):
    return pieces(text, limit=1) + Reader().read(text)
"""
TEST = "from shop.user import first\n\n\ndef test_first():\n    assert first('a b')\n"


def task_of(kind: RefactorKind, symbol: str, old: str, new: str, solution: dict[str, str | None]) -> Task:
    files = {
        f"{WORKSPACE}/shop/__init__.py": "",
        f"{WORKSPACE}/shop/parts.py": PARTS,
        f"{WORKSPACE}/shop/user.py": USER,
        f"{WORKSPACE}/shop/template.py": "{% no Python %}",
        f"{WORKSPACE}/tests/test_user.py": TEST,
        **{f"{SOLUTION}/{path}": text for path, text in solution.items() if text is not None},
    }
    facts = Facts(
        suite="pytest",
        refactor=Refactor(kind=kind, symbol=symbol, old=old, new=new),
        removed=[path for path, text in solution.items() if text is None],
        allowed_paths=["shop/**"],
        environment=Installed(digest="0" * 64, paths=[""]),
    )
    return Task("words", "Rename.", Config(), facts, Files({path: text.encode() for path, text in files.items()}))


RENAMED = {"shop/parts.py": PARTS.replace("pieces", "words"), "shop/user.py": USER.replace("pieces", "words")}
TASKS = {
    "rename": task_of("rename", "shop/parts.py:pieces", "pieces", "words", {**RENAMED}),
    "method": task_of(
        "rename",
        "shop/parts.py:Reader.read",
        "read",
        "take",
        {
            "shop/parts.py": PARTS.replace("def read", "def take"),
            "shop/user.py": USER.replace(".read(", ".take("),
        },
    ),
    "parameter": task_of(
        "parameter",
        "shop/parts.py:pieces",
        "limit",
        "most",
        {"shop/parts.py": PARTS.replace("limit", "most"), "shop/user.py": USER.replace("limit", "most")},
    ),
    "move": task_of(
        "move",
        "",
        "shop/parts.py",
        "shop/inside/pieces.py",
        {
            "shop/parts.py": None,
            "shop/inside/__init__.py": "",
            "shop/inside/pieces.py": PARTS,
            "shop/user.py": USER.replace(".parts", ".inside.pieces"),
        },
    ),
}


def left(task: Task, files: dict[str, bytes | None]) -> list[str]:
    assert task.facts.refactor is not None
    return left_behind(task, task.facts.refactor, files)


@pytest.mark.parametrize("name", TASKS)
def test_the_reference_leaves_nothing_and_doing_nothing_leaves_it_all(name: str) -> None:
    assert left(TASKS[name], TASKS[name].reference) == [] and left(TASKS[name], {})


@pytest.mark.parametrize("name", TASKS)
def test_what_the_gates_call_cheats_is_seen_whatever_their_process_says(name: str) -> None:
    attacks = refactoring_attacks(TASKS[name]) | {
        f"{name}, silenced": files for name, files in refactoring_forgers(TASKS[name]).items()
    }
    assert len(attacks) >= 6
    for attack, files in attacks.items():
        assert left(TASKS[name], files), attack


def test_a_body_that_still_reads_the_old_parameter_is_seen() -> None:
    text = PARTS.replace("limit=3", "most=3").replace("limit=2", "most=2")
    done = {**TASKS["parameter"].reference, "shop/parts.py": text.encode()}
    assert left(TASKS["parameter"], done) == ["pieces uses limit, which is no parameter of it any more"]


def test_other_right_work_leaves_nothing() -> None:
    kept = (
        PARTS.replace("limit=3", "most=3").replace("limit=2", "most=2").replace("found =", "limit = most\n    found =")
    )
    assert left(TASKS["parameter"], {**TASKS["parameter"].reference, "shop/parts.py": kept.encode()}) == []
    said = RENAMED["shop/parts.py"].replace("in earlier versions", "and `pieces` in earlier versions  # pieces")
    more = {"shop/parts.py": said.encode(), "shop/more.py": b"from .parts import words\n\n\nmany = words\n"}
    assert left(TASKS["rename"], {**TASKS["rename"].reference, **more}) == []
    moved = PARTS.replace("found[:limit]", "list(found[:limit])") + "\n\nMORE = 1\n"
    assert left(TASKS["move"], {**TASKS["move"].reference, "shop/inside/pieces.py": moved.encode()}) == []


def test_tests_and_what_is_no_python_may_say_what_they_like() -> None:
    more: dict[str, bytes | None] = {"shop/tests/test_old.py": b"pieces = 1\n", "tests/test_user.py": b"pieces = 2\n"}
    assert left(TASKS["rename"], {**TASKS["rename"].reference, **more}) == []
    broken = left(TASKS["rename"], {**TASKS["rename"].reference, "shop/user.py": b"def ("})
    assert broken == ["shop/user.py cannot be read"]


def test_more_code_than_a_refactoring_needs_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tree of a file of 4 MB takes two gigabytes, in the process that grades all rollouts."""
    task = TASKS["rename"]
    right = dict(task.reference)
    assert left_behind(task, _asked(task), right) == []
    many = {f"shop/more{number}.py": b"a = (" + b"1," * 10_000 + b")\n" for number in range(8)}
    for added in ({"shop/more.py": b"a = (" + b"1," * (2 << 20) + b")\n"}, many):
        with monkeypatch.context() as patched:
            patched.setattr(ast, "parse", None)  # nothing is parsed
            assert "adds" in left_behind(task, _asked(task), {**right, **added})[0]


def test_files_that_are_as_the_reference_has_them_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    task = TASKS["rename"]
    parsed: list[str] = []
    whole = ast.parse
    monkeypatch.setattr(ast, "parse", lambda text, *given: parsed.append(text) or whole(text, *given))
    left_behind(task, _asked(task), dict(task.reference))
    assert all("no Python" not in text and "def first" not in text for text in parsed)


def _asked(task: Task) -> Refactor:
    assert task.facts.refactor is not None
    return task.facts.refactor
