"""A request's body, checked, as plain values: what is asked, how to sample it, and how to say the answer.

Everything that can be refused without a tokenizer is refused here. Knows no HTTP and no engine.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any

from etude.core.policy import Sampling
from etude.engine.request import COLDEST
from etude.serve.openai.errors import Refusal
from etude.serve.openai.schema import MOST_PROMPTS, Table
from etude.serve.openai.validate import check

LEAST_TOP_P = 1e-6  # the likeliest token alone, whatever 0 would mean
COMPLETION_TOKENS = 16  # what /v1/completions samples when nobody says


@dataclass(frozen=True)
class Ask:
    """What both routes have in common."""

    sampling: Sampling  # of choice 0; `max_tokens` is 0 where the context alone is the limit
    n: int
    stops: tuple[str, ...]
    ignore_eos: bool
    stream: bool
    include_usage: bool
    logprobs: bool
    token_ids: bool

    def sampling_of(self, choice: int) -> Sampling:
        return replace(self.sampling, seed=self.sampling.seed + choice)


@dataclass(frozen=True)
class ChatAsk(Ask):
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]  # none where tool_choice is "none"
    required: bool  # the answer must call a tool
    parallel: bool  # more than one call may be told


@dataclass(frozen=True)
class CompletionAsk(Ask):
    prompts: list[str | list[int]]


def read_chat(body: Any, table: Table) -> ChatAsk:
    _check(body, table)
    limits = [body[name] for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    top = body.get("top_logprobs") or 0
    tools, choice = body.get("tools") or [], body.get("tool_choice") or "auto"
    if choice == "required" and not tools:
        raise Refusal(400, "'tool_choice' is \"required\", but there are no 'tools'", param="tool_choice")
    names = [tool["function"]["name"] for tool in tools]
    if len(set(names)) < len(names):
        raise Refusal(400, "'tools' has two functions of one name", param="tools")
    common = _common(body, min(limits, default=0), top, bool(body.get("logprobs") or top))
    return ChatAsk(
        **vars(common),
        messages=body["messages"],
        tools=tools if choice != "none" else [],
        required=choice == "required",
        parallel=body.get("parallel_tool_calls") is not False,
    )


def read_completion(body: Any, table: Table) -> CompletionAsk:
    _check(body, table)
    said, top = body["prompt"], body.get("logprobs")
    several = isinstance(said, list) and not isinstance(said[0], int | float)
    prompts = [[int(token) for token in p] if isinstance(p, list) else p for p in (said if several else [said])]
    common = _common(body, body.get("max_tokens") or COMPLETION_TOKENS, top or 0, top is not None)
    if len(prompts) * common.n > MOST_PROMPTS:
        raise Refusal(400, f"'n' answers to each prompt are more than {MOST_PROMPTS} in all", param="n")
    return CompletionAsk(**vars(common), prompts=prompts)


def _check(body: Any, table: Table) -> None:
    known = table["properties"]["model"]["enum"][0]
    model = body.get("model") if isinstance(body, dict) else None
    if isinstance(model, str) and model != known:
        said = ascii(model) if len(model) <= 64 else "of that name"
        raise Refusal(
            404, f"there is no model {said}; this server has {known!r}", param="model", code="model_not_found"
        )
    check(body, table)


def _common(body: dict[str, Any], max_tokens: float, top: float, logprobs: bool) -> Ask:
    stop = body.get("stop") or []
    seed = body.get("seed")
    temperature = _or(body.get("temperature"), 1.0)
    sampling = Sampling(
        max_tokens=int(max_tokens),
        temperature=float(temperature) if temperature >= COLDEST else 0.0,
        top_p=max(float(_or(body.get("top_p"), 1.0)), LEAST_TOP_P),
        top_k=max(0, int(_or(body.get("top_k"), 0))),
        seed=int(seed) if seed is not None else secrets.randbits(63),
        stop_ids=tuple(int(token) for token in body.get("stop_token_ids") or ()),
        top_logprobs=int(top),
    )
    return Ask(
        sampling=sampling,
        n=int(_or(body.get("n"), 1)),
        stops=(stop,) if isinstance(stop, str) else tuple(stop),
        ignore_eos=bool(body.get("ignore_eos")),
        stream=bool(body.get("stream")),
        include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        logprobs=logprobs,
        token_ids=bool(body.get("return_token_ids")),
    )


def _or(value: Any, default: float) -> Any:
    return default if value is None else value
