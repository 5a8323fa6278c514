"""pydantic-ai: agents with plain, structured and tool output."""

from __future__ import annotations

import asyncio
import contextlib

from checks import BASE_URL, HELLO, KEY, MODEL, check
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, UnexpectedModelBehavior
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Verdict(BaseModel):
    ok: bool


model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE_URL, api_key=KEY))
cold = {"temperature": 0.0}


def tools() -> bool:
    """The agent's loop: the model calls `read` by heart, and is shown what came back."""
    agent, seen = Agent(model, model_settings=cold, retries=3), []

    @agent.tool_plain
    def read(path: str, line: int) -> str:
        seen.append((path, line))
        return "say hello"

    @agent.tool_plain
    def bash(command: str) -> str:
        return "say hello"

    # What the model says to a result it never saw in training is nobody's promise: the loop itself is what counts.
    with contextlib.suppress(UnexpectedModelBehavior):
        agent.run_sync("call the tool")
    return seen[:1] == [("a.py", 3)]


async def stream() -> bool:
    async with Agent(model, model_settings=cold).run_stream("say hello") as result:
        return await result.get_output() == HELLO


def logprobs() -> bool:
    settings = {"temperature": 0.0, "openai_logprobs": True, "openai_top_logprobs": 2}
    result = Agent(model, model_settings=settings).run_sync("say hello")
    return bool(result.all_messages()[-1].provider_details["logprobs"])


check("chat", lambda: Agent(model, model_settings=cold).run_sync("say hello").output == HELLO)
check("stream", lambda: asyncio.run(stream()))
check("tools", tools)
check(
    "structured",
    lambda: isinstance(Agent(model, output_type=NativeOutput(Verdict)).run_sync("say hello").output, Verdict),
)
check("logprobs", logprobs)
