"""One client's connection: errors beside the routes are JSON as well, and nobody is waited for without end.

What is not HTTP never reaches a route, and aiohttp would answer it in plain text. It would also keep a connection on
which no request arrives (at least in its older versions), or whose client does not take the answer. Uses what aiohttp
makes public only. How an error is spelled is `say`'s business, and what a request means that of the routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web

from etude.core.settings import EngineSettings

Say = Callable[[int, str], web.Response]  # status and sentence
_MOST = 200  # characters of aiohttp's words about what is wrong
_SAY_AGAIN = 60.0  # seconds until the log says once more that there are no descriptors left
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Connection(web.RequestHandler):
    """What aiohttp makes of a connection, with an end to waiting and `say` for what goes wrong."""

    def __init__(self, server: web.Server, say: Say, seconds: float, log: logging.Logger) -> None:
        loop = asyncio.get_running_loop()
        # without access_log there is nothing to log to, whatever class would do it
        super().__init__(server, loop=loop, keepalive_timeout=seconds, logger=log, access_log=None)  # type: ignore[arg-type]
        self.came = False  # a request
        self._say, self._seconds, self._timer = say, seconds, loop.call_later(seconds, self._leave)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if isinstance(transport, asyncio.WriteTransport):
            transport.set_write_buffer_limits(0)  # an answer is written when the last of it has left this process

    def connection_lost(self, exc: BaseException | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        super().handle_error(request, status, exc, message)  # which logs, and raises where an answer has begun
        if status == 400:
            reason = (message or "it cannot be read").strip().split("\n")[0].rstrip(":")[:_MOST]
            sentence = f"the request is not proper HTTP ({reason})"
        else:
            sentence = "the request took too long" if status == 504 else "the server failed; its log says how"
        response = self._say(status, sentence)
        response.force_close()
        return response

    def _leave(self) -> None:
        if not self.came:
            self.force_close()


def connections(
    server: web.Server, settings: EngineSettings, say: Say, log: logging.Logger
) -> Callable[[], Connection]:
    """For `create_server`: makes the protocol of each connection to an application's server."""
    answer = server.request_handler

    async def guarded(request: web.BaseRequest) -> web.StreamResponse:
        if isinstance(request.protocol, Connection):
            request.protocol.came = True
        try:
            response = await answer(request)
        except web.HTTPException as http:  # of aiohttp itself, before any middleware
            response = say(http.status, http.text or http.reason)
        with contextlib.suppress(ConnectionError):  # aiohttp meets it again, and knows what to do
            try:
                # Written here and with a deadline: aiohttp would wait for a client that does not take its answer.
                async with asyncio.timeout(settings.stall_seconds):
                    await response.prepare(request)
                    await response.write_eof()
            except TimeoutError:
                if request.transport is not None:
                    request.transport.abort()
        return response

    server.request_handler = guarded
    return lambda: Connection(server, say, settings.arrive_seconds, log)


def quiet_when_full(loop: asyncio.AbstractEventLoop, now: Callable[[], float] = time.monotonic) -> None:
    """While no connection can be taken, one line a minute; asyncio alone logs 1,024 tracebacks in a second."""
    said = -_SAY_AGAIN

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal said
        error = context.get("exception")
        if "socket" not in context or not isinstance(error, OSError) or error.errno not in _NO_DESCRIPTORS:
            loop.default_exception_handler(context)
        elif now() - said >= _SAY_AGAIN:
            said = now()
            sentence = (
                f"warning: new connections wait: {error.strerror}; raise the limit (ulimit -n) or have fewer clients"
            )
            print(sentence, file=sys.stderr, flush=True)

    loop.set_exception_handler(handle)
