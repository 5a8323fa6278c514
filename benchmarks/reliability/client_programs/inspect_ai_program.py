"""inspect-ai: evaluations over the provider for OpenAI-compatible servers."""

from __future__ import annotations

import os

from checks import BASE_URL, HELLO, KEY, MODEL, check

os.environ |= {"ETUDE_API_KEY": KEY, "ETUDE_BASE_URL": BASE_URL, "INSPECT_DISPLAY": "none"}

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, ResponseSchema
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import ToolFunction, tool
from inspect_ai.util import json_schema
from pydantic import BaseModel


class Verdict(BaseModel):
    ok: bool


@tool
def read():
    async def execute(path: str, line: int) -> str:
        """Read a file.

        Args:
            path: the file
            line: the line
        """
        return "say hello"

    return execute


def run(target: str, solvers: list, asked: str = "say hello", **config: object):
    task = Task(dataset=[Sample(asked, target=target)], solver=solvers, scorer=includes())
    settings = GenerateConfig(max_tokens=100, **({"temperature": 0} | config))
    (log,) = eval(task, model=f"openai-api/etude/{MODEL}", log_dir="logs", **settings.model_dump(exclude_none=True))
    assert log.status == "success", log.error
    return log


def score(log) -> bool:
    return log.results.scores[0].metrics["accuracy"].value == 1


def tools() -> bool:
    solvers = [use_tools(read(), tool_choice=ToolFunction("read")), generate(tool_calls="single")]
    log = run("", solvers, "call the tool")
    return any(getattr(message, "tool_calls", None) for message in log.samples[0].messages)


def structured() -> bool:
    schema = ResponseSchema(name="verdict", json_schema=json_schema(Verdict))
    log = run("ok", [generate()], response_schema=schema)
    return Verdict.model_validate_json(log.samples[0].output.completion) is not None


check("chat", lambda: score(run(HELLO[:5], [generate()])))
print("CHECK stream does not ask for it", flush=True)
check("tools", tools)
check("structured", structured)
check("logprobs", lambda: run(HELLO[:5], [generate()], logprobs=True).samples[0].output.choices[0].logprobs.content)
