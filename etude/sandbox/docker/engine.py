"""The container engine on this machine, spoken to through its command-line program: docker, or podman in its place.

Finds one that answers, runs its commands with a deadline, builds and imports images, and removes what a dead
orchestrator left. Knows neither layers nor the sandbox protocol.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from etude.core.errors import EtudeError
from etude.sandbox.base import SandboxFailure, SandboxLimits
from etude.sandbox.identity import process_tag, tag_is_dead

PROGRAMS: Final = ("docker", "podman")
OWNER: Final = "etude.owner"  # label of everything that is removed with us, and after us
KEPT: Final = "etude.task"  # label of images of tasks, which stay as the engine's cache
ANSWER_SECONDS: Final = 60.0
COPY_SECONDS: Final = 300.0
_MAX_OUTPUT: Final = 1 << 20  # bytes kept of what the program itself says
_MAX_COPIED: Final = 8 << 30  # bytes of one copy out of a container: a file with holes comes out without them
_ADVICE: Final = (
    "install Docker (and start its daemon) or podman, or use the local sandbox, which needs neither, "
    "for tasks that bring a workspace"
)


@dataclass(frozen=True)
class EngineOutput:
    """How a command of the engine ended."""

    code: int
    out: bytes
    error: str

    @property
    def reason(self) -> str:
        lines = [line.strip() for line in self.error.splitlines() if line.strip()]
        return lines[-1][:400] if lines else f"it ended with {self.code} and wrote nothing"


@dataclass(frozen=True)
class Image:
    """An image as the engine has it, and what its Dockerfile set."""

    id: str
    workdir: str
    user: str
    env: tuple[str, ...]  # NAME=value


class Engine:
    """One engine. `Engine.find()`."""

    def __init__(self, command: Sequence[str], kind: str, cgroup: str, version: str) -> None:
        self.command = tuple(command)
        self.kind = kind  # docker or podman: the few places where they differ
        self.cgroup = cgroup  # "cgroup1" or "cgroup2"
        self.version = version

    @classmethod
    def find(cls) -> Engine:
        """The first engine that answers. Asks at most 30 seconds each; says in one sentence when there is none."""
        found: list[str] = []
        for name in PROGRAMS:
            program = shutil.which(name)
            if program is None:
                continue
            try:
                # `info` and not `--version`: the program may be installed while its daemon is not running.
                ended = subprocess.run(
                    [program, "info", "--format", "{{json .}}"],
                    capture_output=True,
                    stdin=subprocess.DEVNULL,
                    timeout=30.0,
                    check=False,
                )
                result = EngineOutput(ended.returncode, ended.stdout, ended.stderr.decode(errors="replace"))
                if result.code == 0:
                    return cls._from_info(program, json.loads(result.out))
                found.append(f"{program} does not answer ({result.reason})")
            except (OSError, ValueError, subprocess.TimeoutExpired) as error:
                found.append(f"{program} does not answer ({error})")
        what = "; ".join(found) if found else "neither docker nor podman is installed"
        raise EtudeError(f"there is no container engine: {what}: {_ADVICE}")

    @classmethod
    def _from_info(cls, program: str, info: dict[str, Any]) -> Engine:
        # Docker and podman answer with different keys; only podman has "host".
        if "host" not in info:
            if info.get("ServerErrors"):
                raise ValueError(info["ServerErrors"][0])
            version = str(info.get("ServerVersion", "unknown"))
            return cls([program], "docker", f"cgroup{info.get('CgroupVersion', '2')}", version)
        host = info["host"]
        cgroup = "cgroup" + str(host.get("cgroupVersion", "v2")).lstrip("v")
        # crun gives up on a machine with both kinds of control groups, which calls itself v1; runc does not.
        crun = host.get("ociRuntime", {}).get("name") == "crun"
        options = ["--runtime", "runc"] if crun and cgroup == "cgroup1" and shutil.which("runc") else []
        return cls([program, *options], "podman", cgroup, str(info.get("version", {}).get("Version", "unknown")))

    @property
    def name(self) -> str:
        return f"{self.kind} {self.version}"

    async def call(
        self,
        arguments: Sequence[str],
        *,
        stdin: Path | None = None,
        out: Path | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> EngineOutput:
        """Run one command of the engine. At the deadline it is killed and a `SandboxFailure` says so.

        `out` takes what it prints, which is cut off with an `OSError` when it is more than any copy may be.
        """
        source = None if stdin is None else stdin.open("rb")
        try:
            process = await asyncio.create_subprocess_exec(
                *self.command,
                *arguments,
                stdin=source or asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                # A session of its own, so that a kill at the deadline also ends the helpers that podman starts.
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxFailure("launcher", f"{self.command[0]} cannot be started: {error}") from error
        finally:
            if source is not None:
                source.close()
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async with asyncio.timeout(seconds):
                output, errors = await asyncio.gather(_take(process.stdout, out), _take(process.stderr, None))
                code = await process.wait()
        except TimeoutError:
            text = f"{self.kind} {arguments[0]} did not end within {seconds:g} s"
            raise SandboxFailure("deadline", text) from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return EngineOutput(code, output, errors.decode(errors="replace"))

    async def output(self, *arguments: str, stdin: Path | None = None, seconds: float = ANSWER_SECONDS) -> str:
        """A command that has to work: what it printed."""
        result = await self.call(arguments, stdin=stdin, seconds=seconds)
        if result.code != 0:
            raise SandboxFailure("start", f"{self.kind} {arguments[0]} failed: {result.reason}")
        return result.out.decode(errors="replace").strip()

    async def image(self, name: str) -> Image | None:
        """What the engine knows about an image; None when it does not have it."""
        result = await self.call(["image", "inspect", name])
        if result.code != 0:
            return None
        facts = json.loads(result.out)[0]
        config = facts.get("Config") or {}
        return Image(
            facts["Id"].removeprefix("sha256:"),
            config.get("WorkingDir") or "/",
            config.get("User") or "",
            tuple(config.get("Env") or ()),
        )

    async def build(self, context: Path, tag: str, *, label: str, seconds: float) -> Image:
        """An image from a folder with a Dockerfile. Only here does anything of a task see a network."""
        options = ["--tag", tag, "--label", label, "--file", str(context / "Dockerfile")]
        result = await self.call(["build", *options, *self.raised_limits(), str(context)], seconds=seconds)
        if result.code != 0:
            # Builders say what went wrong on either stream, and podman repeats it in its last line.
            raise EtudeError(f"{self.kind} could not build the image: {result.reason}")
        built = await self.image(tag)
        if built is None:
            raise SandboxFailure("start", f"{self.kind} built the image {tag} but does not have it")
        return built

    def raised_limits(self) -> list[str]:
        """podman would raise limits above ours, which only some may do: this keeps it from that."""
        if self.kind != "podman":
            return []
        kinds = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
        found = [(name, min(_hard(kind), 1 << 15)) for name, kind in kinds.items()]
        return [f"--ulimit={name}={most}:{most}" for name, most in found]

    def limits(self, limits: SandboxLimits) -> list[str]:
        """Options of a container that may use so much."""
        files = min(limits.open_files, _hard(resource.RLIMIT_NOFILE))
        return [
            *(option for option in self.raised_limits() if "nofile" not in option),
            f"--memory={limits.memory}",
            f"--memory-swap={limits.memory}",  # the two together: none
            f"--pids-limit={limits.processes + 16}",  # with what stands in for init, and the engine's own on the way in
            *([f"--cpus={limits.cpus}"] if limits.cpus else []),
            f"--ulimit=nofile={files}:{files}",
            f"--ulimit=fsize={limits.disk}:{limits.disk}",
            f"--ulimit=cpu={limits.cpu_seconds}:{limits.cpu_seconds + 1}",
            "--ulimit=core=0:0",
        ]

    async def remove(self, container: str) -> None:
        """Containers end with everything in them; one that is gone already is no error."""
        result = await self.call(["rm", "--force", "--volumes", container])
        # Somebody else's prune may have been faster.
        if result.code != 0 and "no such container" not in result.error.lower():
            raise SandboxFailure("died", f"{self.kind} could not remove a container: {result.reason}")

    async def sweep(self) -> None:
        """Remove containers and images whose orchestrator is dead, however it died."""
        for container in await self._of_dead("inspect", "ps", "--all"):
            await self.remove(container)
        for image in await self._of_dead("image inspect", "images"):
            await self.call(["rmi", "--force", image])

    async def _of_dead(self, inspect: str, *listing: str) -> list[str]:
        listed = await self.output(*listing, "--quiet", "--filter", f"label={OWNER}")
        label = f'{{{{index .Config.Labels "{OWNER}"}}}}'
        found = []
        for name in dict.fromkeys(listed.split()):
            result = await self.call([*inspect.split(), "--format", label, name])
            if result.code == 0 and _is_dead(result.out.decode().strip()):
                found.append(name)
        return found


def _hard(kind: int) -> int:
    most = resource.getrlimit(kind)[1]
    return 1 << 62 if most == resource.RLIM_INFINITY else most


def owner_label() -> str:
    return f"{OWNER}={process_tag(os.getpid())}"


def _is_dead(tag: str) -> bool:
    try:
        return tag_is_dead(tag)
    except ValueError:  # nobody of ours wrote it
        return False


async def _take(stream: asyncio.StreamReader, target: Path | None) -> bytes:
    """All of a stream into a file, or its start and end in memory."""
    if target is None:
        kept = b""
        while block := await stream.read(1 << 16):
            kept += block
            if len(kept) > _MAX_OUTPUT:
                # Both ends are kept: what went wrong stands at the end of what a builder says.
                kept = kept[: _MAX_OUTPUT // 2] + kept[-_MAX_OUTPUT // 4 :]
        return kept
    size = 0
    with target.open("wb") as file:
        while block := await stream.read(1 << 20):
            size += len(block)
            if size > _MAX_COPIED:
                raise OSError(27, f"the files have more than {_MAX_COPIED} bytes")
            file.write(block)
    return b""
