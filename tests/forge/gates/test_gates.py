"""Only a task that is what it says passes the gates, and every other one is told why it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from etude.forge.environments.environment import Environment
from etude.forge.environments.suite_run import SuiteRun, run_suite
from etude.forge.gates import gates
from etude.forge.gates.gates import BENDING, Verdict, attacks_on, pass_gates
from etude.forge.gates.withheld_answers import TOO_FEW
from etude.forge.leaks.audit import Leak
from etude.forge.leaks.deleted_code import Deleted
from etude.sandbox.hosts import StoringHost
from etude.tasks.environment.layers import workspace_layer
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import Task

CART = "src/shop/cart.py"
GREEN = {
    *("tests/deep/test_deep.py::test_total_of_the_deep_cart", "tests/test_cart.py::test_total"),
    *("tests/test_cart.py::test_one[1]", "tests/test_cart.py::test_one[2]"),
    *(f"tests/test_cart.py::test_{name}" for name in ("many", "empty", "is_a_number", "halves")),
    "tests/test_cart.py::CartTest::test_negative",
}
SHOWN = [f"tests/test_cart.py::test_{name}" for name in ("total", "one[1]", "one[2]")]
MakeTask = Callable[..., Task]


@pytest.fixture(scope="module")
def leaks() -> Iterator[list[Leak]]:
    """What the audit finds: it has tests of its own, and takes its time the first time."""
    found: list[Leak] = []

    async def audit(host: Any, layers: Any, deleted: Any) -> list[Leak]:
        assert len(layers) == 2 and deleted
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gates, "audit_leaks", audit)
        yield found


@pytest.fixture(scope="module")
def suites() -> Iterator[list[Any]]:
    """The files of each whole run of the suite that a gate asks for."""
    runs: list[Any] = []

    async def run(*given: Any, **options: Any) -> SuiteRun:
        runs.append(options["changes"])
        return await run_suite(*given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gates, "run_suite", run)
        yield runs


class Gates:
    def __init__(
        self, sandboxes: tuple[asyncio.AbstractEventLoop, StoringHost], environment: Environment, source: str
    ) -> None:
        (self.loop, self.host), self.environment = sandboxes, environment
        self.deleted = [Deleted(CART, "total", source)]

    def __call__(self, task: Task, green: set[str] = GREEN, **options: Any) -> Verdict:
        return self.loop.run_until_complete(
            # A small shop has few answers to withhold.
            pass_gates(
                task, self.environment, self.host, green=green, deleted=self.deleted, **{"least_bits": 1.0, **options}
            )
        )


@pytest.fixture(scope="module")
def passing(
    sandboxes: tuple[asyncio.AbstractEventLoop, StoringHost],
    tiny_environment: Environment,
    shop_files: dict[str, str],
    leaks: list[Leak],
    suites: list[Any],
) -> Gates:
    return Gates(sandboxes, tiny_environment, shop_files[CART])


@pytest.fixture(scope="module")
def scrubbed(passing: Gates, repository_task: MakeTask, suites: list[Any]) -> tuple[Verdict, int]:
    """A task that is what it says, and whose repository was scrubbed of a file: its verdict, and how many whole runs of
    the suite that took."""
    suites.clear()
    task = repository_task(fail_to_pass=SHOWN)
    found = passing(task, whole=whole_of(task).replaced({"docs/more.md": b"scrubbed"}))
    return found, len(suites)


def whole_of(task: Task) -> Files:
    """The repository as it was when its tests were green."""
    tests = {path: text for path, text in task.tests.items() if path.startswith("tests/")}
    return task.workspace.replaced({**tests, **dict(task.solution)})


def test_a_task_that_is_what_it_says_passes_every_gate(scrubbed: tuple[Verdict, int]) -> None:
    found, _ = scrubbed
    assert found.valid, found
    assert list(found.spent) == ["lint", "leaks", "broken", "reference", "stubs", "answers", "grader"]
    assert not found.reason and sum(found.spent.values()) <= found.seconds


def test_files_that_are_as_they_were_need_no_run_to_be_green(
    passing: Gates, repository_task: MakeTask, suites: list[Any], scrubbed: tuple[Verdict, int]
) -> None:
    task = repository_task(fail_to_pass=SHOWN)
    suites.clear()
    assert passing(task, whole=whole_of(task)).valid and len(suites) == 1
    found, runs = scrubbed
    assert found.valid and runs == 2


def test_of_a_slow_suite_answers_are_asked_for_before_it_runs(
    passing: Gates, repository_task: MakeTask, suites: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "SLOW", -1.0)
    suites.clear()
    found = passing(repository_task(fail_to_pass=SHOWN), least_bits=1000.0)
    assert found.reason == TOO_FEW and not suites
    found = passing(repository_task(fail_to_pass=SHOWN))
    assert found.valid and suites
    assert list(found.spent) == ["lint", "leaks", "answers", "broken", "reference", "stubs", "grader"]


def test_a_task_that_was_finished_meanwhile_is_known_before_the_grader_is_asked(
    passing: Gates, repository_task: MakeTask
) -> None:
    asked = iter([None, "shop-7"])
    found = passing(repository_task(fail_to_pass=SHOWN), near_duplicate=lambda task: next(asked))
    assert (found.reason, found.detail) == ("like another task", "shop-7")
    assert list(found.spent)[-1] == "answers"


def test_what_is_seen_without_running_anything(passing: Gates, repository_task: MakeTask, leaks: list[Leak]) -> None:
    assert passing(repository_task(fail_to_pass=SHOWN, allowed_paths=["**"])).reason == "lint: tests-allowed"
    assert passing(repository_task(fail_to_pass=SHOWN), GREEN - {SHOWN[0]}).detail == SHOWN[0]
    few = repository_task(fail_to_pass=SHOWN[:1], held_out=["tests/test_cart.py::test_empty"])
    assert passing(few).reason == "too few tests fail"
    twin = passing(repository_task(fail_to_pass=SHOWN), near_duplicate=lambda task: "shop-7")
    assert (twin.reason, twin.detail) == ("like another task", "shop-7")
    leaks.append(Leak("/opt/env/copy.py", "source", "cart.py:total", 1.0, "all of it"))
    leak = passing(repository_task(fail_to_pass=SHOWN))
    leaks.clear()
    assert leak.reason == "leak" and "/opt/env/copy.py" in leak.detail and list(leak.spent) == ["lint"]


def test_the_named_tests_and_no_others_fail_before(passing: Gates, repository_task: MakeTask) -> None:
    early = repository_task(fail_to_pass=[*SHOWN, "tests/test_cart.py::CartTest::test_negative"], pass_to_pass=[])
    assert passing(early).reason == "a test passes before the work is done"
    other = passing(repository_task())  # does not name test_one[1]
    assert (other.reason, other.detail) == ("another test fails", "tests/test_cart.py::test_one[1]")


def test_the_reference_restores_everything(
    passing: Gates, repository_task: MakeTask, shop_files: dict[str, str]
) -> None:
    half = {CART: shop_files[CART].replace("sum(", "len(")}
    found = passing(repository_task(fail_to_pass=SHOWN, solution=half))
    assert found.reason == "the reference does not restore all" and "more" in found.detail


def test_a_test_that_changes_its_mind_is_named(
    passing: Gates, repository_task: MakeTask, scrubbed: tuple[Verdict, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    moody = "tests/test_cart.py::CartTest::test_negative"

    async def run(*given: Any, tests: Any = None, **options: Any) -> SuiteRun:
        found = await run_suite(*given, tests=tests, **options)
        if tests is None:
            found.outcomes[moody] = "failed"
        return found

    task = repository_task(fail_to_pass=SHOWN)
    assert scrubbed[0].valid
    monkeypatch.setattr(gates, "run_suite", run)
    found = passing(task)
    assert found.reason == gates.UNSTEADY and found.unsteady == (moody,)


def test_answers_that_only_return_something_fail(passing: Gates, repository_task: MakeTask) -> None:
    lazy = "from shop import total, Cart\n\n\n" + "".join(f"def test_{x}():\n    total(Cart())\n\n\n" for x in "abcd")
    names = [f"tests/test_cart.py::test_{x}" for x in "abcd"]
    task = repository_task({"tests/test_cart.py": lazy}, fail_to_pass=names[:2], held_out=names[2:], pass_to_pass=[])
    found = passing(task, {*names})
    assert (found.reason, found.detail) == ("a stub is accepted", "every function returns None")


def test_tests_that_the_grader_cannot_change_without_harm_are_found_out(
    passing: Gates, repository_task: MakeTask
) -> None:
    text = "from shop import Cart, total\n\n\n"
    text += "".join(f"def test_{x}():\n    assert total(Cart().add({n})) == {n}\n\n\n" for n, x in enumerate("abcd"))
    text += "def test_size():\n    assert len(open(__file__).read().splitlines()) == 21\n"
    names = [f"tests/test_cart.py::test_{x}" for x in "abcd"]
    facts = {"fail_to_pass": names[:2], "held_out": names[2:], "pass_to_pass": ["tests/test_cart.py::test_size"]}
    task = repository_task({"tests/test_cart.py": text}, **facts)
    found = passing(task, {*names, *facts["pass_to_pass"]})
    assert found.reason == "the grader rejects the reference" and "test_size" in found.detail
    assert found.unsteady == ("tests/test_cart.py::test_size",)  # no judge of other tasks either


def test_the_attacks_fool_whoever_only_asks_for_passed_tests(passing: Gates, repository_task: MakeTask) -> None:
    task = repository_task(fail_to_pass=SHOWN)
    answers = attacks_on(task)
    assert set(answers) == {"what equals everything", "a bent framework"}
    assert (answers["a bent framework"][CART] or b"").endswith(BENDING.encode())
    layer = workspace_layer(task, passing.host)
    bent = passing.loop.run_until_complete(
        run_suite(passing.host, passing.environment, layer, changes=answers["a bent framework"], tests=SHOWN)
    )
    assert bent.passed == set(SHOWN)
    equal = passing.loop.run_until_complete(
        run_suite(passing.host, passing.environment, layer, changes=answers["what equals everything"], tests=SHOWN)
    )
    assert equal.passed == set(SHOWN)
