"""One broken packaging on its way to a task: built, compared, told, written, and sent through the gates.

The project is built as it was and as it is broken, each in a sandbox without network; what differs is what the task
asks for (`demands`), and the tests of that, which no agent sees, are what judges it. The workspace has no copy of the
metadata: sdists and builds leave some, lock files repeat the requirements. Every way that does not lead to a task ends
in `Refused`.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from etude.core import durable
from etude.core.errors import EtudeError
from etude.forge.environments.environment import Environment
from etude.forge.environments.suite_run import run_suite
from etude.forge.install.build_environment import building_environment
from etude.forge.install.checkout import Repo
from etude.forge.install.package_index import PackageIndex
from etude.forge.install.result import InstallFailed
from etude.forge.languages.python.repository import PythonRepository
from etude.forge.leaks.deleted_code import Deleted
from etude.forge.origins.packaging.attacks import bluffs
from etude.forge.origins.packaging.config_entries import FILES
from etude.forge.origins.packaging.instruct import tell_packaging
from etude.forge.origins.packaging.propose import Area, Packaging
from etude.forge.origins.packaging.requirements import BUILT, Demand, Facts, demands, follows, written_tests
from etude.forge.steps.baseline import Baseline, baseline
from etude.forge.steps.candidate import Candidate
from etude.forge.steps.choose_functions import LEAST_TESTS
from etude.forge.steps.code_change import MadeTask, MakeContext, Refused, being_made, judge_by_gates, scrub_all, timed
from etude.forge.steps.instructions import Instructions
from etude.forge.steps.write import assemble, choose_kept, put
from etude.sandbox.base import WORKSPACE as PLACE
from etude.sandbox.base import Layer, SandboxLimits
from etude.sandbox.hosts import StoringHost
from etude.tasks.environment.layers import environment_variables
from etude.tasks.format.config import PromptStyle
from etude.tasks.format.files import Files, Kind
from etude.tasks.format.task import SOLUTION, TESTS, WORKSPACE, Task, solve_script
from etude.tasks.grading.grader import grade
from etude.tasks.grading.submission import carried_files

LEAST_KEPT: Final = 40  # of the repository's own tests that stay green; with ours, all are asked for at each grading
FORMAT: Final = 1  # of what is kept about a distribution
OTHER_VERSION: Final = "9.8.7"
MOST_SOURCES: Final = 4  # files that the version could come from
# Where nothing else that is built is wanted by its parts, so that a project that cannot be built still says what is.
WHOLE: Final = frozenset(("version", "contents", "python", "dependencies"))
INFORMATION: Final = re.compile(
    r"(^|/)[^/]*\.(egg-info|dist-info)(/|$)|(^|/)(uv|poetry|pdm|Pipfile)\.lock$|(^|/)pylock\..*toml$"
)
COPY: Final = re.compile(r"(^|/)(PKG-INFO|METADATA)$")
_LIMITS: Final = SandboxLimits(memory=2 << 30, disk=1 << 30, processes=256, cpu_seconds=600)
_SECONDS: Final = 400.0


@dataclass(frozen=True)
class Release:
    """A repository that can be built, and what its distribution is like while nothing is broken."""

    world: PythonRepository  # without copies of the metadata
    base: Baseline
    workspace: Layer
    host: StoringHost
    facts: Facts
    file: str  # where the tests go
    source: Demand | None  # that the version follows a file, where it does
    unsteady: set[str] = field(default_factory=set)


def bare(files: Files) -> Files:
    """The repository's files without what repeats its packaging: of metadata only name and version stay."""
    changes: dict[str, bytes | None] = {}
    for path in files:
        if INFORMATION.search(path):
            changes[path] = None
        elif COPY.search(path) and files.kind(path) != "link":
            head = files[path].partition(b"\n\n")[0].splitlines()
            kept = [line for line in head if line.startswith((b"Metadata-Version:", b"Name:", b"Version:"))]
            changes[path] = b"\n".join([*kept, b""])
    return files.replaced(changes)


def place_of_tests(environment: Environment, files: Files) -> str:
    """A free name beside the repository's tests, or at the top where those have no folder."""
    folders = [folder.strip("/") for folder in environment.suite.folders]
    there = [each for each in folders if any(path.startswith(f"{each}/") for path in files)]
    taken = {path.rpartition("/")[2] for path in files}
    names = ["test_distribution.py", *(f"test_distribution_{number}.py" for number in range(2, 99))]
    name = next(name for name in names if name not in taken)
    return f"{there[0]}/{name}" if there else name


async def open_building(repo: Repo, environment: Environment, host: StoringHost, index: PackageIndex) -> Environment:
    """The environment's twin in which the repository can be built; an `EtudeError` where there is none."""
    try:
        file = place_of_tests(environment, Files.scan(repo.tree))
        return await building_environment(repo, environment, host, index, file)
    except InstallFailed as error:
        raise EtudeError(f"{repo.name} cannot be built, so no DevOps task can be made of it: {error}") from None


async def open_release(repo: Repo, environment: Environment, host: StoringHost) -> Release:
    """Builds the repository in an environment that can, or reads what came of it before; an `EtudeError` where it
    cannot be built."""
    files = bare(Files.scan(repo.tree))
    with host.store.scratch() as folder:
        files.write(folder / "files")
        workspace = host.store.add(folder / "files")
    base = await baseline(host, environment, workspace)
    world = PythonRepository(repo.name, repo.version, files, environment, base.green, base.traces, base.took)
    file = place_of_tests(environment, files)
    kept = host.store.root / "environments" / f"{environment.digest[:32]}-{workspace.digest[:32]}.release.json"
    try:
        known = json.loads(kept.read_text())
        known = known if known["format"] == FORMAT else None
    except (OSError, ValueError, KeyError):
        known = None
    if known is None:
        known = await _measure(world, host, workspace, file)
        durable.write_whole(kept, json.dumps(known))
    # Tests that build are part of the suite now, and every gate may take as long as they do.
    world = replace(world, environment=replace(environment, seconds=environment.seconds + known["seconds"]))
    source = follows(*known["source"]) if known["source"] else None
    return Release(world, base, workspace, host, known["facts"], file, source)


async def _measure(world: PythonRepository, host: StoringHost, workspace: Layer, file: str) -> dict[str, Any]:
    """What the distribution is like, each time; what takes how long; where the version comes from."""
    started = time.monotonic()
    first, second = [await _facts(host, world.environment, workspace, file, {}, seed) for seed in (1, 2)]
    seconds = time.monotonic() - started
    if not first["built"]:
        raise EtudeError(f"{world.name} cannot be built in its environment: {first['why']}")
    if any(first[name] != second.get(name) for name in ("fields", "packed", "entry_points", "requirements")):
        raise EtudeError(f"{world.name} is built differently each time")
    for name in ("helps", "loads", "imports"):
        first[name] = {key: value for key, value in first[name].items() if second[name].get(key) == value}
    source = await _version_source(world, host, workspace, file, first["fields"]["Version"])
    return {"format": FORMAT, "facts": first, "seconds": round(seconds, 3), "source": source}


async def _facts(
    host: StoringHost,
    environment: Environment,
    workspace: Layer,
    file: str,
    changes: Mapping[str, bytes | None],
    seed: int = 0,
    words: Sequence[str] = (),
) -> Any:
    """What `built` says in a sandbox over the workspace with these changes made."""
    env = environment_variables(environment.python, environment.env) | {"PYTHONHASHSEED": str(seed)}
    async with await host.start([environment.layer, workspace], limits=_LIMITS, env=env) as sandbox:
        for path, data in changes.items():
            assert data is not None
            await sandbox.write(f"{PLACE}/{path}", data)
        await sandbox.write(f"{PLACE}/{file}", BUILT.read_bytes())
        done = await sandbox.run([environment.python, "-P", f"{PLACE}/{file}", *words], timeout=_SECONDS)
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        return {"built": False, "why": last[:300]}


async def _version_source(
    world: PythonRepository, host: StoringHost, workspace: Layer, file: str, version: str
) -> list[str] | None:
    """The one file whose text decides which version is built."""
    said = re.compile(rf"version[^\n]*[\"']{re.escape(version)}[\"']", re.IGNORECASE)
    likely = [path for path, module in world.modules.items() if said.search(module.text)]
    for path in sorted(likely, key=lambda path: (path.count("/"), path))[:MOST_SOURCES]:
        words = [path, version, OTHER_VERSION]
        if await _facts(host, world.environment, workspace, file, {}, words=words) == OTHER_VERSION:
            return words
    return None


async def make_release(shop: MakeContext, candidate: Candidate, spent: dict[str, float]) -> MadeTask:
    """A task below `wanted.out` under a hidden name. `spent` is told the seconds of each part."""
    release = shop.release
    assert isinstance(candidate, Packaging) and release is not None
    with timed(spent, "trial"):
        asked, now = await _demands(release, candidate)
        text = written_tests(asked, release.facts).encode()
        broken, kept = await _tried(release, candidate, text)
    wanted = shop.wanted
    rng = random.Random(f"{wanted.seed}/{candidate.key}")
    told = tell_packaging(release.world, candidate, asked, now, rng)
    prompt_style = rng.choice(wanted.prompt_styles)
    task = write_release(release, candidate, text, (broken, kept), told, prompt_style, wanted.seed)
    async with being_made(shop, task, spent) as folder:
        await _judge(shop, release, candidate, folder, (broken, kept), spent)
    return MadeTask(task, folder)


async def _demands(release: Release, candidate: Packaging) -> tuple[list[Demand], Facts]:
    now = await _facts(release.host, release.world.environment, release.workspace, release.file, candidate.changes)
    if not now["built"] and not WHOLE.issuperset(candidate.areas):
        raise Refused("it cannot be built at all", now["why"])
    asked = demands(release.facts, now, candidate.areas)
    if not asked:
        raise Refused("no test notices")
    if release.source is not None and any(each.area == "version" for each in asked):
        asked.append(release.source)
    if "version" in candidate.areas and not any(each.area == "version" for each in asked):
        raise Refused("no test notices", "the version")
    return asked, now


async def _tried(release: Release, candidate: Packaging, text: bytes) -> tuple[list[str], list[str]]:
    """Our tests over the broken project and over the whole one: those that fail before, and those that never do."""
    names = [f"{release.file}::{name}" for name in re.findall(r"(?m)^def (test_\w+)", text.decode())]

    async def passing(changes: Mapping[str, bytes | None]) -> set[str]:
        given = {**changes, release.file: text}
        run = await run_suite(
            release.host, release.world.environment, release.workspace, changes=given, tests=names, timeout=_SECONDS
        )
        if not run.complete:
            raise Refused("the suite does not come to its end", run.reason)
        return run.passed

    whole = await passing({})
    if wrong := [name for name in names if name not in whole]:
        raise Refused("the reference does not restore all", ", ".join(wrong[:3]))
    before = await passing(candidate.changes)
    broken = [name for name in names if name not in before]
    if len(broken) < LEAST_TESTS:
        raise Refused("too few tests notice" if broken else "no test notices", ", ".join(broken))
    return broken, [name for name in names if name in before]


def write_release(
    release: Release,
    candidate: Packaging,
    text: bytes,
    tests: tuple[Sequence[str], Sequence[str]],
    told: Instructions,
    prompt_style: PromptStyle,
    seed: int,
) -> Task:
    """The task, in memory. No test of it is in the workspace: the first of them is as good as any other."""
    world, (broken, kept) = release.world, tests
    rng = random.Random(f"{seed}/{candidate.key}/kept")
    green = [test for test in world.green if test not in release.unsteady]
    own = choose_kept(world, candidate, green, rng)[:LEAST_KEPT]
    files: dict[str, bytes] = {f"{TESTS}/{release.file}": text}
    kinds: dict[str, Kind] = {}
    for path, data in world.files.items():
        put(files, kinds, world, f"{WORKSPACE}/{path}", path, candidate.changes.get(path, data))
        if world.is_test(path):
            put(files, kinds, world, f"{TESTS}/{path}", path, data)
        if path in candidate.changes:
            put(files, kinds, world, f"{SOLUTION}/{path}", path, data)
    files |= {
        f"{TESTS}/test.sh": world.manner.test_script,
        f"{TESTS}/ids.txt": "\n".join([*broken, *kept, *own, ""]).encode(),
        "solution/solve.sh": solve_script("/app"),
    }
    return assemble(
        world,
        candidate,
        told,
        prompt_style,
        seed,
        Files(files, kinds),
        fail_to_pass=list(broken[:1]),
        pass_to_pass=[*kept, *own],
        held_out=list(broken[1:]),
        allowed_paths=[path for path in (*FILES, "MANIFEST.in") if path in world.files],
        deleted=[piece.id for piece in candidate.pieces],
    )


def copied(task: Task, facts: Facts, areas: Collection[Area]) -> str:
    """A file of the workspace that still says what is missing, in another form than the removed lines."""
    words: list[str] = []
    if "scripts" in areas:
        known = "".join(_bare_text(task, path) for path in FILES if path in task.workspace)
        points = [f"{name}={target}" for named in facts["entry_points"].values() for name, target in named.items()]
        words += [point for point in points if point not in known]
    if "extras" in areas:
        words += [f"extra=={extra}" for extra in facts["requirements"] if extra]
    for path in task.workspace if words else ():
        if path not in FILES and task.workspace.kind(path) != "link" and task.workspace.size(path) < 1 << 20:
            text = _bare_text(task, path)
            if found := next((word for word in words if word in text), ""):
                return f"{path} says {found}"
    return ""


def _bare_text(task: Task, path: str) -> str:
    return re.sub(r"[\s\"'`]", "", task.workspace.text(path))


async def _judge(
    shop: MakeContext,
    release: Release,
    candidate: Packaging,
    folder: Path,
    tests: tuple[Sequence[str], Sequence[str]],
    spent: dict[str, float],
) -> None:
    deleted = [Deleted(piece.path, "", piece.source) for piece in candidate.pieces]
    await scrub_all(folder, deleted, spent)
    task = Task.load(folder)
    if place := copied(task, release.facts, candidate.areas):
        raise Refused("leak", place)
    green = [*release.world.green, *tests[0], *tests[1]]
    await judge_by_gates(shop, folder, spent, green=green, deleted=deleted, release=release)
    with timed(spent, "gate bluffs"):
        for name, files in bluffs(task).items():
            changes = carried_files(task, files)
            # Where nothing of it is carried, it is doing nothing, which the gates have graded.
            if changes.carried and (await grade(task, release.host, changes, quick=True)).passed:
                raise Refused("a cheat is accepted", name)
