"""The API key: where it comes from, and whether a request has it.

Compared in constant time and kept as a hash only, so it can neither be printed nor be guessed by the clock.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path

from aiohttp import web

from etude.core.errors import EtudeError
from etude.serve.openai.errors import ApiError

VARIABLE = "ETUDE_API_KEY"
_SHORTEST = 8


def read_key(file: Path | None) -> str | None:
    """The key in a file, or else in the environment; None where there is neither."""
    if file is None:
        key, place = os.environ.get(VARIABLE, ""), f"the environment variable {VARIABLE}"
        if not key:
            return None
    else:
        try:
            key, place = file.read_text(encoding="utf-8").strip(), str(file)
        except (OSError, UnicodeDecodeError) as error:
            raise EtudeError(f"the API key in {file} cannot be read ({type(error).__name__})") from None
    if len(key) < _SHORTEST or not key.isascii() or not key.isprintable() or " " in key:
        raise EtudeError(f"the API key in {place} must be at least {_SHORTEST} printable ASCII characters, no spaces")
    return key


class Gate:
    """Lets a request in, or refuses it; without a key everybody is let in."""

    def __init__(self, key: str | None) -> None:
        self._hash = _digest(key) if key is not None else None

    def check(self, request: web.Request) -> None:
        if self._hash is None:
            return
        scheme, _, said = request.headers.get("Authorization", "").partition(" ")
        # Of hashes, which have one length: comparing the keys themselves would show how long ours is.
        if scheme.lower() != "bearer" or not hmac.compare_digest(_digest(said.strip()), self._hash):
            sentence = "the request lacks the server's API key, or has a wrong one: Authorization: Bearer KEY"
            raise ApiError(401, sentence, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
