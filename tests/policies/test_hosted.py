"""Hosted models in the real harness: a server that knows the answers, asked by the commands' own functions."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from typer.testing import CliRunner

from etude.bench.runner import bench_hosted
from etude.cli.main import app
from etude.core import recipe
from etude.core.errors import EtudeError
from etude.core.policy import Assistant
from etude.core.settings import EndpointSettings
from etude.forge.katas.task_source import Katas
from etude.harness.prompt import task_text
from etude.harness.text_turns import write_turn
from etude.harness.tools.table import build_tools
from etude.policies.scripted import reference
from etude.policies.table import hosted_policy
from etude.tasks.format.task import Task

SOURCE = Katas(Katas.Settings(split="held_out"))


class Host:
    """Answers the first held-out tasks as the reference would; `bodies` is what it was asked."""

    def __init__(self) -> None:
        self.tasks: list[Task] = list(islice(SOURCE.tasks(), 2))
        self.scripts = {task_text(task.instruction): reference(task, 3) for task in self.tasks}
        self.bodies: list[dict[str, Any]] = []
        self.address = ""
        self._loop = asyncio.new_event_loop()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        asked = next(message["content"] for message in body["messages"] if message["role"] == "user")
        said = sum(message["role"] == "assistant" for message in body["messages"])
        turn: Assistant = self.scripts[asked][said]
        message: dict[str, Any] = {"role": "assistant", "content": write_turn(turn)}
        if "tools" in body:
            calls = [
                {
                    "id": f"c{number}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
                }
                for number, call in enumerate(turn.calls)
            ]
            message = {"role": "assistant", "content": turn.final, "reasoning": turn.thinking, "tool_calls": calls}
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        return web.json_response({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})

    def run(self, ready: threading.Event) -> None:
        async def start() -> None:
            app = web.Application()
            app.router.add_post("/v1/chat/completions", self.answer)
            self.runner = web.AppRunner(app)
            await self.runner.setup()
            await web.TCPSite(self.runner, "127.0.0.1", 0).start()
            self.address = f"openai:http://127.0.0.1:{self.runner.addresses[0][1]}/v1?model=m"
            ready.set()

        self._loop.run_until_complete(start())
        self._loop.run_forever()
        self._loop.run_until_complete(self.runner.cleanup())
        self._loop.close()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


@pytest.fixture
def host() -> Iterator[Host]:
    made, ready = Host(), threading.Event()
    thread = threading.Thread(target=made.run, args=(ready,))
    thread.start()
    assert ready.wait(20)
    yield made
    made.stop()
    thread.join(20)


def etude(*arguments: object) -> dict[str, Any]:
    """The answer of a command, in this process."""
    answer = CliRunner().invoke(app, [*map(str, arguments), "--json"], catch_exceptions=False)
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("form", ["text", "tools"])
def test_a_hosted_model_solves_a_task(host: Host, tmp_path: Path, form: str) -> None:
    host.tasks[0].save(tmp_path / "task")
    found = etude("rollout", tmp_path / "task", f"endpoint.form={form}", "--policy", host.address)
    assert found["passed"] is True and found["reward"] == 1
    assert found["spent"]["requests"] == len(host.bodies) and found["spent"]["sampled_tokens"] == 10 * len(host.bodies)
    system = host.bodies[0]["messages"][0]["content"]
    if form == "tools":
        assert {tool["function"]["name"] for tool in host.bodies[0]["tools"]} >= {"read", "edit", "finish"}
        assert "<tool_call>" not in system
    else:
        assert "tools" not in host.bodies[0] and "<tool_call>" in system


def test_a_hosted_model_is_benchmarked_on_the_tasks_of_a_recipe(host: Host, tmp_path: Path) -> None:
    saved = tmp_path / "hosted.json"
    changes = ["bench.count=2", "bench.samples=1", "endpoint.form=tools"]
    found = etude("bench", tmp_path, *changes, "--policy", host.address, "--save", saved)
    assert found["pass@1"][0] == 1 and found["model"] == host.address and found["spent"]["requests"] == len(host.bodies)
    again = etude("bench", tmp_path, *changes, "--policy", host.address, "--against", saved)
    assert again["gain"][0] == 0
    refused = etude("bench", tmp_path, "--policy", "openai:nowhere")
    assert "endpoint.url is 'nowhere'; it must look like https://host/v1" in refused["error"]
    with pytest.raises(EtudeError, match="a benchmark takes a hosted model such as openai:"):
        bench_hosted("reference", recipe.load(None), backend="local")


def test_the_name_of_a_hosted_policy_says_where_and_which() -> None:
    tools = build_tools(recipe.load(None).harness.tools)
    settings = EndpointSettings(url="http://elsewhere/v1", model="other")
    made = hosted_policy("openai:http://127.0.0.1:9/v1?model=a/b+c", settings, tools)
    assert (made.settings.url, made.settings.model) == ("http://127.0.0.1:9/v1", "a/b+c")
    assert hosted_policy("openai", settings, tools).settings == settings
    with pytest.raises(EtudeError, match=r"takes no 'key': set endpoint.key instead"):
        hosted_policy("openai:http://h/v1?key=secret", settings, tools)
    with pytest.raises(EtudeError, match=r"endpoint.model is empty"):
        hosted_policy("openai:http://h/v1", EndpointSettings(), tools)
