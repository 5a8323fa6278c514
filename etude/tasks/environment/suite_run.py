"""Starts a repository's suite in a sandbox of its own and gives back what was written there.

For whoever makes tasks, and for grades that are taken by running an agent's own tests. What a job holds,
`sandbox_side/pytest_suite_run.py` says; what the lines mean is the caller's business.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from etude.sandbox.base import CommandResult, Layer, SandboxLimits
from etude.sandbox.hosts import StoringHost
from etude.tasks.environment.layers import inside_layer, program
from etude.tasks.sandbox_side.test_process import LENGTH

SUITES = {"node": "etude.tasks.sandbox_side.node_suite_run"}  # all others are pytest's
SUITE = "etude.tasks.sandbox_side.pytest_suite_run"


async def start_suite(
    host: StoringHost,
    layers: Sequence[Layer],
    python: str,
    job: Mapping[str, Any],
    *,
    env: Mapping[str, str],
    timeout: float,
    limits: SandboxLimits,
    max_output: int,
    suite: str = "pytest",
) -> CommandResult:
    """Runs a job over these layers as the interpreter of the environment that is among them."""
    body = json.dumps(job).encode()
    command = [python, "-P", "-s", "-B", "-c", program(SUITES.get(suite, SUITE))]
    async with await host.start([*layers, inside_layer(host.store)], limits=limits) as sandbox:
        return await sandbox.run(
            command, env=env, stdin=LENGTH.pack(len(body)) + body, timeout=timeout, max_output=max_output
        )


def encoded(files: Mapping[str, bytes | None]) -> dict[str, list[Any] | None]:
    """Files as a job has them; None deletes one."""
    return {path: None if data is None else [base64.b64encode(data).decode(), False] for path, data in files.items()}
