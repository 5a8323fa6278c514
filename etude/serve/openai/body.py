"""A request's body off the wire, as JSON: within limits of size, time and memory.

The memory that large bodies take together is bounded: too many at once are refused, not held. What is made of a body
that is not small is made in a thread, one body after the other, so that no other request waits for it. Knows nothing
of what a body says.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from aiohttp import web

from etude.serve.openai.errors import RETRY, ApiError

T = TypeVar("T")

LARGE = 1 << 20  # bytes of a body from which on it is large
ALL_LARGE = 64 << 20  # bytes of large bodies that may be here at once; one always may
# Bytes of a body up to which it is read on the event loop. 400 messages of three words take 9 ms there; 200,000 took
# 4.5 s, and everybody else waited.
SMALL = 1 << 14


class Bodies:
    def __init__(self, limit: int, seconds: float) -> None:
        self.limit = limit  # bytes of one body
        self.seconds = seconds  # for it to arrive, and again for its turn to be read
        self.arriving = 0  # bytes, of all that are large and not read yet
        # One thread: each one more would take its share of the interpreter from the event loop.
        self._reading = ThreadPoolExecutor(1, "bodies")

    async def read(self, request: web.Request, work: Callable[[Any], T]) -> T:
        """What `work` makes of a body's JSON."""
        if request.content_type != "application/json":
            # also keeps web pages of others out: a browser sends this type across origins only if we allow it
            raise ApiError(415, "the body must have the content type application/json", close=True)
        if (request.content_length or 0) > self.limit:
            raise self._too_large()
        # A body that does not say its length, or comes packed, may become as large as is allowed.
        packed = request.content_length is None or "Content-Encoding" in request.headers
        length = self.limit if packed else request.content_length or 0
        reckoned = length if length >= LARGE else 0
        if reckoned and self.arriving and self.arriving + reckoned > ALL_LARGE:
            sentence = "too many large bodies are arriving at once; ask again later"
            raise ApiError(429, sentence, code="busy", headers=RETRY, close=True)
        self.arriving += reckoned
        try:
            data = await self._arrive(request)
            if len(data) <= SMALL:
                return work(parse(data))
            loop = asyncio.get_running_loop()
            try:
                async with asyncio.timeout(self.seconds):
                    return await loop.run_in_executor(self._reading, lambda: work(parse(data)))
            except TimeoutError:
                sentence = "too many large bodies came before this one; ask again later"
                raise ApiError(429, sentence, code="busy", headers=RETRY) from None
        finally:
            self.arriving -= reckoned

    async def _arrive(self, request: web.Request) -> bytes:
        try:
            async with asyncio.timeout(self.seconds):
                return await request.read()
        except TimeoutError:
            sentence = f"the body did not arrive within engine.arrive_seconds = {self.seconds}"
            raise ApiError(408, sentence, code="timeout", close=True) from None
        except web.HTTPRequestEntityTooLarge:
            raise self._too_large() from None
        except web.HTTPException:
            raise
        except (ValueError, web.RequestPayloadError):
            raise ApiError(400, "the body cannot be read: its encoding is broken", close=True) from None

    def _too_large(self) -> ApiError:
        sentence = f"the body is larger than engine.body_bytes = {self.limit}"
        return ApiError(413, sentence, code="body_too_large", close=True)


def parse(data: bytes) -> Any:
    """JSON as the standard has it: no NaN, no half characters."""
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
        if b"\\ud" in data.lower():  # only an escape can spell half of a surrogate pair, which is no text
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ApiError(400, "the body holds half of a surrogate pair, which is no text", code="invalid_json") from None
    except (ValueError, RecursionError) as broken:
        reason = str(broken)[:200]
        raise ApiError(400, f"the body is not JSON ({reason})", code="invalid_json") from None
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")
