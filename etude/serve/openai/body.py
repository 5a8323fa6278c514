"""A request's body off the wire, as JSON: within limits of size, time and memory.

The memory that large bodies take together while they arrive is bounded: too many at once are refused, not held. Knows
nothing of what a body says.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web

from etude.serve.openai.errors import RETRY, ApiError

LARGE = 1 << 20  # bytes of a body from which on it is large
ALL_LARGE = 64 << 20  # bytes of large bodies that may be arriving at once; one always may


class Bodies:
    def __init__(self, limit: int, seconds: float) -> None:
        self.limit = limit  # bytes of one body
        self.seconds = seconds  # for it to arrive
        self.arriving = 0  # bytes, of all that are large

    async def json(self, request: web.Request) -> Any:
        if request.content_type != "application/json":
            # also keeps web pages of others out: a browser sends this type across origins only if we allow it
            raise ApiError(415, "the body must have the content type application/json", close=True)
        if (request.content_length or 0) > self.limit:
            raise self._too_large()
        # A body that does not say its length may become as large as is allowed.
        length = request.content_length if request.content_length is not None else self.limit
        reckoned = length if length >= LARGE else 0
        if reckoned and self.arriving and self.arriving + reckoned > ALL_LARGE:
            sentence = "too many large bodies are arriving at once; ask again later"
            raise ApiError(429, sentence, code="busy", headers=RETRY, close=True)
        self.arriving += reckoned
        try:
            async with asyncio.timeout(self.seconds):
                data = await request.read()
        except TimeoutError:
            sentence = f"the body did not arrive within engine.arrive_seconds = {self.seconds}"
            raise ApiError(408, sentence, code="timeout", close=True) from None
        except web.HTTPRequestEntityTooLarge:
            raise self._too_large() from None
        except web.HTTPException:
            raise
        except (ValueError, web.RequestPayloadError):
            raise ApiError(400, "the body cannot be read: its encoding is broken", close=True) from None
        finally:
            self.arriving -= reckoned
        return parse(data)

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
