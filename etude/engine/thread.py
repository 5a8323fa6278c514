"""The engine in a thread of its own, and the one queue through which an event loop reaches it.

The thread steps the engine and runs jobs between two steps. Everything that touches the engine is a job, so the engine
needs no lock. Who wants to read along gets the new tokens after every step, all readers in one message to the event
loop; nobody waits for a reader. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch

from etude.core.errors import EtudeError
from etude.core.policy import Sampling, Version
from etude.engine.engine import Engine
from etude.engine.logit_rules import LogitRules
from etude.engine.request import EngineGone, Request, Top
from etude.model.torch_process import prepare

T = TypeVar("T")
Job = Callable[[Engine], None]


class Tokens(NamedTuple):
    """What a request sampled since its reader last heard of it."""

    ids: list[int]
    logprobs: list[float]
    tops: list[Top]  # empty unless the request asks for them
    cached_tokens: int = 0  # of the prompt, found in the prefix cache
    versions: Sequence[Version] = ()  # the weights that sampled each


Listen = Callable[[Tokens], None]


@dataclass
class _Reader:
    request: Request
    listen: Listen
    every: int = 1  # steps, or tokens, after which they are handed over; of several, the last come with the answer
    sent: int = 0  # tokens handed over so far

    def news(self, step: int) -> Tokens | None:
        sampled, sent = len(self.request.logprobs), self.sent
        # All who hear after so many steps hear after the same ones: a message for many costs little more than for one.
        # A step with drafts may give several tokens: as many as that are handed over at once.
        if sampled == sent or (step % self.every and sampled - sent < self.every):
            return None
        if self.request.stop is not None and self.every > 1:
            return None
        self.sent = sampled
        ids = self.request.tokens[len(self.request.prompt) + sent :]
        logprobs, tops, versions = self.request.logprobs, self.request.tops, self.request.versions
        return Tokens(ids, logprobs[sent:], tops[sent:], self.request.cached_tokens, versions[sent:])


class EngineThread:
    """Owns the engine: nobody else touches it. Runs jobs between steps and hands finished requests back."""

    def __init__(self, engine: Engine) -> None:
        self.crash: BaseException | None = None
        self.ended = asyncio.Event()
        self.turned = time.monotonic()  # when the thread last came round
        self._engine = engine
        self._threads = torch.get_num_threads()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._open: set[asyncio.Future[Any]] = set()  # every future that somebody awaits
        self._answers: dict[int, asyncio.Future[Request]] = {}  # of requests in the engine, used in its thread only
        self._readers: dict[int, _Reader] = {}  # of requests that somebody reads along, used in its thread only
        self._steps = 0  # after which readers were looked for, used in its thread only
        self._numbers: dict[str, int] = {}  # names that clients gave their requests, used in its thread only
        # a daemon: a step that hangs must not keep the process from ending
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        return len(self._open)

    async def call(self, work: Callable[[Engine], T]) -> T:
        """Runs `work` between two steps and returns what it returned."""
        done: asyncio.Future[T] = self._future()

        def job(engine: Engine) -> None:
            try:
                result = work(engine)
            # Refusals go back to who asked. Anything else is a bug of ours, and ends the thread (`_run`).
            except EtudeError as refused:
                self._settle([(done, refused)])
            else:
                self._settle([(done, result)])

        self._jobs.put(job)
        return await done

    async def generate(
        self,
        ids: tuple[int, ...],
        sampling: Sampling,
        name: str | None = None,
        listen: Listen | None = None,
        routed: int = 0,
        version: Version | None = None,
        rules: LogitRules | None = None,
        every: int = 1,
    ) -> Request:
        """Samples an answer. Cancelling this (a client that left, a deadline) aborts the request.

        `listen` is called on the event loop with the tokens in order, before this returns: after each step, or after
        `every` so many, and then not with the last, which the answer has.
        """
        done: asyncio.Future[Request] = self._future()
        numbers: list[int] = []

        def submit(engine: Engine) -> None:
            # Its client left while it was still in the queue.
            if done.cancelled():
                return
            try:
                if name is not None and name in self._numbers:
                    raise EtudeError(f"a request called {name!r} is already here; give each its own id")
                request = engine.submit(ids, sampling, routed, version, rules)
            except EtudeError as refused:
                self._settle([(done, refused)])
                return
            numbers.append(request.number)
            self._answers[request.number] = done
            if listen is not None:
                self._readers[request.number] = _Reader(request, listen, every)
            if name is not None:
                self._numbers[name] = request.number

        def leave(engine: Engine) -> None:
            for number in numbers:  # none if it was refused
                engine.abort(number)
                self._answers.pop(number, None)
                self._readers.pop(number, None)
                if name is not None:
                    del self._numbers[name]

        self._jobs.put(submit)
        try:
            return await done
        finally:
            # In every case: the name has to be free again, and aborting a finished request does nothing.
            self._jobs.put(leave)

    async def abort(self, name: str) -> bool:
        """Ends a request that a client named; whoever waits for it gets what was sampled so far."""

        def work(engine: Engine) -> bool:
            request = engine.abort(self._numbers.get(name, -1))
            if request is not None:
                # An aborted request is not among those that a later step reports, so it is answered here.
                self._answer([request])
            return request is not None

        return await self.call(work)

    async def running(self) -> dict[str, tuple[int, int]]:
        """Of each request that a client named: tokens sampled so far, and handed over to whoever reads along."""

        def work(engine: Engine) -> dict[str, tuple[int, int]]:
            return {
                name: (engine.sampled(number), self._readers[number].sent if number in self._readers else 0)
                for name, number in self._numbers.items()
            }

        return await self.call(work)

    async def stop(self) -> None:
        """Ends the thread after the step it is in; whoever still waits gets an error."""
        self._jobs.put(None)
        # With a limit: the thread may hang in a step, and as a daemon it does not keep the process alive.
        await asyncio.to_thread(self._thread.join, timeout=30)
        self._fail(EngineGone("the engine was stopped before it answered"))

    def _run(self) -> None:
        try:
            prepare(self._threads)  # thread count and denormals are settings of a thread
            while self._work_off(wait=not self._engine.busy):
                self._answer(self._engine.step())
                self.turned = time.monotonic()
        # Whatever ends the thread, those who wait have to hear of it: nobody else will.
        except BaseException as crash:
            self.crash = crash
            self._loop.call_soon_threadsafe(self._fail, EngineGone(f"the engine crashed: {crash!r}"))
        finally:
            self._loop.call_soon_threadsafe(self.ended.set)

    def _work_off(self, wait: bool) -> bool:
        """Runs the jobs that are there; with nothing to compute it waits for one. False when it is to stop."""
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._jobs.get(block=wait)
                if job is None:
                    return False
                job(self._engine)
                wait = False
        return True

    def _answer(self, finished: list[Request]) -> None:
        # Tokens and results go over in one call, tokens first: a reader has all of them when the answer comes.
        self._steps += 1
        news = [(reader.listen, new) for reader in self._readers.values() if (new := reader.news(self._steps))]
        for request in finished:
            self._readers.pop(request.number, None)
        if finished or news:
            # whoever left while the end of its request was under way is not there any more
            awaited = [(self._answers.pop(request.number, None), request) for request in finished]
            self._settle([(done, request) for done, request in awaited if done is not None], news)

    def _settle(
        self, results: list[tuple[asyncio.Future[Any], Any]], news: Sequence[tuple[Listen, Tokens]] = ()
    ) -> None:
        """From the engine's thread: hands tokens and results, or the errors among them, to those in the other."""

        def settle() -> None:
            for listen, tokens in news:
                listen(tokens)
            for done, result in results:
                if done.done():  # its client has left
                    continue
                if isinstance(result, EtudeError):
                    done.set_exception(result)
                else:
                    done.set_result(result)

        # one wake-up of the event loop for a whole step, whatever the number of its readers
        self._loop.call_soon_threadsafe(settle)

    def _future(self) -> asyncio.Future[Any]:
        if self.ended.is_set() or self.crash is not None:
            raise EngineGone(f"the engine crashed: {self.crash!r}" if self.crash else "the engine was stopped")
        done = self._loop.create_future()
        self._open.add(done)
        done.add_done_callback(self._open.discard)
        return done

    def _fail(self, error: EtudeError) -> None:
        for done in list(self._open):
            if not done.done():
                done.set_exception(error)
