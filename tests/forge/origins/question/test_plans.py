"""Plans: bugs in several functions at once, and the question which of them have to be changed, all and no others."""

from __future__ import annotations

import asyncio
import itertools
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from etude.forge.environments.environment import Environment
from etude.forge.install.checkout import Repo
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.python.source import Module
from etude.forge.origins.question import origin
from etude.forge.origins.question.candidate import Question
from etude.forge.origins.question.propose_plan import could_be_blamed, plans
from etude.forge.pipeline.journal import Journal
from etude.forge.pipeline.make import make_tasks
from etude.forge.steps.choose_functions import Links
from etude.forge.steps.context import MakeRequest
from etude.policies.scripted import scripted
from etude.rollout.rollout import Scored, build_setup, run_rollout
from etude.sandbox.hosts import StoringHost
from etude.tasks.check import check
from etude.tasks.format.task import Task
from etude.tasks.kinds.answer import MARK, grade_answer
from tests.forge.small_repositories import FILES, Build, write_tree

PLAIN = {"PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
pytestmark = pytest.mark.usefixtures("workspace_alone_is_audited")
Sandboxes = tuple[asyncio.AbstractEventLoop, StoringHost]
PATH = "src/shop/parcel.py"

PARCEL = """def weigh(grams):
    if grams < 0:
        raise ValueError(grams)
    return grams // 10 + 1


def zone(code):
    if code > 90:
        return 3
    return 1 if code < 50 else 2


def price(grams, code):
    return weigh(grams) * zone(code)


def tag(name, code):
    return f"{name.upper()} {zone(code)}"


def label(name, grams, code):
    return f"{tag(name, code)} {price(grams, code)}"
"""
TESTS = """import pytest

from shop.parcel import label, price, tag, weigh, zone


def test_weigh():
    assert [weigh(grams) for grams in (0, 9, 10, 25)] == [1, 1, 2, 3]


def test_no_weight():
    with pytest.raises(ValueError):
        weigh(-1)


def test_zone():
    assert [zone(code) for code in (0, 49, 50, 90, 91)] == [1, 1, 2, 2, 3]


def test_tags():
    assert [tag("a", 49), tag("b", 50), tag("c", 90), tag("d", 91)] == ["A 1", "B 2", "C 2", "D 3"]


def test_prices():
    assert [price(0, 0), price(9, 49), price(10, 50), price(25, 91)] == [1, 1, 4, 9]


def test_dear():
    assert price(0, 91) + price(9, 90) + price(10, 49) + price(0, 50) == 9


def test_label():
    assert label("a", 10, 50) + label("b", 0, 49) + label("c", 9, 91) == "A 2 4B 1 1C 3 3"


def test_other_label():
    assert label("x", 25, 90) + label("y", 10, 0) == "X 2 6Y 1 2"


def test_label_of_nothing():
    assert label("", 0, 91) + label("", 0, 50) == " 3 3 2 2"
"""


@pytest.fixture(scope="module", autouse=True)
def _plans_alone() -> Iterator[None]:
    """The other kinds have tests of their own."""

    def only(repository: PythonRepository, rng: random.Random) -> Iterator[Question]:
        return plans(repository, Links(repository), rng)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(origin, "questions", only)
        yield


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Repo:
    files = {**FILES, PATH: PARCEL, "tests/test_parcel.py": TESTS}
    return Repo("parcels", "1.0", "path", write_tree(tmp_path_factory.mktemp("parcels"), files), None)


@pytest.fixture(scope="module")
def made(
    sandboxes: Sandboxes, tiny_environment: Environment, repo: Repo, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Journal, list[Task]]:
    loop, host = sandboxes
    out = tmp_path_factory.mktemp("plans")
    journal = loop.run_until_complete(
        make_tasks(repo, tiny_environment, host, MakeRequest(2, out, origins=("question",), workers=1))
    )
    return journal, [Task.load(out / name) for name in journal.tasks]


def test_a_plan_names_functions_and_its_instruction_only_what_fails(made: tuple[Journal, list[Task]]) -> None:
    journal, tasks = made
    assert tasks, journal.rejected
    for task in tasks:
        facts = task.facts
        assert facts.answer is not None and facts.answer.kind == "names" and 2 <= len(facts.answer.accepted) <= 3
        assert facts.category == "planning" and facts.family.endswith("plan") and not facts.allowed_paths
        for prompt_style in ("terse", "plain", "detailed"):
            text = task.worded(prompt_style).instruction
            assert "ANSWER:" in text and "- `tests/test_" in text
            assert not any(name in text for name in facts.answer.accepted)


def test_pytest_alone_fails_until_every_function_of_the_plan_is_as_it_was(
    made: tuple[Journal, list[Task]], repo: Repo, tmp_path: Path
) -> None:
    """Without our sandbox or runner: the right source of some functions put back into the file, and an exit code."""
    task = made[1][0]
    assert task.facts.answer is not None
    accepted = task.facts.answer.accepted
    for count in range(len(accepted) + 1):
        for mended in itertools.combinations(accepted, count):
            tree = tmp_path / "-".join(["mended", *(name.rpartition(":")[2] for name in mended)])
            task.workspace.write(tree)
            for name in mended:
                path, _, function = name.partition(":")
                now, before = (Module(path, file.read_bytes()) for file in (tree / path, repo.tree / path))
                wrong, right = (module.source(module.definitions[function]) for module in (now, before))
                assert wrong != right
                (tree / path).write_text(now.text.replace(wrong, right))
            done = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
                cwd=tree,
                env=PLAIN | {"PYTHONPATH": str(tree / "src")},
                capture_output=True,
            )
            assert done.returncode == (0 if count == len(accepted) else 1)


def test_guesses_are_wrong_and_are_tried_by_the_check(made: tuple[Journal, list[Task]], sandboxes: Sandboxes) -> None:
    loop, host = sandboxes
    for task in made[1]:
        assert task.facts.answer is not None
        guesses = task.facts.parameters["guesses"]
        for name in task.facts.answer.accepted:  # one of them alone
            assert name in guesses
        assert max(len(guess.split(", ")) for guess in guesses) > len(task.facts.answer.accepted)  # all that runs
        assert not any(grade_answer(task, f"{MARK} {guess}").passed for guess in guesses)
        report = loop.run_until_complete(check(task, host))
        assert report.ok, report.problems
        assert {f"the guess {guess}" for guess in guesses} <= {trial.answer for trial in report.trials}
    right = ", ".join(made[1][0].facts.answer.accepted) if made[1][0].facts.answer is not None else ""
    known = made[1][0].facts.model_copy(update={"parameters": {"guesses": [right]}})
    told = Task("guessed", "Which?", made[1][0].config, known, made[1][0].files)
    assert loop.run_until_complete(check(told, host)).problems == [f"WRONG: the guess {right} is accepted"]


def test_the_reference_answers_and_null_does_not(made: tuple[Journal, list[Task]], sandboxes: Sandboxes) -> None:
    loop, host = sandboxes
    for policy, passed in (("reference", True), ("null", False)):
        outcome = loop.run_until_complete(run_rollout(made[1][0], scripted(policy, made[1][0]), host, build_setup()))
        assert isinstance(outcome, Scored) and outcome.passed is passed and outcome.reward == float(passed)
        assert outcome.ruling is not None and outcome.ruling.verdict == "clean"


def test_a_function_that_another_can_stand_in_for_is_not_asked_about(build_repository: Build) -> None:
    code = (
        "def low(x):\n    return x + 1\n\n\ndef high(x):\n    return low(x) * 2\n\n\n"
        "def free(x):\n    return x - 1\n\n\ndef also(x):\n    return x < 3\n"
    )
    names = {name: f"src/a.py:{name}" for name in ("low", "high", "free", "also")}
    traces: dict[str, set[str]] = {f"tests/test_a.py::test_{number}": set() for number in range(20)}
    for number in range(3):
        traces[f"tests/test_a.py::test_{number}"] = {names["low"], names["high"]}
        traces[f"tests/test_a.py::test_{number + 3}"] = {names["high"]}
        traces[f"tests/test_a.py::test_{number + 6}"] = {names["free"]}
        traces[f"tests/test_a.py::test_{number + 9}"] = {names["also"]}
    repository = build_repository({"src/a.py": code, "tests/test_a.py": ""}, traces)
    low = repository.definitions[names["low"]]
    assert could_be_blamed(repository, low, names["high"])  # it uses it: whoever calls could make up for it
    assert not could_be_blamed(repository, repository.definitions[names["free"]], names["high"])
    found = list(plans(repository, Links(repository), random.Random(1)))
    assert found and all(names["low"] not in each.accepted for each in found)
    assert [each.key for each in plans(repository, Links(repository), random.Random(1))] == [each.key for each in found]
    assert len({each.key for each in found}) == len(found)
