"""The answers to one request while they are made: sampled beside each other, read as they come, ended together.

`Choice` turns the tokens of one answer into pieces; `Answering` runs all choices of a request in the engine and hands
their pieces out in the order in which they come. Whoever stops listening ends the sampling. Knows no JSON.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

from etude.core.policy import Sampling
from etude.engine.logit_rules import LogitRules
from etude.engine.prompt_scores import PromptScores
from etude.engine.request import EngineFailed, Request, Top
from etude.engine.thread import EngineThread, Tokens
from etude.serve.openai.streaming import Delta, Reader

Finish = Literal["stop", "length", "tool_calls"]


@dataclass
class ChoiceDelta:
    """What is new of one choice."""

    delta: Delta
    ids: list[int]
    logprobs: list[float | None]  # None: of a prompt's first token
    tops: list[Top]
    finish: Finish | None = None

    @classmethod
    def empty(cls) -> ChoiceDelta:
        return cls(Delta(), [], [], [])

    def add(self, other: ChoiceDelta) -> None:
        """Takes in what came after it."""
        self.delta.text += other.delta.text
        self.delta.thinking += other.delta.thinking
        self.delta.calls += other.delta.calls
        self.ids += other.ids
        self.logprobs += other.logprobs
        self.tops += other.tops
        self.finish = other.finish or self.finish


@dataclass
class Choice:
    """One answer: the prompt it continues, how it is sampled, and who reads it."""

    index: int  # among all of the request
    number: int  # among those of its prompt
    prompt: tuple[int, ...]
    sampling: Sampling
    reader: Reader
    rules: LogitRules | None = None
    echo: PromptScores | None = None  # the prompt is told as well, with these log-probabilities
    tokens: int = 0  # of the answer so far
    cached_tokens: int = 0  # of the prompt
    called: bool = False
    finished: bool = False
    _held: Tokens = field(default_factory=lambda: Tokens([], [], []))

    def echoed(self, text: str) -> ChoiceDelta:
        """The piece before all others: the prompt itself. The first token has no log-probability."""
        assert self.echo is not None
        missing = len(self.prompt) - len(self.echo.logprobs)
        logprobs: list[float | None] = [None] * missing + list(self.echo.logprobs)
        return ChoiceDelta(Delta(text), list(self.prompt), logprobs, [()] * missing + list(self.echo.tops))

    def read(self, tokens: Tokens) -> ChoiceDelta:
        self.cached_tokens = tokens.cached_tokens
        delta = self.reader.take(tokens.ids)
        piece = self._piece(delta, tokens)
        if self.reader.stopped:
            piece.finish, self.finished = "stop", True
        return piece

    def end(self, request: Request) -> ChoiceDelta:
        """The last piece, when the engine has sampled all."""
        piece = self._piece(self.reader.end(), Tokens([], [], []))
        self.finished = True
        if request.stop == "length" and not self.reader.stopped:
            piece.finish = "length"
        else:
            piece.finish = "tool_calls" if self.called and not self.reader.stopped else "stop"
        return piece

    def _piece(self, delta: Delta, tokens: Tokens) -> ChoiceDelta:
        """With the tokens that the reader has read: those that it still looks at may lie behind a stop text."""
        self.called = self.called or bool(delta.calls)
        self._held = join([self._held, tokens]) if self._held.ids else tokens
        count = self.reader.used - self.tokens
        self.tokens = self.reader.used
        ids, logprobs, tops, *_ = self._held
        self._held = Tokens(ids[count:], logprobs[count:], tops[count:])
        return ChoiceDelta(delta, ids[:count], list(logprobs[:count]), tops[:count])


class Answering:
    """Use as a context: entering asks the engine, leaving ends whatever still runs."""

    def __init__(self, engine: EngineThread, choices: Sequence[Choice], *, follow: bool) -> None:
        self.first: float | None = None  # when the first token came, by the monotonic clock
        self._engine, self._choices, self._follow = engine, choices, follow
        self._news: dict[int, list[Tokens]] = {choice.index: [] for choice in choices}
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[Request]] = []

    async def __aenter__(self) -> Self:
        for choice in self._choices:
            task = asyncio.create_task(self._sample(choice))
            task.add_done_callback(lambda _: self._wake.set())
            self._tasks.append(task)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def pieces(self) -> AsyncIterator[tuple[Choice, ChoiceDelta]]:
        """What is new, as it comes; what comes while nobody asks is put together."""
        open_choices = list(self._choices)
        while open_choices:
            await self._wake.wait()
            self._wake.clear()
            for choice in list(open_choices):
                task = self._tasks[choice.index]
                # Asked before tokens are taken: a request that is done has handed over all of them.
                done = task.done()
                if done and (failed := task.exception()) is not None:
                    raise failed
                if (tokens := self._take(choice)) is not None:
                    yield choice, choice.read(tokens)
                if done and not choice.finished:
                    yield choice, choice.end(task.result())
                if choice.finished:
                    # A stop text may have ended it: the engine must not sample on.
                    task.cancel()
                    open_choices.remove(choice)

    async def _sample(self, choice: Choice) -> Request:
        def listen(tokens: Tokens) -> None:
            self.first = self.first or time.monotonic()
            self._news[choice.index].append(tokens)
            self._wake.set()

        request = await self._engine.generate(
            choice.prompt, choice.sampling, listen=listen if self._follow else None, rules=choice.rules
        )
        if request.error is not None:
            raise EngineFailed(request.error)
        if not self._follow:
            listen(Tokens(request.sampled, request.logprobs, request.tops, request.cached_tokens))
        return request

    def _take(self, choice: Choice) -> Tokens | None:
        news, self._news[choice.index] = self._news[choice.index], []
        return join(news) if news else None


def join(parts: Sequence[Tokens]) -> Tokens:
    if len(parts) == 1:
        return parts[0]
    joined = Tokens([], [], [], parts[-1].cached_tokens)
    for part in parts:
        joined.ids.extend(part.ids)
        joined.logprobs.extend(part.logprobs)
        joined.tops.extend(part.tops)
    return joined
