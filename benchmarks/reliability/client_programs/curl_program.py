"""curl, as in a shell script."""

from __future__ import annotations

import json
import subprocess

from checks import BASE_URL, CALL, HELLO, KEY, MODEL, READ, SCHEMA, check

ASK = {"model": MODEL, "messages": [{"role": "user", "content": "say hello"}], "temperature": 0}


def curl(body: dict[str, object]) -> str:
    command = ["curl", "-sSN", f"{BASE_URL}/chat/completions", "-H", f"Authorization: Bearer {KEY}"]
    command += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def choice(**more: object) -> dict:
    return json.loads(curl(ASK | more))["choices"][0]


def tools() -> bool:
    said = choice(messages=CALL, tools=[READ], tool_choice="required")["message"]
    return said["tool_calls"][0]["function"]["name"] == "read"


def structured() -> bool:
    form = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": SCHEMA}}
    return "ok" in json.loads(choice(response_format=form)["message"]["content"])


check("chat", lambda: choice()["message"]["content"] == HELLO)
check("stream", lambda: curl(ASK | {"stream": True}).rstrip().endswith("data: [DONE]"))
check("tools", tools)
check("structured", structured)
check("logprobs", lambda: choice(logprobs=True)["logprobs"]["content"])
