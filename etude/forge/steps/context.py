"""What a maker of tasks works with: the request, the repository with its baseline, the host, what was made before.

Every step that does not lead to a task raises `Refused`, with the same words for the same kind of trouble. Knows no
origin.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from etude.core.errors import EtudeError
from etude.forge.environments.environment import Environment
from etude.forge.environments.suite_run import SuiteRun, run_suite, run_variants
from etude.forge.gates.near_duplicates import KnownTasks
from etude.forge.install.checkout import Repo
from etude.forge.languages.base import Repository
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.languages.table import language_of
from etude.forge.steps.baseline import LEAST_GREEN, Baseline, baseline
from etude.forge.steps.candidate import LeftOut
from etude.sandbox.base import Layer
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.config import PromptStyle
from etude.tasks.format.file_tree import Files

ORIGINS: Final = ("deletion", "bug", "commit")
PROMPT_STYLES: Final[tuple[PromptStyle, ...]] = ("terse", "plain", "detailed")
SLOWER: Final = 10  # times as long as the slowest test took: a machine may be busier than it was
SHORTEST_LIMIT: Final = 10.0  # seconds, for tests that took next to nothing
HANGS: Final = 2  # candidates at which the suite did not come to its end with a test, after which it runs for none


@dataclass(frozen=True)
class MakeRequest:
    """What somebody asked for."""

    count: int
    out: Path
    seed: int = 0
    origins: tuple[str, ...] = ORIGINS  # by name or label
    prompt_styles: tuple[PromptStyle, ...] = PROMPT_STYLES
    workers: int = 2
    tracker: bool = False  # bugs are reported in an issue tracker beside the repository


@dataclass(frozen=True)
class MakeContext:
    """A repository, and where the work on it is done."""

    repository: Repository[Any]
    base: Baseline
    workspace: Layer
    host: StoringHost
    request: MakeRequest
    history: Path | None = None
    unsteady: set[str] = field(default_factory=set)  # tests that no task relies on: they take the time, or failed since
    # Tests that never ended, or ended the process of the suite, with the number of candidates.
    hangs: Counter[str] = field(default_factory=Counter)
    known: KnownTasks = field(default_factory=KnownTasks)  # tasks that were made
    left_out: list[LeftOut] = field(default_factory=list)  # what origins do not propose, until it is journalled
    note: Callable[[str], None] = lambda _: None  # hears what is being done

    @property
    def python(self) -> PythonRepository:
        """The same repository, for origins that are made of Python alone."""
        assert isinstance(self.repository, PythonRepository)
        return self.repository

    @property
    def test_seconds(self) -> float:
        """What no test needs while it can still come to its end: code that is missing may leave one waiting for ever,
        and the limit of the whole suite would be spent on it."""
        return max(
            SHORTEST_LIMIT, SLOWER * max((self.base.took.get(test, 0.0) for test in self.base.green), default=0.0)
        )

    @property
    def endless(self) -> set[str]:
        """Tests with which the suite does not come to its end whatever is broken. One such test must not cost a
        repository all its tasks: it belongs to none, and no run asks for it."""
        return {test for test, count in self.hangs.items() if count >= HANGS}

    async def run_tests(
        self,
        changes: Mapping[str, bytes | None],
        tests: Sequence[str] | None = None,
        *,
        timeout: float | None = None,
        partly: bool = False,
    ) -> SuiteRun:
        """The suite, or some tests of it, with these changes made. One that does not end is `Refused`, unless a part of
        it tells enough."""
        # The machine may be busier than it was.
        seconds = 5 * self.base.seconds + 30 if timeout is None else timeout
        environment = self.repository.environment
        limits: dict[str, Any] = {"timeout": seconds, "test_seconds": self.test_seconds}
        if tests is None and self.endless:
            tests = [test for test in self.base.green if test not in self.endless]
        run = await run_suite(self.host, environment, self.workspace, changes=changes, tests=tests, **limits)
        if not run.complete and not partly:
            self.hangs.update([run.culprit] if run.culprit else [])
            self.unsteady.update(self.endless)
            raise Refused("the suite does not come to its end", run.reason)
        return run

    async def run_variants(
        self,
        variants: Sequence[Mapping[str, bytes | None]],
        tests: Sequence[str],
        *,
        each: float | None = None,
        **options: Any,
    ) -> list[SuiteRun]:
        """The same tests over several variants of the code, each of which may take so many seconds."""
        seconds = 4 * self.base.seconds + 20 if each is None else each
        timeout = len(variants) * seconds + 30
        environment = self.repository.environment
        return await run_variants(
            self.host, environment, self.workspace, variants, tests=tests, each=seconds, timeout=timeout, **options
        )


@dataclass
class Opening:
    """What contexts are made from. An origin that needs no other takes the plain one, which is made once."""

    repo: Repo
    environment: Environment
    host: StoringHost
    request: MakeRequest
    building: Environment | None = None  # the same environment with what builds the repository
    note: Callable[[str], None] = lambda _: None  # hears what is being done
    known: KnownTasks = field(default_factory=KnownTasks)
    _plain: MakeContext | None = None

    async def plain(self) -> MakeContext:
        """The repository as it is, in its own environment."""
        if self._plain is None:
            # As tasks have it: only the environment says what is shown of the host, or tests would count as green that
            # find a font or a program there that no task has.
            workspace = self.host.store.add(self.repo.tree, shows=())
            self._plain = await self.context(self.environment, workspace, Files.scan(self.repo.tree))
            self._plain.unsteady.update(self._plain.repository.timing_tests())
        return self._plain

    async def context(self, environment: Environment, workspace: Layer, files: Files) -> MakeContext:
        """These files in this environment, with what the repository's tests do there."""
        base = await baseline(self.host, environment, workspace, self.note)
        language, repo = language_of(environment), self.repo
        repository = language(repo.name, repo.version, files, environment, base.green, base.traces, base.took)
        green = tuple(test for test in base.green if repository.stands_in_tests(test))
        if len(green) < LEAST_GREEN:
            raise EtudeError(
                f"{repo.name} has {len(green)} tests in files of tests that always pass; tasks need {LEAST_GREEN} (the "
                f"others of {len(base.green)} are doctests in its code, which whoever solves a task could edit)"
            )
        base = replace(base, green=green)
        repository = language(repo.name, repo.version, files, environment, green, base.traces, base.took)
        made = MakeContext(repository, base, workspace, self.host, self.request, history=repo.history, known=self.known)
        made.hangs.update(dict.fromkeys(base.left_out, HANGS))
        return replace(made, note=self.note)


class Refused(Exception):
    """Why a candidate is no task."""

    def __init__(self, reason: str, detail: str = "", *, by_odd_tests: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail
        self.by_odd_tests = by_odd_tests  # only by tests that no task relies on from now on


@contextmanager
def timed(spent: dict[str, float], part: str) -> Iterator[None]:
    """Adds the seconds that a part of the work took, also where it ended in `Refused`."""
    started = time.monotonic()
    try:
        yield
    finally:
        spent[part] = spent.get(part, 0.0) + time.monotonic() - started
