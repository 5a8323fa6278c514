"""Word vectors for the tool `search`, from what agents did and from Python, as a person trains them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from etude.cli.main import app
from etude.core.policy import Assistant, Call, ToolResult, User
from etude.harness.code_search.embedding import WordVectors
from etude.harness.tools.table import build_tools
from etude.harness.trajectory import MessageRecord, Trajectory
from etude.rollout.rollout import Scored
from etude.rollout.store import save_rollout
from etude.tasks.format.task import Task
from etude.tasks.grading.submission import Submission
from etude.tasks.grading.verdict import Grade

THINGS = ("user", "page", "tree", "file", "name", "date", "line", "word")
DOCUMENTED = "".join(
    f'def fetch_{t}(x):\n    """Load the {t} from where it lies."""\n    return x\n\n\n' for t in THINGS
)


def etude(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def rollout(thing: str, passed: bool) -> Scored:
    """An agent that is asked to erase something, reads the file that removes it, and edits that."""
    path = f"{thing if passed else 'wrong'}.py"
    entries = [
        MessageRecord(User(f"Erase the {thing} when nobody needs it.")),
        MessageRecord(Assistant(calls=(Call("read", {"path": path}),))),
        MessageRecord(ToolResult("read", f"def remove_{thing}(x):\n    pass" if passed else "def unrelated(x): pass")),
        MessageRecord(Assistant(calls=(Call("edit", {"path": path, "old": "pass", "new": "del x"}),))),
        MessageRecord(ToolResult("edit", "ok")),
    ]
    trajectory = Trajectory(entries=entries, tools=("read", "edit"), stop="final")
    return Scored(Task(thing, "Erase."), trajectory, Submission(), Grade(passed, "tests", ""), float(passed), {})


def test_vectors_are_trained_on_rollouts_that_passed_and_on_docstrings(tmp_path: Path) -> None:
    saved, code, out = tmp_path / "saved", tmp_path / "code", tmp_path / "new/vectors.safetensors"
    for thing in THINGS:
        save_rollout(rollout(thing, True), saved, f"{thing}-good")
        save_rollout(rollout(thing, False), saved, f"{thing}-bad")
    code.mkdir()
    (code / "load.py").write_text(DOCUMENTED)
    made = etude("model", "search-vectors", saved, code, "--out", out, "--steps", 40, "--json")
    assert made.exit_code == 0, made.stderr
    found = json.loads(made.stdout.splitlines()[-1])
    assert (found["from_rollouts"], found["from_docstrings"], found["pairs"]) == (8, 8, 16)
    vectors = WordVectors.load(out)
    assert {"eras", "remov", "load"} <= vectors.numbers.keys() and "unrelated" not in vectors.numbers
    near = vectors.embed({"eras": 1})
    assert near @ vectors.embed({"remov": 1}) > near @ vectors.embed({"fetch": 1})
    (tool,) = build_tools([{"use": "search", "vectors": str(out)}]).values()
    assert tool.name == "search"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n", "has nothing to train the search on: no function has a docstring"),
        ('def f():\n    """Say once what stands nowhere else."""\n', "1 pairs are too few"),
    ],
)
def test_what_nothing_can_be_learnt_from_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.py").write_text(text)
    refused = etude("model", "search-vectors", tmp_path, "--out", tmp_path / "v")
    assert refused.exit_code == 2 and said in refused.stderr


def test_rollouts_that_all_failed_are_refused(tmp_path: Path) -> None:
    save_rollout(rollout("page", False), tmp_path / "saved", "bad")
    refused = etude("model", "search-vectors", tmp_path / "saved", "--out", tmp_path / "v")
    assert refused.exit_code == 2 and "no rollout that passed read a file and edited it" in refused.stderr
