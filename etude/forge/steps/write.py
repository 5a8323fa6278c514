"""What the task directories of all origins have in common: files, instructions, facts, and which tests stay green.

The instruction stands in one prompt style, and all three in `instructions/`. Knows nothing about sandboxes.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, Final

from etude.forge.languages.base import LocatedTest, Repository
from etude.forge.steps.candidate import Candidate
from etude.forge.steps.context import MakeContext
from etude.forge.steps.difficulty import level
from etude.forge.steps.instructions import Instructions
from etude.tasks.format.config import SCHEMA, Config, Environment, Facts, Installed, PromptStyle, Verifier
from etude.tasks.format.file_tree import Files, Kind
from etude.tasks.format.task import SOLUTION, TESTS, WORKSPACE, Task, solve_script
from etude.tasks.kinds.mutants import FOLDER

VERSION: Final = 7  # goes into each task's provenance: a change here makes other tasks of the same seed
MOST_KEPT: Final = 300  # ids that have to stay green at each grading; while a task is made, all of them do
MOST_SECONDS: Final = 5.0  # that those ids may take together: grading is what training waits for
STEERING: Final = ("conftest.py", "setup.py", "sitecustomize.py", "usercustomize.py", "noxfile.py")


class TaskTree:
    """The files of a task while it is written; what comes from the repository is as executable as it was there."""

    def __init__(self, repository: Repository[Any], changes: Mapping[str, bytes | None]) -> None:
        """The workspace: the repository with these changes."""
        self.repository = repository
        self.files: dict[str, bytes] = {}
        self.kinds: dict[str, Kind] = {}
        for path, data in repository.files.items():
            self.put(WORKSPACE, path, changes.get(path, data))

    def put(self, below: str, path: str, data: bytes | None) -> None:
        """A file of the repository below a folder of the task; None is no file."""
        if data is None:
            return
        self.files[f"{below}/{path}"] = data
        if path in self.repository.files and self.repository.files.kind(path) != "file":
            self.kinds[f"{below}/{path}"] = self.repository.files.kind(path)

    def put_solution(self, paths: Iterable[str]) -> None:
        """Files of the repository as it had them: what the reference writes."""
        for path in self.repository.files:
            if path in paths:
                self.put(SOLUTION, path, self.repository.files[path])

    def put_ids(self, ids: Sequence[str]) -> None:
        """The tests that a verifier of Harbor runs, and the script that does."""
        self.files[f"{TESTS}/test.sh"] = self.repository.task_files.test_script
        self.files[f"{TESTS}/ids.txt"] = "\n".join([*ids, ""]).encode()

    def put_mutants(self, mutants: Iterable[Mapping[str, bytes]]) -> None:
        """Versions of the code with one mistake each, which tests or examples have to notice."""
        for number, mutant in enumerate(mutants, start=1):
            self.files |= {f"{TESTS}/{FOLDER}/{number:02}/{path}": data for path, data in mutant.items()}


def assemble(
    context: MakeContext,
    candidate: Candidate,
    instructions: Instructions,
    prompt_style: PromptStyle,
    tree: TaskTree,
    **own: Any,
) -> Task:
    """The task of these files and `own` facts, with what all have: an image, instructions, where they come from."""
    repository = context.repository
    environment, outside = repository.environment, repository.task_files
    texts = instructions.by_style
    files = {
        "solution/solve.sh": solve_script("/app"),
        **tree.files,
        "environment/Dockerfile": outside.dockerfile(repository),
        outside.lock: environment.lock.encode(),
        **{f"instructions/{name}.md": text.encode() for name, text in texts.items()},
    }
    executable: dict[str, Kind] = {f"{TESTS}/test.sh": "executable", "solution/solve.sh": "executable"}
    facts = Facts(
        category=instructions.category,
        provenance=f"{repository.name} {repository.version}".strip() + f"; make {VERSION}; {candidate.key}",
        family=f"{repository.name}: {candidate.origin}, {candidate.how}",
        level=level(candidate),
        seed=context.request.seed,
        prompt_style=prompt_style,
        suite=outside.suite,
        environment=Installed(
            digest=environment.digest,
            python=environment.python,
            paths=list(environment.paths),
            env=dict(environment.env),
        ),
        **own,
    )
    config = Config(
        schema_version=SCHEMA,
        artifacts=["/app"],
        verifier=Verifier(environment_mode="separate", timeout_sec=max(60.0, round(10 * environment.seconds + 30))),
        environment=Environment(workdir="/app", network_mode="no-network"),
    )
    name = f"{repository.name}-{candidate.key}".lower()
    return Task(name, texts[prompt_style], config, facts, Files(files, tree.kinds | executable))


def choose_kept(
    repository: Repository[Any],
    candidate: Candidate,
    kept: Sequence[str],
    rng: random.Random,
    read: Collection[str] = (),
) -> list[str]:
    """Tests that must stay green, whole functions, as far as time allows: those first that come near the change.

    The files in `read` are read in any case."""
    near = {name for name in repository.reach if name.partition(":")[0] in candidate.changes}
    places: dict[LocatedTest, list[str]] = {}
    for test in kept:
        # A grader that changes a test's source changes it for every class that inherits it: one of them is enough.
        if repository.place(test) == repository.collected(test) or not repository.place(test).name:
            places.setdefault(repository.collected(test), []).append(test)

    def far(place: LocatedTest) -> bool:
        return not any(near & repository.traces.get(test, frozenset()) for test in places[place])

    order = sorted(rng.sample(list(places), len(places)), key=far)
    chosen: set[str] = set()
    # Reading a file costs once, however many of its tests are chosen.
    paid = set(read)
    seconds = 0.0
    for place in order:
        names = places[place] if place.path in paid else [*places[place], place.path]
        more = sum(repository.took.get(name, 0.0) for name in names)
        if len(chosen) + len(places[place]) <= MOST_KEPT and seconds + more <= MOST_SECONDS:
            chosen.update(places[place])
            paid.add(place.path)
            seconds += more
    return [test for test in kept if test in chosen]


def allowed_paths(repository: Repository[Any], candidate: Candidate) -> list[str]:
    """The project's folders, as far as no test or setting lies in them; else the changed files by name."""
    found: list[str] = []
    covered: set[tuple[str, str]] = set()
    for folder, ending in sorted({_kind(path) for path in repository.code}):
        pattern = f"{folder}/*{ending}" if folder else ""
        others = [
            *repository.test_files,
            *(f"{folder}/{name}" for name in STEERING if f"{folder}/{name}" in repository.files),
        ]
        clear = not any(fnmatchcase(path, pattern) and path.rpartition("/")[0] == folder for path in others)
        if pattern and clear and not repository.is_test(f"{folder}/new{ending}"):
            found.append(pattern)
            covered.add((folder, ending))
    return found + [path for path in sorted(candidate.changes) if _kind(path) not in covered]


def _kind(path: str) -> tuple[str, str]:
    """The folder and the ending of a file."""
    return path.rpartition("/")[0], PurePosixPath(path).suffix


def beside_tests(repository: Repository[Any], path: str) -> bool:
    """Data of the tests: anything in a folder that is theirs."""
    folder = PurePosixPath(path).parent
    return repository.is_test(f"{folder}/new{repository.task_files.endings[0]}") and str(folder) != "."
