"""Questions about a repository: proposed from traces, answered by execution, worded without their answer."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from etude.forge.environments.environment import Environment
from etude.forge.gates.near_duplicates import KnownTasks
from etude.forge.install.checkout import Repo
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.origins.question.propose import implementations, questions, reaches
from etude.forge.origins.question.propose_review import reviews
from etude.forge.pipeline.journal import Journal
from etude.forge.pipeline.make import make_tasks
from etude.forge.steps.choose_functions import Links
from etude.forge.steps.context import MakeRequest
from etude.policies.scripted import scripted
from etude.rollout.rollout import Scored, build_setup, run_rollout
from etude.sandbox.hosts import StoringHost
from etude.tasks.check import check
from etude.tasks.format.task import Task
from etude.tasks.kinds.answer import reference_answer
from tests.forge.small_repositories import FILES, write_tree

# No plugin of ours takes its time, and nothing is left in the tree.
PLAIN = {"PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
BIN = Path(sys.executable).parent
Sandboxes = tuple[asyncio.AbstractEventLoop, StoringHost]

SHAPES = '''"""Things that can be shown."""


class Shape:
    def area(self):
        raise NotImplementedError

    def label(self):
        return f"{self.name()} {self.area()}"

    def name(self):
        return "shape"


class Square(Shape):
    def __init__(self, side):
        if side < 0:
            raise ValueError(side)
        self.side = checked(side)

    def area(self):
        total = self.side * self.side
        return total

    def name(self):
        return "square"


class Circle(Shape):
    def __init__(self, radius):
        self.radius = checked(radius)

    def area(self):
        if self.radius > 10:
            found = 3.14 * self.radius ** 2
        else:
            found = 3 * self.radius ** 2
        return found

    def name(self):
        return "circle"

    def scaled(self, factor):
        return Circle(self.radius * factor)


def checked(number):
    if number > 1000:
        raise OverflowError(number)
    return number


def largest(shapes):
    best = None
    for shape in shapes:
        if best is None or shape.area() > best.area():
            best = shape
    return best
'''
TESTS = """import pytest

from shop.shapes import Circle, Shape, Square, checked, largest


def test_square():
    assert Square(3).area() == 9


def test_square_label():
    assert Square(2).label() == "square 4"


def test_circle():
    assert Circle(2).area() == 12


def test_large_circle():
    assert Circle(100).area() == 31400


def test_circle_label():
    assert Circle(1).label() == "circle 3"


def test_scaled():
    assert Circle(2).scaled(2).area() == 48


def test_negative():
    with pytest.raises(ValueError):
        Square(-1)


def test_too_large():
    with pytest.raises(OverflowError):
        Circle(1001)


def test_too_large_square():
    with pytest.raises(OverflowError):
        Square(2000)


def test_nothing_to_see():
    with pytest.raises(NotImplementedError):
        Shape().label()


def test_largest():
    assert largest([Square(2), Circle(2)]).name() == "circle"


def test_largest_of_equals():
    assert largest([Square(3), Square(3)]).area() == 9


def test_largest_of_nothing():
    assert largest([]) is None


def test_checked():
    assert checked(1000) == 1000
"""


OLD = "src/shop/__pycache__/shapes.cpython-311.pyc"


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Repo:
    files = {**FILES, "src/shop/shapes.py": SHAPES, "tests/test_shapes.py": TESTS, OLD: "what the code was before"}
    return Repo("shapes", "1.0", "path", write_tree(tmp_path_factory.mktemp("shapes"), files), None)


@pytest.fixture(scope="module")
def make(sandboxes: Sandboxes, closed_environment: Environment, repo: Repo) -> Callable[..., Journal]:
    loop, host = sandboxes

    def run(out: Path, count: int, **wanted: Any) -> Journal:
        asked = MakeRequest(count, out, origins=("question",), **wanted)
        return loop.run_until_complete(make_tasks(repo, closed_environment, host, asked))

    return run


@pytest.fixture(scope="module")
def made(make: Callable[..., Journal], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Journal]:
    out = tmp_path_factory.mktemp("questions")
    return out, make(out, 12)


def tasks(made: tuple[Path, Journal], how: str = "") -> list[Task]:
    found = [Task.load(made[0] / name) for name in made[1].tasks]
    return [task for task in found if how in task.facts.family]


def test_every_kind_of_question_becomes_a_task(made: tuple[Path, Journal]) -> None:
    kinds = {task.facts.family.rpartition(", ")[2]: task.facts.category for task in tasks(made)}
    assert kinds | {"plan": "planning"} == {  # plans have tests of their own
        "plan": "planning",
        "review": "code review",
        "reach": "question answering",
        "implementation": "question answering",
        "raises": "question answering",
    }
    for task in tasks(made):
        facts = task.facts
        assert facts.answer is not None and not facts.allowed_paths and 1 <= facts.level <= 5
        assert OLD not in task.workspace
        assert {path.name for path in (made[0] / task.name / "instructions").iterdir()} == {
            *("terse.md", "plain.md", "detailed.md")
        }


def test_no_wording_says_the_answer_alone(made: tuple[Path, Journal]) -> None:
    for task in tasks(made):
        assert task.facts.answer is not None
        for prompt_style in ("terse", "plain", "detailed"):
            text = task.worded(prompt_style).instruction
            assert "ANSWER:" in text and reference_answer(task.facts.answer) not in text
            for name in task.facts.answer.accepted:
                named = [choice for choice in task.facts.parameters["choices"] if choice in text]
                assert name not in text or len(named) > 1


def test_answers_are_what_python_itself_does(made: tuple[Path, Journal], repo: Repo) -> None:
    """An independent tracer, in a process of its own, without pytest's plugins or ours."""
    script = """
import sys, runpy, pytest
root, test = sys.argv[1:]
sys.path.insert(0, root + "/src")
seen, raised = set(), []
def watch(frame, event, argument):
    code = frame.f_code
    if code.co_filename.startswith(root + "/src") and not code.co_name.startswith("<"):
        name = code.co_filename[len(root) + 1:] + ":" + code.co_qualname
        if event == "call":
            seen.add(name)
        if event == "exception" and frame.f_lineno and argument[2].tb_next is None:
            raised.append(name)
        return watch
import shop.shapes
sys.settrace(watch)
pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", root, root + "/" + test])
sys.settrace(None)
print("SEEN", *sorted(seen))
print("RAISED", *raised)
"""
    tried = [task for task in tasks(made) if task.facts.parameters["asked"][0] not in ("review", "plan")][:6]
    for task in tried:
        how, test = task.facts.parameters["asked"]
        done = subprocess.run(
            [sys.executable, "-c", script, str(repo.tree), test], capture_output=True, text=True, check=True, env=PLAIN
        )
        lines = {line.partition(" ")[0]: line.split()[1:] for line in done.stdout.splitlines()}
        choices = set(task.facts.parameters["choices"])
        assert task.facts.answer is not None
        accepted = set(task.facts.answer.accepted)
        assert accepted == (set(lines["RAISED"][:1]) if how == "raises" else set(lines["SEEN"]) & choices)
    assert {task.facts.parameters["asked"][0] for task in tried} == {"reach", "implementation", "raises"}


def test_a_reviewed_patch_is_applied_and_breaks_what_it_is_said_to(
    made: tuple[Path, Journal], repo: Repo, tmp_path: Path
) -> None:
    for number, task in enumerate(tasks(made, "review")[:2]):
        assert task.facts.answer is not None
        (broken,) = task.facts.answer.accepted
        patch = task.worded("plain").instruction.partition("```diff\n")[2].partition("```")[0]
        tree = tmp_path / str(number)
        files = {path: (repo.tree / path).read_text() for path in task.workspace}
        write_tree(tree, files)
        subprocess.run(["git", "apply", "--unsafe-paths", "-p1", "-"], cwd=tree, input=patch, text=True, check=True)
        changed = {path for path in files if (tree / path).read_text() != files[path]}
        assert {path: (tree / path).read_text() for path in files} == {
            p: task.workspace.text(p) for p in task.workspace
        }
        assert broken.partition(":")[0] in changed
        assert len(task.facts.parameters["choices"]) >= 3 and broken in task.facts.parameters["choices"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
            cwd=tree,
            env=PLAIN | {"PYTHONPATH": str(tree / "src")},
            capture_output=True,
        )
        assert done.returncode == 1


def test_no_two_questions_have_the_same_answer_and_each_is_fit(
    made: tuple[Path, Journal], sandboxes: Sandboxes
) -> None:
    loop, host = sandboxes
    answers = [frozenset(task.facts.answer.accepted) for task in tasks(made) if task.facts.answer is not None]
    assert len(set(answers)) == len(answers)
    known = KnownTasks()
    known.add(tasks(made)[0])
    assert known.answered(tasks(made)[0]) == tasks(made)[0].name and known.answered(tasks(made)[1]) is None
    report = loop.run_until_complete(check(tasks(made)[0], host, guesses=[", ".join(sorted(answers[1]))]))
    assert report.ok, report.problems


def test_the_reference_answers_and_null_does_not(made: tuple[Path, Journal], sandboxes: Sandboxes) -> None:
    loop, host = sandboxes
    for task in tasks(made)[:4]:
        for policy, passed in (("reference", True), ("null", False)):
            outcome = loop.run_until_complete(run_rollout(task, scripted(policy, task), host, build_setup()))
            assert isinstance(outcome, Scored) and outcome.passed is passed
            assert outcome.ruling is not None and outcome.ruling.verdict == "clean"


def test_the_script_for_harbor_reads_the_last_words_from_a_file(made: tuple[Path, Journal], tmp_path: Path) -> None:
    for number, task in enumerate([tasks(made, "reach")[0], tasks(made, "raises")[0]]):
        root = tmp_path / str(number)
        task.tests.write(root / "tests")
        for folder in ("app", "logs/verifier", "logs/agent"):
            (root / folder).mkdir(parents=True)
        assert task.facts.answer is not None
        right = reference_answer(task.facts.answer)

        def reward(script: str, root: Path = root) -> tuple[str, bytes]:
            for name in ("/tests", "/logs", "/app"):
                script = script.replace(name, f"{root}{name}")
            done = subprocess.run(
                ["sh", "-c", script], env=PLAIN | {"PATH": f"{BIN}:/bin:/usr/bin"}, capture_output=True
            )
            return (root / "logs/verifier/reward.txt").read_text().strip(), done.stderr

        script = task.tests.text("test.sh")
        found, said = reward(script)
        assert found == "0" and b"answered in words" in said
        subprocess.run(["sh", "-c", task.files.text("solution/solve.sh").replace("/app", f"{root}/app")], check=True)
        assert reward(script) == ("1", b"")
        for wrong in ("", f"{right}, a.py:other", f"{right}\nANSWER: a.py:other"):
            (root / "logs/agent/answer.txt").write_text(f"{wrong}\n")
            assert reward(script)[0] == "0"
        (root / "logs/agent/answer.txt").write_text(f"Well.\n{right}\n")
        assert reward(script)[0] == "1"


def test_the_same_seed_asks_the_same(make: Callable[..., Journal], made: tuple[Path, Journal], tmp_path: Path) -> None:
    again = make(tmp_path, 3, workers=1)
    assert again.tasks == made[1].tasks[:3]
    assert [Task.load(tmp_path / name).digest for name in again.tasks] == [
        Task.load(made[0] / name).digest for name in again.tasks
    ]


def test_what_runs_while_tests_are_collected_is_not_asked_about(shop_repository: PythonRepository) -> None:
    early = {f"src/shop/{name}" for name in ("cart.py:Cart.add", "money.py:show_price")}
    repository = PythonRepository(
        *(
            shop_repository.name,
            shop_repository.version,
            shop_repository.files,
            shop_repository.environment,
            shop_repository.green,
        ),
        {**shop_repository.traces, "": frozenset(early)},
    )
    for asked in [*reaches(repository, random.Random(1)), *implementations(repository, random.Random(1))]:
        assert not early & set(asked.choices)


def test_questions_come_in_turns_and_have_keys_of_their_own(shop_repository: PythonRepository) -> None:
    asked = list(questions(shop_repository, random.Random(3)))
    assert len({each.key for each in asked}) == len(asked)
    assert [each.key for each in questions(shop_repository, random.Random(3))] == [each.key for each in asked]


def test_a_patch_without_its_bug_is_part_of_the_patch(shop_repository: PythonRepository) -> None:
    found = list(reviews(shop_repository, Links(shop_repository), random.Random(5)))
    assert found
    for each in found:
        assert set(each.without_bug) <= set(each.changes) and each.without_bug != each.changes
        assert each.accepted[0] in each.choices and each.patch.count("\n+") >= 3
