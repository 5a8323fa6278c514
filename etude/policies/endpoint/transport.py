"""One request to an endpoint, with everything that can go wrong with it.

What may pass (429, 5xx, a cut connection, a late or garbled answer) is tried again after a growing, jittered pause that
honours Retry-After; what will not (a wrong key, an unknown model, a context that is too long, a spent quota) is said at
once. Every wait has a deadline. The key goes to the given host alone: no redirect and no proxy is followed, and no
message ever shows it. Knows JSON bodies and no messages.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import math
import os
import random
import re
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from etude.core.errors import EtudeError
from etude.core.policy import ContextOverflow
from etude.core.settings import EndpointSettings
from etude.policies.endpoint.limits import Budget, Cost, Now, Rate, Sleep, TooLate

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds
LONGEST_ANSWER = 256 << 20  # bytes
LONGEST_QUOTE = 300  # characters of a server's own words
MAY_PASS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
LIST_SECONDS = 10.0  # for a server to list its models
# How servers say that a prompt is too long, where they do not say it by the code.
_TOO_LONG = re.compile(
    r"(maximum|max(imum)?_?model_?|available|exceeds? the|model's) (context|model)[ _-]?(length|size|window|len)"
    r"|prompt is too long|input is too long|too many (input )?tokens|context[ _]length|max_new_tokens` must be",
    re.IGNORECASE,
)
_MOST_TOLD = re.compile(r"maximum context length (?:is|of) (\d{1,9})", re.IGNORECASE)
_PROMPT_TOLD = re.compile(r"(\d{1,9}) (?:in the messages|input tokens)|resulted in (\d{1,9}) tokens", re.IGNORECASE)
SPENT_QUOTAS = frozenset({"insufficient_quota", "billing_hard_limit_reached"})  # of OpenAI: a 429 that stays


class _Fault(Exception):
    """A try that failed and may go well the next time."""

    def __init__(self, said: str, after: float = 0.0, lost: bool = False) -> None:
        super().__init__(said)
        self.after = after  # seconds that the server asks to wait
        self.lost = lost  # the server may have computed, and billed, an answer that never came


class Transport:
    """Posts JSON to one endpoint. `budget` counts what it spent."""

    def __init__(
        self,
        settings: EndpointSettings,
        *,
        now: Now = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.settings = settings
        self.budget = Budget(settings)
        self._url = _checked(settings)
        self._key = _key(settings)
        self._now, self._sleep, self._jitter = now, sleep, jitter
        self._requests = Rate(settings.requests_per_minute, now, sleep)
        self._tokens = Rate(settings.tokens_per_minute, now, sleep)
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._closed_until = now()  # the server asked everybody to wait
        self._closed = False
        self._http: aiohttp.ClientSession | None = None

    async def post(self, path: str, body: dict[str, Any], worst: Cost) -> dict[str, Any]:
        """The answer to a request whose cost is at most `worst`; tries again while that can help."""
        try:
            sent = json.dumps(body, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise EtudeError(f"the request cannot be written as JSON: {error}; correct endpoint.extra") from None
        deadline = self._now() + self.settings.seconds
        for number in range(1, self.settings.tries + 1):
            try:
                return await self._try(path, sent, worst, deadline)
            except _Fault as fault:
                if number == self.settings.tries:
                    raise self._error(f"failed {_times(number)}, the last time: it {fault}") from None
                # Half of the pause is random: those who failed together should not come back together.
                pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (number - 1)) * (1 + self._jitter()) / 2
                pause = max(pause, fault.after * (1 + 0.1 * self._jitter()))  # those who wait should not come at once
                if self._now() + pause > deadline:
                    within = f"endpoint.seconds = {self.settings.seconds:g} leave no time for another try"
                    raise self._error(f"failed {_times(number)} and {within}; it {fault}") from None
                if fault.after:
                    self._closed_until = max(self._closed_until, self._now() + fault.after)
                await self._sleep(pause)
        raise AssertionError("the last try raises")

    async def models(self) -> list[dict[str, Any]] | None:
        """The models that the server lists; none where it does not, and None where it could not be asked."""
        try:
            async with (await self._session()).get(
                self._url + "/models",
                headers=self._headers(),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=min(LIST_SECONDS, self.settings.seconds)),
            ) as response:
                raw = await _read(response)
        except (TimeoutError, aiohttp.ClientError, OSError):
            return None
        listed = _parse(raw or b"").get("data")
        return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []

    async def close(self) -> None:
        """Lets go of the connections. Whoever still waits for a turn is refused."""
        self._closed = True
        if self._http is not None:
            await self._http.close()

    async def _try(self, path: str, sent: bytes, worst: Cost, deadline: float) -> dict[str, Any]:
        """One request, when its turn has come."""
        try:
            while (closed := self._closed_until - self._now()) > 0:
                if self._closed_until > deadline:
                    raise TooLate
                await self._sleep(closed)
            async with asyncio.timeout(max(0.0, deadline - self._now())):
                await self._slots.acquire()
        except (TooLate, TimeoutError):
            raise self._error(f"had no turn for a request within {self.settings.seconds:g} s") from None
        try:
            return await self._turn(path, sent, worst, deadline)
        finally:
            self._slots.release()

    async def _turn(self, path: str, sent: bytes, worst: Cost, deadline: float) -> dict[str, Any]:
        try:
            await self._requests.take(1, deadline)
            try:
                await self._tokens.take(worst.tokens, deadline)
            except BaseException:
                # Or a request that was never sent would use up a turn of the others.
                self._requests.give_back(1)
                raise
            if self._now() > deadline:
                raise TooLate
        except TooLate:
            rates = f"{self.settings.requests_per_minute:g} requests and {self.settings.tokens_per_minute:g} tokens"
            late = f"has no turn within {self.settings.seconds:g} s at {rates} a minute: raise the rates or the time"
            raise self._error(late) from None
        self.budget.begin(worst)
        used = worst  # until we know better: an answer that was lost may have been billed
        try:
            answer = await self._send(path, sent, min(self.settings.try_seconds, deadline - self._now()))
            used = _usage(answer, worst)
            return answer
        except _Fault as fault:
            used = worst if fault.lost else Cost(0, 0)
            raise
        except EtudeError:
            used = Cost(0, 0)  # refused
            raise
        finally:
            self.budget.end(worst, used)
            self._tokens.give_back(worst.tokens - used.tokens)

    async def _send(self, path: str, sent: bytes, seconds: float) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=max(0.001, seconds))
        try:
            async with (await self._session()).post(
                self._url + path, data=sent, headers=self._headers(), allow_redirects=False, timeout=timeout
            ) as response:
                raw = await _read(response)
        except TimeoutError:
            raise _Fault(f"did not answer within {seconds:g} s", lost=True) from None
        except aiohttp.ClientConnectorCertificateError as wrong:
            raise self._error(f"has a certificate that cannot be trusted: {wrong.certificate_error}") from None
        except aiohttp.ClientConnectorError as broken:
            raise _Fault(f"cannot be reached: {broken.os_error}") from None
        except (aiohttp.ClientError, OSError) as broken:
            raise _Fault(f"cut the connection: {type(broken).__name__} {broken}".rstrip(), lost=True) from None
        if raw is None:
            raise self._error(f"answered with more than {LONGEST_ANSWER >> 20} MB")
        answer = _parse(raw)
        status = response.status
        if status == 200 and "choices" not in answer and (code := _error_code(answer)):
            status = code  # routers of several providers pass a failure on inside a 200
        if status != 200:
            raise self._refusal(status, answer, raw, response.headers.get("Retry-After", ""))
        if "choices" in answer and not answer["choices"]:
            raise _Fault("answered with no choice", lost=True)
        if not answer:
            raise _Fault(f"answered with something that is no JSON object: {self._quote(answer, raw)}", lost=True)
        return answer

    def _refusal(self, status: int, answer: dict[str, Any], raw: bytes, retry_after: str) -> Exception:
        said = self._quote(answer, raw)
        error = answer.get("error")
        code = error.get("code") if isinstance(error, dict) else None
        if status in MAY_PASS and not (isinstance(code, str) and code in SPENT_QUOTAS):
            return _Fault(f"answered {status}: {said}", after=_seconds(retry_after))
        if status in (400, 413, 422) and (code == "context_length_exceeded" or _TOO_LONG.search(said)):
            most, prompt = _MOST_TOLD.search(said), _PROMPT_TOLD.search(said)
            return ContextOverflow(
                f"the endpoint {self._url} has no room for an answer ({status}): {said}",
                int(most[1]) if most else 0,
                int(prompt[1] or prompt[2]) if prompt else 0,
            )
        if 300 <= status < 400:
            return self._error(f"redirects elsewhere ({status}), which is not followed: give the final address")
        if status in (401, 403):
            env = self.settings.key_env
            what = f"the key in ${env} is not accepted" if env else "name the variable of a key in endpoint.key_env"
            return self._error(f"refuses us ({status}): {what}; it says: {said}")
        if status == 404:
            what = (
                f"check endpoint.url, which should end in /v1 or the like, and endpoint.model = {self.settings.model!r}"
            )
            return self._error(f"does not have that (404): {what}; it says: {said}")
        return self._error(f"refused the request ({status}): {said}")

    def _quote(self, answer: dict[str, Any], raw: bytes) -> str:
        """What the server said, short and printable, and never our key, which some echo."""
        error: Any = answer.get("error", answer)
        told = error.get("message") or error.get("detail") if isinstance(error, dict) else error
        text = told if isinstance(told, str) and told else raw.decode("utf-8", "replace")
        if self._key:
            text = text.replace(self._key, "[key]")
        text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return text if len(text) <= LONGEST_QUOTE else text[:LONGEST_QUOTE] + "..."

    def _error(self, said: str) -> EtudeError:
        return EtudeError(f"the endpoint {self._url} {said}")

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        return headers | ({"Authorization": f"Bearer {self._key}"} if self._key else {})

    async def _session(self) -> aiohttp.ClientSession:
        if self._closed:
            raise self._error("was closed here, and is asked no more")
        if self._http is None:
            # `concurrency` bounds the connections; no cookies, and nothing of the environment (proxies, .netrc).
            connector, jar = aiohttp.TCPConnector(limit=0), aiohttp.DummyCookieJar()
            self._http = aiohttp.ClientSession(connector=connector, cookie_jar=jar, trust_env=False)
            # A reader inside of a reward has nobody who closes it: then the end of the event loop does.
            self._end = _closed_at_the_end(self._http)
            await anext(self._end)
        return self._http


async def _closed_at_the_end(session: aiohttp.ClientSession) -> AsyncGenerator[None, None]:
    """Held open until the event loop ends its generators, or until nobody holds it any more."""
    try:
        yield
    finally:
        await session.close()


def _checked(settings: EndpointSettings) -> str:
    try:
        parts = urlsplit(settings.url)
        _ = parts.port
    except ValueError as error:
        raise EtudeError(f"endpoint.url is no address: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise EtudeError("endpoint.url holds a user or a password: put the key into the variable of endpoint.key_env")
    blank = any(not character.isprintable() or character.isspace() for character in settings.url)
    if blank or parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise EtudeError(f"endpoint.url is {settings.url!r}; it must look like https://host/v1 or http://host:8000/v1")
    if not settings.model:
        raise EtudeError("endpoint.model is empty: name the model that the endpoint should answer with")
    return settings.url.rstrip("/")


def _key(settings: EndpointSettings) -> str:
    if not settings.key_env:
        return ""
    key = os.environ.get(settings.key_env, "").strip()
    if not key:
        raise EtudeError(f"endpoint.key_env names ${settings.key_env}, which is not set: export the key there")
    if not key.isascii() or not key.isprintable():
        raise EtudeError(f"${settings.key_env} holds characters that no API key has")
    return key


async def _read(response: aiohttp.ClientResponse) -> bytes | None:
    """The body, or None when it has no end."""
    parts, size = [], 0
    async for part in response.content.iter_chunked(1 << 16):
        parts.append(part)
        size += len(part)
        if size > LONGEST_ANSWER:
            return None
    return b"".join(parts)


def _parse(raw: bytes) -> dict[str, Any]:
    """The JSON object in a body, or an empty one."""
    try:
        answer = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _error_code(answer: dict[str, Any]) -> int:
    error = answer.get("error")
    if not isinstance(error, dict):
        return 0
    code = error.get("code")
    return code if isinstance(code, int) and 400 <= code < 600 else 500


def _usage(answer: dict[str, Any], worst: Cost) -> Cost:
    """What the server says it used; the worst case where it says nothing that can be used."""
    usage = answer.get("usage")
    told = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")] if isinstance(usage, dict) else []
    counts = [count for count in told if isinstance(count, int) and not isinstance(count, bool) and count >= 0]
    return Cost(*counts) if len(counts) == 2 else worst


def _seconds(retry_after: str) -> float:
    """Retry-After in seconds: a number, or a date."""
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
