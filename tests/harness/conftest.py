"""Builders of the harness tests: a sandbox that is only a folder, policies that follow a script, a small tokenizer.

The folder has none of a sandbox's walls. It runs the commands of these tests and nothing that a model wrote.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from etude.core.policy import Assistant, Call, Context, Sample, Sampling, StopReason, Version
from etude.core.settings import AgentLimits, HarnessSettings
from etude.harness.loop import run_agent
from etude.harness.tools.table import build_tools
from etude.sandbox.base import CommandResult, SandboxFailure
from etude.tokens.dialect import Dialect
from etude.tokens.native import Native
from etude.tokens.tokenizer import Tokenizer

TEXT = "def add(a, b):\n    return a + b\n\nerror: there is no tool; read write edit path start [exit 1]\n" * 40


class FolderSandbox:
    """A folder that answers like a sandbox."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commands: list[list[str]] = []
        self.failure: SandboxFailure | None = None

    def _inside(self, path: str) -> Path:
        if self.failure:
            raise self.failure
        assert Path(path).is_relative_to(self.root), path
        return Path(path)

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        data = self._inside(path).read_bytes()
        return data[offset:] if limit is None else data[offset : offset + limit]

    async def write(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        target = self._inside(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout: float = 60.0,
        max_output: int | None = None,
    ) -> CommandResult:
        folder = self._inside(cwd or str(self.root))
        self.commands.append(list(argv))
        try:
            process = await asyncio.create_subprocess_exec(
                *(os.fsencode(word) for word in argv),
                cwd=folder,
                env={"PATH": os.environ["PATH"], **(env or {})},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError:
            return CommandResult(127, b"", b"")
        try:
            async with asyncio.timeout(timeout):
                stdout, stderr = await process.communicate()
            return CommandResult(process.returncode or 0, stdout, stderr)
        except TimeoutError:
            return CommandResult(-9, b"", b"", timed_out=True)
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


Step = Assistant | Sample | Exception | Callable[[Context, Sampling], Sample]


class Script:
    """A policy that says its turns one after another. With a version its tokens count as sampled."""

    def __init__(self, dialect: Dialect | None, steps: Sequence[Step], version: Version | None = None) -> None:
        self.dialect, self.steps, self.version = dialect, list(steps), version
        self.contexts: list[Context] = []
        self.samplings: list[Sampling] = []

    async def sample(self, context: Context, sampling: Sampling) -> Sample:
        self.contexts.append(context)
        self.samplings.append(sampling)
        step = self.steps[len(self.contexts) - 1]
        if isinstance(step, Exception):
            raise step
        if isinstance(step, Sample):
            return step
        if not isinstance(step, Assistant):
            return step(context, sampling)
        assert self.dialect is not None
        ids = tuple(self.dialect.turn_ids(step, context.messages))
        stop: StopReason = "stop" if len(ids) <= sampling.max_tokens else "length"
        return self.say(ids[: sampling.max_tokens], stop)

    def say(self, ids: Sequence[int], stop: StopReason = "stop") -> Sample:
        sampled = self.version is not None
        return Sample(
            text="",
            stop=stop,
            ids=tuple(ids),
            logprobs=tuple(-0.1 - 0.01 * place for place in range(len(ids))) if sampled else None,
            versions=(self.version,) * len(ids) if self.version is not None else None,
        )


def call(name: str, **arguments: str) -> Assistant:
    return Assistant(calls=(Call(name, arguments),))


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([TEXT], 420)


@pytest.fixture(scope="session")
def dialect(tokenizer: Tokenizer) -> Native:
    return Native(tokenizer)


@pytest.fixture
def sandbox(tmp_path: Path) -> FolderSandbox:
    root = tmp_path / "workspace"
    root.mkdir()
    return FolderSandbox(root)


class Rollouts:
    """Runs agents over one sandbox with defaults that a test can change."""

    def __init__(self, sandbox: FolderSandbox, tokenizer: Tokenizer) -> None:
        self.sandbox, self.tokenizer, self.dialect = sandbox, tokenizer, Native(tokenizer)
        self.tools = build_tools(HarnessSettings().tools)

    def play(self, policy: Any, instruction: str = "Mend add.", **options: Any) -> Any:
        given: dict[str, Any] = {
            "dialect": self.dialect,
            "tools": self.tools,
            "limits": AgentLimits(),
            "sampling": Sampling(max_tokens=1000),
            "root": str(self.sandbox.root),
        } | options
        started = time.monotonic()
        trajectory = asyncio.run(run_agent(instruction, self.sandbox, policy, **given))
        assert trajectory.seconds <= time.monotonic() - started
        return trajectory


@pytest.fixture
def rollouts(sandbox: FolderSandbox, tokenizer: Tokenizer) -> Rollouts:
    return Rollouts(sandbox, tokenizer)


@pytest.fixture
def script() -> type[Script]:
    return Script


@pytest.fixture
def say_call() -> Callable[..., Assistant]:
    return call
