"""A plain conversation with a served model, in the terminal: a line in, an answer out as it is sampled.

Speaks to any server of OpenAI's interface, `etude serve` first of all. No tools and no sandbox: what the model says is
shown and nothing is done with it. Nothing of it reaches the terminal but printable text.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from rich.console import Console
from rich.text import Text

from etude.core.errors import EtudeError
from etude.rollout.view import printable

KEY = "ETUDE_API_KEY"
SECONDS = 600.0  # for one answer


def is_address(model: str) -> bool:
    return model.startswith(("http://", "https://"))


def base_of(address: str) -> str:
    """The address up to and with its version: http://host:8000 means http://host:8000/v1."""
    bare = address.rstrip("/")
    return bare if bare.endswith("/v1") else f"{bare}/v1"


def served_model(address: str) -> str:
    """The name of the first model that a server lists."""

    async def look() -> Any:
        async with _session() as http:
            return await _json(http.get(f"{base_of(address)}/models"), address)

    listed = asyncio.run(look()).get("data")
    if not isinstance(listed, list) or not listed or not isinstance(listed[0].get("id"), str):
        raise EtudeError(f"the server at {address} lists no model")
    return str(listed[0]["id"])


def talk(address: str, seed: int, quiet: bool) -> dict[str, Any]:
    """Reads lines until the end of input and answers each. Returns what was answered."""
    model, console = served_model(address), Console(highlight=False, soft_wrap=True)
    messages: list[dict[str, Any]] = []
    if sys.stdin.isatty():
        console.print(Text(f"{model} at {address}; end with Ctrl-D", "dim"))
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            break
        if line.strip():
            messages.append({"role": "user", "content": line})
            body = {"model": model, "messages": messages, "seed": seed, "stream": True}
            messages.append(asyncio.run(_answer(address, body, None if quiet else console)))
    return {"model": model, "messages": messages}


async def _answer(address: str, body: dict[str, Any], console: Console | None) -> dict[str, Any]:
    answer = {"reasoning_content": "", "content": ""}
    styles = {"reasoning_content": "italic dim", "content": ""}
    last = stop = ""
    calls: list[str] = []
    async for choice in _choices(address, body):
        delta, stop = choice["delta"], choice.get("finish_reason") or stop
        calls += [str(call["function"]["name"]) for call in delta.get("tool_calls") or [] if _names(call)]
        for name, style in styles.items():
            if delta_text := delta.get(name):
                answer[name] += delta_text
                if console is not None:
                    between = "\n" if last and last != name else ""
                    # A model's answer could hold escape sequences that rewrite the terminal.
                    console.print(Text(between + printable(delta_text), style), end="")
                last = name
    if console is not None:
        if not last:
            console.print(Text(_silence(calls, stop), "dim"), end="")
        console.print()
    return {"role": "assistant", **{name: text for name, text in answer.items() if text or name == "content"}}


def _names(call: Any) -> bool:
    return isinstance(call, dict) and isinstance(call.get("function"), dict) and bool(call["function"].get("name"))


def _silence(calls: list[str], stop: str) -> str:
    """Why nothing was said: an empty line would leave people guessing."""
    if calls:
        tools = ", ".join(printable(name) for name in calls)
        return f"(no text: the model called {tools}; an agent trained on tasks acts, so give it one: --task 0)"
    why = {
        "length": "its turn was cut off at the limit of tokens",
        "stop": "it ended its turn without any; a broken call is not shown",
    }
    return f"(no text: {why.get(stop, f'it stopped by {printable(stop)}' if stop else 'the server sent none')})"


async def _choices(address: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    async with _session() as http:
        try:
            async with http.post(f"{base_of(address)}/chat/completions", json=body) as response:
                if response.status != 200:
                    raise EtudeError(f"the server at {address} refused: {_reason(await response.text())}")
                async for line in response.content:
                    # Keep-alive comments, blank lines and the closing [DONE] are no chunks.
                    if line.startswith(b"data: {"):
                        chunk = json.loads(line[6:])
                        if "error" in chunk:
                            raise EtudeError(f"the server at {address} stopped: {_reason(line[6:].decode())}")
                        for choice in chunk["choices"]:
                            yield choice
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as broken:
            raise EtudeError(f"the server at {address} cannot be understood: {broken!r}") from None


async def _json(asked: Any, address: str) -> Any:
    try:
        async with asked as response:
            text = await response.text()
            if response.status != 200:
                raise EtudeError(f"the server at {address} refused: {_reason(text)}")
            return json.loads(text)
    except (aiohttp.ClientError, TimeoutError, ValueError) as broken:
        raise EtudeError(f"the server at {address} cannot be reached: {broken}") from None


def _reason(text: str) -> str:
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200]


def _session() -> aiohttp.ClientSession:
    key = os.environ.get(KEY)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=SECONDS, sock_connect=10))
