"""Every error as the JSON object that OpenAI's clients read, with a fitting status.

    {"error": {"message": one sentence, "type": ..., "param": the field at fault or null, "code": a word or null}}

Knows HTTP statuses, no routes.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from etude.core.errors import EtudeError
from etude.engine.request import EngineFailed, EngineGone, QueueFull

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
RETRY = {"Retry-After": "1"}


class ApiError(Exception):
    """An error for the client: a status, one sentence, the field at fault and a word for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers, self.close = dict(headers or {}), close  # what was not read must not pass for the next request

    @property
    def body(self) -> dict[str, Any]:
        said = {"message": self.message, "type": _kind(self.status), "param": self.param, "code": self.code}
        return {"error": said}

    def response(self) -> web.Response:
        response = web.json_response(self.body, status=self.status, headers=self.headers)
        if self.close:
            response.force_close()
        return response


def api_error_of(error: BaseException) -> ApiError:
    """An error as the client gets it. The details of a bug of ours go to the log alone."""
    match error:
        case ApiError():
            return error
        case QueueFull():
            return ApiError(429, str(error), code="queue_full", headers=RETRY)
        case EngineFailed():
            return ApiError(500, str(error), code="engine_failed")
        case EngineGone():
            return ApiError(503, str(error), code="engine_gone")
        case EtudeError():
            return ApiError(400, str(error))
        case RecursionError():
            return ApiError(400, "the request is nested too deeply", code="invalid_value")
        case ConnectionError():
            return ApiError(400, "the connection was lost", close=True)
        case HttpProcessingError():
            return ApiError(400, f"the request is not proper HTTP ({error.message})", close=True)
        case web.HTTPException():
            headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
            return ApiError(error.status, error.text or error.reason, headers=headers)
    traceback.print_exception(error, file=sys.stderr)
    return ApiError(500, "the server failed; its log says how", code="internal_error")


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPNotFound:
        refusal = ApiError(404, f"there is nothing at {request.path}", code="not_found")
    except Exception as error:
        refusal = api_error_of(error)
    return refusal.response()


def _kind(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"
