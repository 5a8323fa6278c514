"""Two tasks as one: whose file is taken, what is asked of the tests, and which pairs do not fit."""

from __future__ import annotations

from etude.forge.curriculum.composite_tasks import combine, pairs
from etude.tasks.format.config import Facts, Installed
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import Task

WHOLE = {"shop/a.py": b"def a(): return 1\n", "shop/b.py": b"def b(): return 2\n", "shop/__init__.py": b""}
TESTS = {"tests/test_a.py": b"whole a\n", "tests/test_b.py": b"whole b\n"}
HERE = Installed(digest="ab" * 32)


def task(letter: str, *, gone: str | None = None, digest: Installed = HERE) -> Task:
    """One function and half of its tests are missing."""
    path = gone or f"shop/{letter}.py"
    seen = {**WHOLE, **TESTS, path: b"# deleted for " + letter.encode(), f"tests/test_{letter}.py": b"half\n"}
    facts = Facts(
        level=2,
        fail_to_pass=[f"tests/test_{letter}.py::seen"],
        held_out=[f"tests/test_{letter}.py::hidden"],
        pass_to_pass=["tests/test_a.py::seen", "tests/test_b.py::seen", "tests/test_c.py::x"],
        deleted=[f"{path}:{letter}"],
        allowed_paths=["shop/*.py"],
        environment=digest,
    )
    files = {
        **{f"environment/workspace/{path}": data for path, data in seen.items()},
        **{f"tests/{path}": data for path, data in TESTS.items()},
        f"solution/files/{path}": WHOLE[path],
        "instructions/terse.md": f"fix {letter}".encode(),
    }
    return Task(f"shop-{letter}", f"Write {letter} again.\n", facts=facts, files=Files(files))


def test_both_pieces_are_missing_and_every_test_of_both_counts() -> None:
    found = combine(task("a"), task("b"))
    assert found is not None
    assert found.workspace["shop/a.py"] == b"# deleted for a" and found.workspace["shop/b.py"] == b"# deleted for b"
    assert found.workspace["tests/test_a.py"] == found.workspace["tests/test_b.py"] == b"half\n"
    assert dict(found.solution) == {path: WHOLE[path] for path in ("shop/a.py", "shop/b.py")}
    assert found.facts.fail_to_pass == ["tests/test_a.py::seen", "tests/test_b.py::seen"]
    assert found.facts.held_out == ["tests/test_a.py::hidden", "tests/test_b.py::hidden"]
    assert found.facts.pass_to_pass == ["tests/test_c.py::x"]
    assert found.facts.level == 3
    assert "Write a again." in found.instruction and "Write b again." in found.instruction
    assert "fix a" in found.files.text("instructions/terse.md") and "fix b" in found.files.text("instructions/terse.md")


def test_a_file_that_both_changed_makes_the_pair_unfit() -> None:
    assert combine(task("a"), task("b", gone="shop/a.py")) is None


def test_pairs_share_a_repository_and_nothing_that_was_deleted() -> None:
    a, b, elsewhere = task("a"), task("b"), task("b", digest=Installed(digest="cd" * 32))
    assert list(pairs([a, b, elsewhere])) == [(a, b)]
    assert not list(pairs([a, a]))
