"""litellm, which translates for many servers: ours as `openai/NAME`."""

from __future__ import annotations

import json

import litellm
from checks import BASE_URL, CALL, HELLO, KEY, MODEL, READ, SCHEMA, check

litellm.telemetry = False
ask = {
    "model": f"openai/{MODEL}",
    "api_base": BASE_URL,
    "api_key": KEY,
    "messages": [{"role": "user", "content": "say hello"}],
    "temperature": 0,
}


def tools() -> bool:
    asked = {**ask, "messages": CALL}
    answer = litellm.completion(**asked, tools=[READ], tool_choice="required", parallel_tool_calls=False)
    return answer.choices[0].message.tool_calls[0].function.name == "read"


def structured() -> bool:
    form = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": SCHEMA, "strict": True}}
    answer = litellm.completion(**ask, response_format=form)
    return "ok" in json.loads(answer.choices[0].message.content)


def stream() -> bool:
    return "".join(c.choices[0].delta.content or "" for c in litellm.completion(**ask, stream=True)) == HELLO


check("chat", lambda: litellm.completion(**ask).choices[0].message.content == HELLO)
check("stream", stream)
check("tools", tools)
check("structured", structured)
check("logprobs", lambda: litellm.completion(**ask, logprobs=True, top_logprobs=2).choices[0].logprobs.content)
