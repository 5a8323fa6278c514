"""A `Policy` behind an OpenAI-compatible address: a context in, a sample out.

With token ids where both sides have them (vLLM's `return_token_ids`, and our own server's): such samples can be trained
on, and an answer whose counts disagree is refused. Otherwise messages: native tool calls, or calls spelled in the text.
Never imports torch, and never turns text into ids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from etude.core.errors import EtudeError
from etude.core.policy import Context, ContextOverflow, Sample, Sampling, StopReason, Version
from etude.core.settings import EndpointSettings
from etude.policies.endpoint.limits import Cost
from etude.policies.endpoint.messages import WriteTurn, native_messages, native_tools, read_message, text_messages
from etude.policies.endpoint.transport import Transport
from etude.tokens.dialect import ToolSchema

BYTES_PER_TOKEN = 3  # of a prompt whose tokens nobody counted, rather too few than too many

STOPS: dict[str, StopReason] = {"length": "length", "max_tokens": "length", "abort": "abort"}


class EndpointPolicy:
    """Asks an endpoint. `write_turn` spells a turn as the harness reads it; `tools` are sent with `form = "tools"`.

    `decode` makes the text of sampled ids, in the place of the server's; `version` is what every sampled token is said
    to come from, for servers whose weights do not change.
    """

    def __init__(
        self,
        settings: EndpointSettings,
        *,
        write_turn: WriteTurn,
        tools: Sequence[ToolSchema] = (),
        decode: Callable[[Sequence[int]], str] | None = None,
        version: Version | None = None,
        transport: Transport | None = None,
    ) -> None:
        self.settings = settings
        self.write_turn = write_turn
        self.tools = tuple(tools)
        self.decode = decode
        self.version = version
        self.transport = transport or Transport(settings)
        self._most = settings.max_model_len or None  # tokens of a context; 0: the server does not say

    async def sample(self, context: Context, sampling: Sampling) -> Sample:
        if context.ids is not None and self.settings.ids:
            return await self._sample_ids(context.ids, sampling)
        if not context.messages:
            raise EtudeError(
                "the endpoint needs messages, or token ids with endpoint.ids = true; the context has neither"
            )
        return await self._sample_messages(context, sampling)

    @property
    def spent(self) -> dict[str, float]:
        budget = self.transport.budget
        return {
            "requests": budget.requests,
            "prompt_tokens": budget.prompt_tokens,
            "sampled_tokens": budget.sampled_tokens,
            "money": budget.money,
        }

    async def close(self) -> None:
        await self.transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _sample_ids(self, ids: tuple[int, ...], sampling: Sampling) -> Sample:
        if most := await self._context():
            if len(ids) >= most:
                told = f"takes {most} tokens, and the prompt alone has {len(ids)}"
                raise ContextOverflow(f"the endpoint {self.settings.url} {told}", most, len(ids))
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens, most - len(ids)))
        body = self._body(sampling, "max_tokens") | {"prompt": list(ids), "logprobs": 0, "return_token_ids": True}
        if sampling.stop_ids:
            body["stop_token_ids"] = list(sampling.stop_ids)
        answer = await self._post("/completions", body, Cost(len(ids), sampling.max_tokens))
        choice = self._choice(answer)
        sampled = choice.get("token_ids")
        if not isinstance(sampled, list) or not sampled:
            raise self._broken(
                "it gives no token_ids: serve the model with vLLM or etude serve, or set endpoint.ids=false"
            )
        if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in sampled):
            raise self._broken("its token_ids are not all token ids")
        if len(sampled) > sampling.max_tokens:
            raise self._broken(f"it gives {len(sampled)} tokens where at most {sampling.max_tokens} were asked for")
        asked = choice.get("prompt_token_ids", answer.get("prompt_token_ids"))
        # A server may put a token before the prompt. What it samples then is no answer to our ids.
        if asked is not None and asked != list(ids):
            raise self._broken("it answers another prompt than the one sent")
        logprobs = self._logprobs(choice, len(sampled))
        # A server that does not know these stop ids samples on; our engine stops at the first of them.
        ends = (place for place, token in enumerate(sampled, 1) if token in sampling.stop_ids)
        end, stop = next(ends, None), _stop(choice)
        if end is not None:
            sampled, logprobs, stop = sampled[:end], logprobs[:end], "stop"
        # Raw log-probabilities are those of what was sampled from only where nothing bends the distribution.
        exact = self.settings.logprobs == "sampled" or (
            sampling.temperature == 1 and sampling.top_p == 1 and not sampling.top_k
        )
        return Sample(
            text=self.decode(sampled) if self.decode else _text(choice.get("text")),
            stop=stop,
            ids=tuple(sampled),
            logprobs=logprobs if exact else None,
            versions=(self.version,) * len(sampled) if self.version is not None else None,
            cached_tokens=_cached(answer),
        )

    async def _sample_messages(self, context: Context, sampling: Sampling) -> Sample:
        most = await self._context()
        wanted = min(sampling.max_tokens, most - 1) if most else sampling.max_tokens
        body = self._body(replace(sampling, max_tokens=wanted), self.settings.max_tokens_field)
        if self.settings.form == "tools":
            body["messages"] = native_messages(context.messages, self.tools, self.settings)
            if self.tools:
                body["tools"] = native_tools(self.tools)
        else:
            body["messages"] = text_messages(context.messages, self.write_turn)
        size = len(str(body["messages"])) + len(str(body.get("tools", "")))
        prompt = -(-size // BYTES_PER_TOKEN)
        try:
            answer = await self._post("/chat/completions", body, Cost(prompt, wanted))
        except ContextOverflow as overflow:
            # Nobody here can count the prompt. The server did: a shorter answer may fit beside it.
            room = (overflow.most or most) - (overflow.prompt or prompt)
            if not 0 < room < wanted:
                raise
            body[self.settings.max_tokens_field] = room
            answer = await self._post("/chat/completions", body, Cost(prompt, room))
        choice = self._choice(answer)
        message = choice.get("message")
        if not isinstance(message, dict):
            raise self._broken("its choice has no message")
        try:
            text = read_message(message, self.write_turn)
        except EtudeError as wrong:
            raise self._broken(str(wrong)) from None
        return Sample(text=text, stop=_stop(choice), cached_tokens=_cached(answer))

    async def _context(self) -> int:
        """Tokens that prompt and answer may have together; 0 where neither the settings nor the server say."""
        if self._most is None:
            listed = await self.transport.models()
            if listed is None:
                return 0  # not reached: asked again before the next sample
            told = [entry.get("max_model_len") for entry in listed if entry.get("id") == self.settings.model]
            self._most = next((one for one in told if isinstance(one, int) and one > 1), 0)
        return self._most

    def _body(self, sampling: Sampling, longest: str) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.settings.model,
            longest: sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
        }
        return body | ({"top_k": sampling.top_k} if sampling.top_k else {})

    async def _post(self, path: str, body: dict[str, Any], worst: Cost) -> dict[str, Any]:
        body = {key: value for key, value in (body | self.settings.extra).items() if key not in self.settings.omit}
        return await self.transport.post(path, body, worst)

    def _choice(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        choices = answer.get("choices")
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise self._broken("it does not have one choice")
        choice: dict[str, Any] = choices[0]
        if choice.get("finish_reason") == "content_filter":
            raise self._broken("its content filter withheld the answer")
        return choice

    def _logprobs(self, choice: Mapping[str, Any], count: int) -> tuple[float, ...]:
        held = choice.get("logprobs")
        values = held.get("token_logprobs") if isinstance(held, dict) else None
        if not isinstance(values, list):
            raise self._broken("it gives token ids without log-probabilities")
        if len(values) != count:
            raise self._broken(f"it gives {count} tokens and {len(values)} log-probabilities")
        for value in values:
            if (
                not isinstance(value, int | float)
                or isinstance(value, bool)
                or not math.isfinite(value)
                or value > 1e-3
            ):
                raise self._broken("a log-probability is not one")
        return tuple(float(value) for value in values)

    def _broken(self, said: str) -> EtudeError:
        return EtudeError(f"the answer of the endpoint {self.settings.url} cannot be used: {said}")


def _stop(choice: Mapping[str, Any]) -> StopReason:
    reason = choice.get("finish_reason")
    return STOPS.get(reason, "stop") if isinstance(reason, str) else "stop"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _cached(answer: Mapping[str, Any]) -> int:
    usage = answer.get("usage")
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return cached if isinstance(cached, int) and cached > 0 else 0
