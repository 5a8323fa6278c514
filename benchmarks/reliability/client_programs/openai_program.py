"""The `openai` package: its plain calls and its parser of structured answers."""

from __future__ import annotations

import json
import math

import openai
from checks import BASE_URL, CALL, HELLO, KEY, MODEL, READ, check
from pydantic import BaseModel

client = openai.OpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0, timeout=60)
ask = {"model": MODEL, "messages": [{"role": "user", "content": "say hello"}], "temperature": 0}


class Verdict(BaseModel):
    ok: bool


def tools() -> bool:
    choice = {"type": "function", "function": {"name": "read"}}
    asked = {**ask, "messages": CALL}
    answer = client.chat.completions.create(**asked, tools=[READ], tool_choice=choice, parallel_tool_calls=False)
    (call,) = answer.choices[0].message.tool_calls
    return call.function.name == "read" and isinstance(json.loads(call.function.arguments), dict)


def logprobs() -> bool:
    entries = client.chat.completions.create(**ask, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    return bool(entries) and all(math.isfinite(one.logprob) and len(one.top_logprobs) == 3 for one in entries)


def stream() -> bool:
    chunks = client.chat.completions.create(**ask, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == HELLO


check("chat", lambda: client.chat.completions.create(**ask).choices[0].message.content == HELLO)
check("stream", stream)
check("tools", tools)
check("structured", lambda: client.chat.completions.parse(**ask, response_format=Verdict).choices[0].message.parsed)
check("logprobs", logprobs)
