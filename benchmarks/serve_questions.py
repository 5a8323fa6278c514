"""Questions for a server, and what it said: whole answers and streams in one form, so that they can be compared.

Owns `Question` and `Said`. Knows no connection and no server.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from serve_tiny import NAME, TEXT, TOOLS


@dataclass(frozen=True)
class Question:
    path: str
    body: dict[str, Any]

    @property
    def greedy(self) -> bool:
        return self.body["temperature"] == 0


def questions(seed: int, count: int) -> list[Question]:
    chance = random.Random(seed)
    words = TEXT.split()
    made = []
    for number in range(count):
        text = " ".join(chance.choices(words, k=chance.randint(1, 20)))
        common: dict[str, Any] = {
            "model": NAME,
            "seed": number,
            "temperature": chance.choice((0, 0, 0.7, 1)),
            "max_tokens": chance.randint(5, 60),
            "return_token_ids": True,
            "logprobs": True,
        }
        if chance.random() < 0.3:
            common["stop"] = chance.choice((["h"], ["ll", "wör"], ["€ 🎉"], ["zzz", " "]))
        if chance.random() < 0.2:
            common["n"] = 2
        if chance.random() < 0.5:
            common["logprobs"] = 2
            prompt: Any = (
                text if chance.random() < 0.5 else [chance.randrange(300) for _ in range(chance.randint(1, 90))]
            )
            made.append(Question("/v1/completions", common | {"prompt": prompt, "ignore_eos": chance.random() < 0.5}))
        else:
            said = chance.choice((text, "say hello", "call the tool"))
            body = common | {"messages": [{"role": "user", "content": said}], "top_logprobs": 2}
            made.append(Question("/v1/chat/completions", body | ({"tools": TOOLS} if chance.random() < 0.6 else {})))
    return made


Said = dict[int, dict[str, Any]]  # by choice: what must be equal


def whole_said(body: dict[str, Any]) -> Said:
    said: Said = {}
    for choice in body["choices"]:
        message = choice.get("message", choice)
        said[choice["index"]] = {
            "text": message.get("content", message.get("text")) or "",
            "thinking": message.get("reasoning_content") or "",
            "calls": [
                (call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])
            ],
            "ids": choice["token_ids"],
            "finish": choice["finish_reason"],
        }
    return said


def add_chunk(said: Said, chunk: dict[str, Any]) -> None:
    for choice in chunk["choices"]:
        empty = {"text": "", "thinking": "", "calls": [], "ids": [], "finish": None}
        entry = said.setdefault(choice["index"], empty)
        delta = choice.get("delta", choice)
        entry["text"] += delta.get("content", delta.get("text")) or ""
        entry["thinking"] += delta.get("reasoning_content") or ""
        entry["ids"] += choice.get("token_ids") or []
        entry["finish"] = choice["finish_reason"] or entry["finish"]
        for call in delta.get("tool_calls", []):
            if "id" in call:
                entry["calls"].append((call["function"]["name"], ""))
            name, arguments = entry["calls"][call["index"]]
            entry["calls"][call["index"]] = (name, arguments + call["function"].get("arguments", ""))
