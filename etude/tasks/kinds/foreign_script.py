"""Tasks of other people, graded as Harbor grades them: by `tests/test.sh` and the reward that it leaves.

Such a task names no tests of ours, only an image and a script. The agent works in a container of the image; of what it
changed, plain files below the working folder and the declared artifacts are laid into a fresh one, where neither its
processes nor its other files are. There the tests are put, for the first time, and run. The reward is read strictly:
a number from 0 to 1, or the rollout failed. Needs the docker backend. Knows no policy.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Final

from etude.core.errors import EtudeError
from etude.core.settings import GraderSettings
from etude.sandbox.base import WORKSPACE, CommandResult, Sandbox, SandboxLimits
from etude.sandbox.docker.host import DockerHost, ImageLayer
from etude.sandbox.hosts import StoringHost
from etude.tasks.format.config import Artifact
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import TESTS, Task
from etude.tasks.grading.grader import GradeJob
from etude.tasks.grading.submission import Submission, SubmissionLimits, SubmittedFile, collect_below
from etude.tasks.grading.verdict import Grade, Kind
from etude.tasks.kinds.base import Finding, KnownAttempt, OutcomeKind, SandboxStart
from etude.tasks.kinds.code_change import lint_tests

IMAGE: Final = "environment"  # the folder with the Dockerfile
SOLUTION: Final = "solution"
REWARDS: Final = "/logs/verifier"
LONGEST: Final = 1800.0  # seconds that a task's own script may ask for
LARGEST_REWARD: Final = 1 << 16  # bytes of a reward file
_NEVER_SUBMITTED: Final = ("tests", "solution", "logs", "proc", "sys", "dev")
_FOLDERS: Final = ("/logs/agent", "/logs/artifacts", REWARDS)


class BadReward(Exception):
    """What the script left is no reward."""


class ForeignScript(OutcomeKind):
    order = 1  # after the kinds that facts name

    def owns(self, task: Task) -> bool:
        """Whether only `tests/test.sh` can grade it: it is somebody else's task."""
        facts = task.facts
        named = facts.suite is not None or facts.fail_to_pass or facts.answer is not None
        return not named and task.script(TESTS, "test") is not None

    async def start(self, task: Task, host: StoringHost) -> SandboxStart:
        """The task's image, built where the engine does not have it yet. It holds neither tests nor solution."""
        _check(task)
        return _over(task, await _image(task, _docker(task, host), task.config.agent.user))

    async def collect(
        self, task: Task, sandbox: Sandbox, workdir: str = WORKSPACE, limits: SubmissionLimits | None = None
    ) -> Submission:
        """Files by their paths from the root: plain ones below the working folder, and artifacts."""

        def refuse(path: str) -> str:
            return "it lies where the verifier works" if path.split("/")[0] in _NEVER_SUBMITTED else ""

        return await collect_below(sandbox, _roots(task, workdir), "/", refuse, limits=limits)

    async def grade(self, job: GradeJob) -> Grade:
        """Runs the task's tests over these files. What the machinery does wrong is a `SandboxFailure`."""
        task, docker = job.task, _docker(job.task, job.host)
        start = await _verifier_start(task, docker)
        seconds = min(task.config.verifier.timeout_sec, LONGEST)
        env = {**start.env, **_variables(task, "verifier.env")}
        limits = _limits(task, job.settings)
        async with await docker.start(start.layers, limits=limits, env=env, workdir=start.workdir) as sandbox:
            await sandbox.put({f"/{each.path}": _bytes_and_mode(each) for each in job.submission.files}, _FOLDERS)
            await sandbox.put(_placed(task.tests, "/tests"))
            result = await sandbox.run([f"/{task.script(TESTS, 'test')}"], timeout=seconds, max_output=LARGEST_REWARD)
            kind, rewards, reason = await _outcome(sandbox, result, seconds)
        tests = {name: "passed" if value == 1 else "failed" for name, value in rewards.items()}
        details = {name: f"{value:g}" for name, value in rewards.items() if value != 1}
        return Grade(kind == "passed", kind, reason, tests or {"reward": "missing"}, details)

    def lint(self, task: Task) -> Iterator[Finding]:
        return lint_tests(task)

    async def known_attempts(
        self, task: Task, host: StoringHost, settings: GraderSettings, guesses: Sequence[str]
    ) -> AsyncIterator[KnownAttempt]:
        """Its own solution must be accepted twice, and doing nothing must not be."""
        if task.script(SOLUTION, "solve") is None:
            return
        solution, ended = await solve(task, host, settings)
        wrong = [] if ended.ok else [f"solution/solve.sh ended with {ended.code}"]

        def complaints(grade: Grade) -> list[str]:
            refused = [] if grade.passed else [f"{path} is refused: {why}" for path, why in grade.refused]
            return wrong + refused

        for number in (1, 2):
            name = f"solve.sh, run {number} of the tests"
            yield KnownAttempt(name, "accepted", solution, complaints=complaints)
        yield KnownAttempt("null", "rejected")


async def solve(
    task: Task, host: StoringHost, settings: GraderSettings | None = None
) -> tuple[Submission, CommandResult]:
    """What the task's own `solution/solve.sh` changes in a container of its own, and how the script ended."""
    script = task.script(SOLUTION, "solve")
    if script is None:
        raise EtudeError(f"task {task.name} has no {SOLUTION}/solve.sh")
    kind = ForeignScript()
    start = await kind.start(task, host)
    docker = _docker(task, host)
    env = {**start.env, **_variables(task, "solution.env")}
    limits = _limits(task, settings or GraderSettings())
    async with await docker.start(start.layers, limits=limits, env=env, workdir=start.workdir) as sandbox:
        await sandbox.put(_placed(task.files.under(SOLUTION), "/solution"))
        result = await sandbox.run([f"/{script}"], timeout=min(task.config.agent.timeout_sec or 900.0, LONGEST))
        return await kind.collect(task, sandbox, start.workdir), result


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
        value = json.loads(as_json, parse_constant=lambda name: name)
    except (ValueError, RecursionError):
        raise BadReward("reward.json is no JSON") from None
    named = value if isinstance(value, dict) else {"reward": value}
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


async def _verifier_start(task: Task, docker: DockerHost) -> SandboxStart:
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


def _bytes_and_mode(each: SubmittedFile) -> tuple[bytes, int] | None:
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


KIND = ForeignScript()
