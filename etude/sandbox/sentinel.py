"""Whether a host still makes sandboxes that work: asked when one died in which untrusted code had run.

A host that fails now as well is broken, and what died says nothing about its program. One that works is evidence
that the program brought its own sandbox down. Knows neither rollouts nor grades.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final

from etude.sandbox.base import FailureCause, Host, Layer, Sandbox, SandboxFailure

# What a program may bring about in its own sandbox. The others are of the host, where no program reaches.
CAUSED_INSIDE: Final[tuple[FailureCause, ...]] = ("died", "deadline", "protocol")
_SECONDS: Final = 60.0  # for all of it: longer than the longest wait of a backend's own


async def host_works(host: Host, layers: Sequence[Layer]) -> bool:
    """Start a sandbox over these layers, run a program in it that does nothing, and close it."""
    return await sandbox_works(host.start(layers))


async def sandbox_works(starting: Awaitable[Sandbox]) -> bool:
    """The same with a sandbox that is about to start."""
    try:
        async with asyncio.timeout(_SECONDS), await starting as sandbox:
            await sandbox.run(["sh", "-c", "exit 0"], timeout=_SECONDS / 2)
    except (SandboxFailure, OSError):  # a TimeoutError is an OSError
        return False
    return True
