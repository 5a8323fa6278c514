"""The engine's verbs in binary frames, for the processes of the training loop: the same as over HTTP, and cheaper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from etude.core.errors import EtudeError
from etude.core.frame_calls import Answering, ConnectionLost, Send
from etude.core.policy import Sample
from etude.core.transport import Frame, from_json
from etude.engine.request import EngineGone
from etude.serve import messages

if TYPE_CHECKING:
    from etude.engine.thread import Tokens
    from etude.serve.server import EngineRoutes


def frames_of(routes: EngineRoutes) -> Answering:
    """A server of frames over the engine of these routes."""
    verbs = routes.verbs()

    async def handle(frame: Frame, send: Send) -> Frame:
        verb = frame.header.get("verb")
        try:
            if verb == "generate":
                request, sampling = messages.read_generate(frame)
                listen = (lambda new: send(_part(new))) if request.every > 0 else None
                return messages.write_sample_frame(await routes.sample(request, sampling, listen))
            if not isinstance(verb, str) or verb not in verbs:
                raise EtudeError(f"there is no verb {verb!r}")
            kind, answer = verbs[verb]
            return Frame({"message": await answer(from_json(kind, frame.header.get("message", {})))})
        # Not refusals of this request: the next engine at this address answers it.
        except EngineGone as gone:
            raise ConnectionLost(str(gone)) from None
        except web.HTTPServiceUnavailable as ending:
            raise ConnectionLost(ending.text or ending.reason) from None
        except web.HTTPException as http:  # as over HTTP, without its number
            raise EtudeError(http.text or http.reason) from None

    return Answering(handle, largest=routes.settings.body_bytes)


def _part(new: Tokens) -> Frame:
    """News of an answer under way; why it stops is not known yet."""
    ids, logprobs, versions = tuple(new.ids), tuple(new.logprobs), tuple(new.versions)
    return messages.write_sample_frame(Sample("", "abort", ids, logprobs, versions, new.cached_tokens))
