"""A candidate as a task directory: workspace, tests, solution, instructions, facts.

The workspace is the repository with the candidate's changes and without hidden tests; `tests/` has the test files
whole, with all that lies beside them; `solution/files/` the changed files as the repository had them. The instruction
stands in one register, and all three in `instructions/`. Knows nothing about sandboxes.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, Final

from etude.forge.languages.base import Repository, TestFunction
from etude.forge.steps.candidate import Candidate
from etude.forge.steps.difficulty import level
from etude.forge.steps.hide_tests import Split
from etude.forge.steps.instructions import Instructions
from etude.tasks.format.config import SCHEMA, Config, Environment, Facts, Installed, PromptStyle, Verifier
from etude.tasks.format.files import Files, Kind
from etude.tasks.format.task import SOLUTION, TESTS, WORKSPACE, Task, solve_script

VERSION: Final = 2  # goes into each task's provenance: a change here makes other tasks of the same seed
MOST_KEPT: Final = 300  # ids that have to stay green at each grading; while a task is made, all of them do
MOST_SECONDS: Final = 5.0  # that those ids may take together: grading is what training waits for
STEERING: Final = ("conftest.py", "setup.py", "sitecustomize.py", "usercustomize.py", "noxfile.py")


def write(
    world: Repository[Any],
    candidate: Candidate,
    split: Split,
    kept: Sequence[str],
    told: Instructions,
    prompt_style: PromptStyle,
    seed: int,
) -> Task:
    """The task, in memory."""
    rng = random.Random(f"{seed}/{candidate.key}/kept")
    read = {test.partition("::")[0] for test in (*split.shown, *split.held_out)}
    pass_to_pass = choose_kept(world, candidate, kept, rng, read)
    files: dict[str, bytes] = {}
    kinds: dict[str, Kind] = {}
    seen = {**candidate.changes, **split.files}
    for path, data in world.files.items():
        now = seen.get(path, data)
        put(files, kinds, world, f"{WORKSPACE}/{path}", path, now)
        if world.is_test(path) or beside_tests(world, path):
            put(files, kinds, world, f"{TESTS}/{path}", path, data)
        if path in candidate.changes:
            put(files, kinds, world, f"{SOLUTION}/{path}", path, data)
    ids = [*split.shown, *pass_to_pass, *split.held_out]
    files |= {
        f"{TESTS}/test.sh": world.manner.test_script,
        f"{TESTS}/ids.txt": "\n".join([*ids, ""]).encode(),
        "solution/solve.sh": solve_script("/app"),
    }
    return assemble(
        world,
        candidate,
        told,
        prompt_style,
        seed,
        Files(files, kinds),
        fail_to_pass=list(split.shown),
        pass_to_pass=pass_to_pass,
        held_out=list(split.held_out),
        allowed_paths=allowed_paths(world, candidate),
        deleted=[piece.id for piece in candidate.pieces],
    )


def assemble(
    world: Repository[Any],
    candidate: Candidate,
    told: Instructions,
    prompt_style: PromptStyle,
    seed: int,
    files: Files,
    **own: Any,
) -> Task:
    """The task of these files and `own` facts, with what all have: an image, instructions, where they come from."""
    environment, manner = world.environment, world.manner
    everything = {
        **files,
        "environment/Dockerfile": manner.dockerfile(world),
        manner.lock: environment.lock.encode(),
        **{f"instructions/{name}.md": text.encode() for name, text in told.by_register.items()},
    }
    kinds: dict[str, Kind] = {path: files.kind(path) for path in files if files.kind(path) != "file"}
    kinds |= {f"{TESTS}/test.sh": "executable", "solution/solve.sh": "executable"}
    facts = Facts(
        category=told.category,
        provenance=f"{world.name} {world.version}".strip() + f"; make {VERSION}; {candidate.key}",
        family=f"{world.name}: {candidate.origin}, {candidate.how}",
        level=level(candidate),
        seed=seed,
        prompt_style=prompt_style,
        suite=manner.suite,
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
    name = f"{world.name}-{candidate.key}".lower()
    return Task(name, told.by_register[prompt_style], config, facts, Files(everything, kinds))


def choose_kept(
    world: Repository[Any], candidate: Candidate, kept: Sequence[str], rng: random.Random, read: Collection[str] = ()
) -> list[str]:
    """Tests that must stay green, whole functions, as far as time allows: those first that come near the change.

    The files in `read` are read in any case."""
    near = {name for name in world.reach if name.partition(":")[0] in candidate.changes}
    places: dict[TestFunction, list[str]] = {}
    for test in kept:
        # A grader that changes a test's source changes it for every class that inherits it: one of them is enough.
        if world.place(test) == world.collected(test) or not world.place(test).name:
            places.setdefault(world.collected(test), []).append(test)

    def far(place: TestFunction) -> bool:
        return not any(near & world.traces.get(test, frozenset()) for test in places[place])

    order = sorted(rng.sample(list(places), len(places)), key=far)
    chosen: set[str] = set()
    paid = set(read)
    seconds = 0.0
    for place in order:
        names = places[place] if place.path in paid else [*places[place], place.path]
        more = sum(world.took.get(name, 0.0) for name in names)
        if len(chosen) + len(places[place]) <= MOST_KEPT and seconds + more <= MOST_SECONDS:
            chosen.update(places[place])
            paid.add(place.path)
            seconds += more
    return [test for test in kept if test in chosen]


def allowed_paths(world: Repository[Any], candidate: Candidate) -> list[str]:
    """The project's folders, as far as no test or setting lies in them; else the changed files by name."""
    found: list[str] = []
    covered: set[tuple[str, str]] = set()
    for folder, ending in sorted({_kind(path) for path in world.code}):
        pattern = f"{folder}/*{ending}" if folder else ""
        others = [*world.test_files, *(f"{folder}/{name}" for name in STEERING if f"{folder}/{name}" in world.files)]
        clear = not any(fnmatchcase(path, pattern) and path.rpartition("/")[0] == folder for path in others)
        if pattern and clear and not world.is_test(f"{folder}/new{ending}"):
            found.append(pattern)
            covered.add((folder, ending))
    return found + [path for path in sorted(candidate.changes) if _kind(path) not in covered]


def _kind(path: str) -> tuple[str, str]:
    """The folder and the ending of a file."""
    return path.rpartition("/")[0], PurePosixPath(path).suffix


def put(
    files: dict[str, bytes], kinds: dict[str, Kind], world: Repository[Any], at: str, path: str, data: bytes | None
) -> None:
    """A file of the repository at its place in the task, as executable as it was; None is no file."""
    if data is None:
        return
    files[at] = data
    kind = world.files.kind(path)
    if kind != "file":
        kinds[at] = kind


def beside_tests(world: Repository[Any], path: str) -> bool:
    """Data of the tests: anything in a folder that is theirs."""
    folder = PurePosixPath(path).parent
    return world.is_test(f"{folder}/new{world.manner.endings[0]}") and str(folder) != "."
