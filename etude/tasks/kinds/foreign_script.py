"""Tasks of other people, judged as Harbor judges them: by `tests/test.sh` and the reward that it leaves.

Such a task names no tests of ours, only an image and a script. The agent works in a container of the image; of what it
changed, plain files below the working folder and the declared artifacts are laid into a fresh one, where neither its
processes nor its other files are. There the tests are put, for the first time, and run. The reward is read strictly:
a number from 0 to 1, or the attempt failed. Needs the docker backend. Knows no policy.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from etude.core.errors import EtudeError
from etude.core.settings import GraderSettings
from etude.sandbox.base import WORKSPACE, Change, CommandResult, Layer, Sandbox, SandboxLimits
from etude.sandbox.docker.host import DockerHost, ImageLayer
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.config import Artifact
from etude.tasks.format.files import Files, check_path
from etude.tasks.format.task import TESTS, Task
from etude.tasks.grading.submission import Carried, CarryLimits, Refused, Submission
from etude.tasks.grading.verdict import Grade, Kind

IMAGE: Final = "environment"  # the folder with the Dockerfile
SOLUTION: Final = "solution"
REWARDS: Final = "/logs/verifier"
LONGEST: Final = 1800.0  # seconds that a task's own script may ask for
LARGEST_REWARD: Final = 1 << 16  # bytes of a reward file
_NEVER_CARRIED: Final = ("tests", "solution", "logs", "proc", "sys", "dev")
_FOLDERS: Final = ("/logs/agent", "/logs/artifacts", REWARDS)


class BadReward(Exception):
    """What the script left is no reward."""


@dataclass(frozen=True)
class SandboxStart:
    """What a sandbox of the task starts over, and where."""

    layers: Sequence[Layer]
    env: Mapping[str, str]
    workdir: str = WORKSPACE


def judged_by_script(task: Task) -> bool:
    """Whether only `tests/test.sh` can judge it: it is somebody else's task."""
    facts = task.facts
    named = facts.suite is not None or facts.fail_to_pass or facts.answer is not None
    return not named and task.script(TESTS, "test") is not None


async def agent_place(task: Task, host: StoringHost) -> SandboxStart:
    """The task's image, built where the engine does not have it yet. It holds neither tests nor solution."""
    _check(task)
    image = await _image(task, _docker(task, host), task.config.agent.user)
    return _over(task, image)


async def collect_files(task: Task, sandbox: Sandbox, workdir: str, limits: CarryLimits | None = None) -> Submission:
    """The agent's files by their paths from the root: plain ones below the working folder, and artifacts."""
    limits = limits or CarryLimits()
    carried: dict[str, Carried] = {}
    refused: dict[str, Refused] = {}
    room = limits.total_bytes
    for root in _roots(task, workdir):
        try:
            listed = await sandbox.diff(root)
        except OSError as error:
            refused[root] = Refused(root.lstrip("/"), f"it cannot be listed: {error.strerror}")
            continue
        for change in listed:
            path = change.path.lstrip("/")
            if change.what == "folder" or path in carried or path in refused:
                continue
            why = _why_not(change, path, limits, len(carried), room)
            data = None
            if not why and change.kind != "deleted":
                try:
                    data = await sandbox.read(change.path, limit=limits.file_bytes)
                    room -= len(data)
                except OSError as error:
                    why = f"it cannot be read: {error.strerror}"
            if why:
                refused[path] = Refused(path, why)
            else:
                carried[path] = Carried(path, data, bool(change.mode & 0o100))
    return Submission(tuple(carried.values()), tuple(refused.values()))


async def solve(
    task: Task, host: StoringHost, settings: GraderSettings | None = None
) -> tuple[Submission, CommandResult]:
    """What the task's own `solution/solve.sh` changes in a container of its own, and how the script ended."""
    script = task.script(SOLUTION, "solve")
    if script is None:
        raise EtudeError(f"task {task.name} has no {SOLUTION}/solve.sh")
    place = await agent_place(task, host)
    docker = _docker(task, host)
    env = {**place.env, **_variables(task, "solution.env")}
    limits = _limits(task, settings or GraderSettings())
    async with await docker.start(place.layers, limits=limits, env=env, workdir=place.workdir) as sandbox:
        await sandbox.put(_placed(task.files.under(SOLUTION), "/solution"))
        result = await sandbox.run([f"/{script}"], timeout=min(task.config.agent.timeout_sec or 900.0, LONGEST))
        return await collect_files(task, sandbox, place.workdir), result


async def grade_by_script(
    task: Task, host: StoringHost, changes: Submission, settings: GraderSettings | None = None
) -> Grade:
    """Runs the task's tests over these changes. What the machinery does wrong is a `SandboxFailure`."""
    started = time.monotonic()
    settings = settings or GraderSettings()
    docker = _docker(task, host)
    place = await _verifier_place(task, docker)
    seconds = min(task.config.verifier.timeout_sec, LONGEST)
    env = {**place.env, **_variables(task, "verifier.env")}
    limits = _limits(task, settings)
    async with await docker.start(place.layers, limits=limits, env=env, workdir=place.workdir) as sandbox:
        await sandbox.put({f"/{each.path}": _bytes_and_mode(each) for each in changes.carried}, _FOLDERS)
        await sandbox.put(_placed(task.tests, "/tests"))
        result = await sandbox.run([f"/{task.script(TESTS, 'test')}"], timeout=seconds, max_output=LARGEST_REWARD)
        kind, rewards, reason = await _outcome(sandbox, result, seconds)
    return Grade(
        passed=kind == "passed",
        kind=kind,
        reason=reason,
        tests={name: "passed" if value == 1 else "failed" for name, value in rewards.items()} or {"reward": "missing"},
        details={name: f"{value:g}" for name, value in rewards.items() if value != 1},
        refused=tuple((each.path, each.why) for each in changes.refused),
        backend=host.capabilities.backend,
        seconds=time.monotonic() - started,
    )


def read_rewards(as_json: bytes | None, as_text: bytes | None) -> dict[str, float]:
    """Named rewards, each a number from 0 to 1; the JSON file goes before the text. `BadReward` says what is wrong."""
    if as_json is None and as_text is None:
        raise BadReward("tests/test.sh left no reward")
    if as_json is None:
        text = (as_text or b"").decode("ascii", "replace").strip()
        if re.fullmatch(r"\d{1,20}(\.\d{0,20})?|\.\d{1,20}", text) is None:
            raise BadReward(f"reward.txt holds {text[:40]!r}, which is no number from 0 to 1")
        return _checked({"reward": float(text)})
    try:
        told = json.loads(as_json, parse_constant=lambda name: name)
    except (ValueError, RecursionError):
        raise BadReward("reward.json is no JSON") from None
    named = told if isinstance(told, dict) else {"reward": told}
    if not named or len(named) > 100:
        raise BadReward("reward.json names no reward, or more than a hundred")
    return _checked(named)


def _checked(named: Mapping[str, Any]) -> dict[str, float]:
    for name, value in named.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not 0 <= value <= 1:
            raise BadReward(f"the reward {name[:40]!r} is {str(value)[:40]}, which is no number from 0 to 1")
    return {name[:200]: float(value) for name, value in named.items()}


async def _outcome(sandbox: Sandbox, result: CommandResult, seconds: float) -> tuple[Kind, dict[str, float], str]:
    if result.timed_out:
        return "time", {}, f"tests/test.sh did not end within {seconds:g} s"
    try:
        rewards = read_rewards(await _reward_file(sandbox, "reward.json"), await _reward_file(sandbox, "reward.txt"))
    except BadReward as error:
        if result.oom:
            return "memory", {}, "the tests ran out of memory"
        said = (result.stderr or result.stdout).decode(errors="replace").strip().splitlines()
        return "tests", {}, f"{error} (it ended with {result.code}{': ' + said[-1][:200] if said else ''})"
    # One called reward is the task's; without it all of them count.
    low = {name: value for name, value in rewards.items() if value != 1}
    if ("reward" in rewards and "reward" not in low) or not low:
        return "passed", rewards, ""
    return "tests", rewards, ", ".join(f"{name} is {value:g}" for name, value in list(low.items())[:5])


async def _reward_file(sandbox: Sandbox, name: str) -> bytes | None:
    try:
        data = await sandbox.read(f"{REWARDS}/{name}", limit=LARGEST_REWARD + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadReward(f"{name} cannot be read: {error.strerror}") from None
    if len(data) > LARGEST_REWARD:
        raise BadReward(f"{name} has more than {LARGEST_REWARD} bytes")
    return data


async def _verifier_place(task: Task, docker: DockerHost) -> SandboxStart:
    """The agent's image anew, or in separate mode the verifier's own."""
    verifier = task.config.verifier
    if verifier.mode == "separate" and verifier.environment is not None and verifier.environment.docker_image:
        image = await docker.named_image(verifier.environment.docker_image)
    elif verifier.mode == "separate" and f"{TESTS}/Dockerfile" in task.files:
        image = await _build(task, docker, TESTS)
    else:
        image = await _image(task, docker, verifier.user)
    return _over(task, image)


def _over(task: Task, image: ImageLayer) -> SandboxStart:
    workdir = task.config.environment.workdir or image.workdir
    return SandboxStart([image.layer], _variables(task, "environment.env"), workdir)


async def _image(task: Task, docker: DockerHost, user: str | int | None) -> ImageLayer:
    environment = task.config.environment
    if f"{IMAGE}/Dockerfile" in task.files:
        return await _build(task, docker, IMAGE, user)
    if environment.docker_image is None:
        raise EtudeError(f"task {task.name} has neither {IMAGE}/Dockerfile nor environment.docker_image")
    name = environment.docker_image
    return await docker.named_image(name, seconds=environment.build_timeout_sec, user=str(user or ""))


async def _build(task: Task, docker: DockerHost, folder: str, user: str | int | None = None) -> ImageLayer:
    files = task.files.under(folder)
    if any(files.kind(path) == "link" for path in files):
        raise EtudeError(f"task {task.name} has a link in {folder}/: an image is built from plain files only")
    programs = [path for path in files if files.kind(path) == "executable"]
    seconds = task.config.environment.build_timeout_sec
    try:
        return await docker.image(dict(files), seconds=seconds, executable=programs, user=str(user or ""))
    except EtudeError as error:
        if type(error) is not EtudeError:
            raise
        raise EtudeError(f"task {task.name}: {error}") from error


def _docker(task: Task, host: StoringHost) -> DockerHost:
    if not isinstance(host, DockerHost):
        text = f"task {task.name} names no tests of its own, only an image and tests/test.sh"
        raise EtudeError(f"{text}: use the docker sandbox (--sandbox docker)")
    return host


def _check(task: Task) -> None:
    """What of Harbor's format cannot be run here, said before anything is built."""
    compose = [path for path in task.files if re.fullmatch(rf"{IMAGE}/(docker-)?compose[^/]*\.ya?ml", path)]
    if task.config.steps:
        raise EtudeError(f"task {task.name} has several steps; only tasks of one step can be run here")
    if compose:
        raise EtudeError(f"task {task.name} needs several containers ({compose[0]}); only one can be run here")
    if task.config.environment.os == "windows":
        raise EtudeError(f"task {task.name} needs Windows")


def _variables(task: Task, table: str) -> dict[str, str]:
    """A table of variables; `${NAME:-default}` is its default, as nothing of the host's own is ever given."""
    section, _, name = table.partition(".")
    given: dict[str, str] = getattr(getattr(task.config, section), name)
    found = {}
    for key, value in given.items():
        wanted = re.fullmatch(r"\$\{(\w+)(?::-(.*))?\}", value, re.DOTALL)
        if wanted is not None and wanted[2] is None:
            raise EtudeError(f"task {task.name}: {table}.{key} wants the host's {wanted[1]}, which no sandbox is given")
        found[key] = value if wanted is None else wanted[2]
    return found


def _limits(task: Task, settings: GraderSettings) -> SandboxLimits:
    environment = task.config.environment
    return SandboxLimits(
        memory=(environment.memory_mb or max(settings.memory_mb, 2048)) << 20,
        disk=(environment.storage_mb or max(settings.disk_mb, 1024)) << 20,
        processes=max(settings.processes, 256),
        cpu_seconds=int(LONGEST),
        cpus=float(environment.cpus or 0),
    )


def _roots(task: Task, workdir: str) -> list[str]:
    """The working folder and what the task declares as artifacts, none within another."""
    sources = [one.source if isinstance(one, Artifact) else one for one in task.config.artifacts]
    wanted = [workdir, *(source if source.startswith("/") else f"{workdir}/{source}" for source in sources)]
    clean = list(dict.fromkeys(each.rstrip("/") or "/" for each in wanted))
    return [
        each
        for each in clean
        if not any(each != other and f"{each}/".startswith(f"{other.rstrip('/')}/") for other in clean)
    ]


def _why_not(change: Change, path: str, limits: CarryLimits, count: int, room: int) -> str:
    try:
        check_path(path)
    except EtudeError:
        return "its name is not plain"
    if path.split("/")[0] in _NEVER_CARRIED:
        return "it lies where the verifier works"
    if change.what != "file" and change.kind != "deleted":
        return "it is a link" if change.what == "link" else "it is no plain file"
    if count == limits.files:
        return f"it is one of more than {limits.files} files"
    if change.kind != "deleted" and change.size > limits.file_bytes:
        return f"it has {change.size} bytes, more than {limits.file_bytes}"
    if change.kind != "deleted" and change.size > room:
        return f"the files together have more than {limits.total_bytes} bytes"
    return ""


def _bytes_and_mode(each: Carried) -> tuple[bytes, int] | None:
    return None if each.data is None else (each.data, 0o755 if each.executable else 0o644)


def _placed(files: Files, at: str) -> dict[str, tuple[bytes, int] | None]:
    """The task's own files, where its scripts expect them; scripts can be run whatever their mode."""
    links = [path for path in files if files.kind(path) == "link"]
    if links:
        raise EtudeError(f"{at.strip('/')}/{links[0]} is a link: only plain files are put into a container")
    return {
        f"{at}/{path}": (data, 0o755 if files.kind(path) == "executable" or path.endswith(".sh") else 0o644)
        for path, data in files.items()
    }
