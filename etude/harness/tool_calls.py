"""From the calls of one turn to their observations.

Calls run in their order; neighbours that only read run at the same time. Whatever a call leads to becomes an
observation of a class of the taxonomy, a bug of the tool included: the model chose the call, and a failure that it can
bring about must not cost the rollout its score. A broken sandbox passes through. Knows no policy and no tokens.
"""

from __future__ import annotations

import asyncio
import difflib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from etude.core.policy import Call
from etude.harness.failures import HarnessFailure, PolicyFailure, ToolError
from etude.harness.tool_context import ToolContext
from etude.harness.tools.base import Observation, Tool, nearest, quoted, read_arguments
from etude.harness.tools.table import TOOLS
from etude.sandbox.base import SandboxFailure
from etude.tokens.tokenizer import to_bytes, to_text

BEGIN_SECONDS = 60.0  # of one tool, for a first look at the workspace
GRACE = 30.0  # seconds a tool may take beyond the rollout's own time before it is given up

Approve = Callable[[Call], Awaitable[bool]]


@dataclass(frozen=True)
class Outcome:
    """What became of one call."""

    call: Call
    observation: Observation
    seconds: float


async def begin_tools(tools: Mapping[str, Tool], context: ToolContext) -> None:
    """Lets tools look at the workspace as it is before the first turn; one that cannot says so when it is called."""
    for tool in tools.values():
        try:
            async with asyncio.timeout(BEGIN_SECONDS * context.slowdown()):
                await tool.begin(context)
        except (ToolError, TimeoutError):
            continue
        except SandboxFailure:
            raise
        except Exception as error:  # no call of the model led to it
            raise HarnessFailure(f"the tool {tool.name} cannot begin: {type(error).__name__}: {error}") from error


async def execute(
    calls: Sequence[Call], tools: Mapping[str, Tool], context: ToolContext, approve: Approve | None = None
) -> AsyncGenerator[Outcome, None]:
    """Outcomes in the order of the calls, each as soon as it and those before it are there.

    A call that ends the rollout is the last one: those after it are not run.
    """
    for reads_only, group in groupby(calls, lambda call: call.name in tools and tools[call.name].reads_only):
        waiting = list(group)
        # Calls that change something must see what the one before left.
        batches = [waiting] if reads_only else [[call] for call in waiting]
        for batch in batches:
            for outcome in await _together([_run(call, tools, context, approve) for call in batch]):
                yield outcome
                if outcome.observation.ends:
                    return


async def _together(coroutines: Sequence[Awaitable[Outcome]]) -> list[Outcome]:
    """All of them at once; when one fails, the others are stopped before the failure goes on."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run(call: Call, tools: Mapping[str, Tool], context: ToolContext, approve: Approve | None) -> Outcome:
    started = time.monotonic()
    try:
        tool = _meant(call.name, tools, context.strict)
        arguments = read_arguments(tool, call.arguments, strict=context.strict)
        async with asyncio.timeout(None if tool.samples else max(0.0, context.deadline - started) + GRACE):
            if approve is not None and not await _approved(call, approve):
                raise ToolError("UserAborted", "the user does not want this")
            observation = await tool.call(arguments, context)
        # One form for the same bytes, and an error here, where its tool is known, for what is no text.
        observation = replace(observation, text=to_text(to_bytes(observation.text)))
    except ToolError as error:
        observation = Observation(f"error: {error.text}", error.error)
    except TimeoutError:
        observation = Observation(f"error: {call.name} took too long", "Timeout")
    # Whose doing this was is for the rollout to find out, so it must not become an observation.
    except (SandboxFailure, HarnessFailure, PolicyFailure):
        raise
    except Exception as error:
        # The text of the exception may name places of the host.
        note = f"the tool {call.name} failed: {type(error).__name__}: {error}"
        observation = Observation(f"error: {call.name} failed", "HarnessBug", note=note)
    return Outcome(call, observation, time.monotonic() - started)


async def _approved(call: Call, approve: Approve) -> bool:
    try:
        return await approve(call)
    except TimeoutError:
        raise
    except Exception as error:  # what asks a person is broken, whatever the model called
        raise HarnessFailure(f"nobody could be asked: {type(error).__name__}: {error}") from error


def _meant(name: str, tools: Mapping[str, Tool], strict: bool) -> Tool:
    """The tool of that name; of a name that is near it, where calls need not be exact."""
    if name in tools:
        return tools[name]
    if name in TOOLS:  # one that other environments have: the model is not wrong about the tool, only about the place
        raise ToolError("Unavailable", f"there is no tool {quoted(name)} here; there are {', '.join(tools)}")
    near = [] if strict else difflib.get_close_matches(name[:40].lower(), tools, 1)
    if not near:
        raise ToolError("InvalidArguments", _no_such_tool(name, tools))
    return tools[near[0]]


def _no_such_tool(name: str, tools: Mapping[str, Tool]) -> str:
    return f"there is no tool {quoted(name)}{nearest(name, tools) or '; there are ' + ', '.join(tools)}"
