"""`etude sandbox serve`: a backend of this machine behind the server of `remote/`, until told to end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from etude.core.child_process import listen
from etude.core.errors import EtudeError
from etude.sandbox.hosts import open_host
from etude.sandbox.remote.host import TOKEN
from etude.sandbox.remote.messages import split_address
from etude.sandbox.remote.pressure import read_pressure
from etude.sandbox.remote.server import SandboxServer, ServerSettings, default_places

READY = "sandbox host ready at"  # the line that is printed once clients can come; the address follows
_LEAST_TOKEN = 16  # characters


def read_token(file: Path | None) -> str:
    token = file.read_text().strip() if file is not None else os.environ.get(TOKEN, "")
    if len(token) < _LEAST_TOKEN:
        where = f"{file} holds" if file is not None else f"{TOKEN} holds"
        raise EtudeError(
            f"{where} no token of at least {_LEAST_TOKEN} characters: make one, for example with "
            "`python -c 'import secrets; print(secrets.token_hex(16))'`, and give clients the same"
        )
    return token


async def serve_sandboxes(
    address: str, backend: str, store: Path, token: str, preload: Sequence[str] = (), *, places: int = 0, **given: Any
) -> None:
    """Until SIGTERM or SIGINT. `given` are fields of `ServerSettings`."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    listener, shown = _listener(address)
    async with await open_host(backend, store, preload) as host:
        settings = ServerSettings(token, places or default_places(read_pressure().available), **given)
        server = SandboxServer(host, settings)  # type: ignore[arg-type]  # ours derive from BackendHost
        answering = await server.listen(listener)
        keeping = asyncio.ensure_future(server.keep())
        print(READY, shown, flush=True)
        try:
            await asyncio.wait({keeping, waiting := asyncio.ensure_future(ended.wait())}, return_when="FIRST_COMPLETED")
            waiting.cancel()
            if keeping.done():
                keeping.result()
        finally:
            keeping.cancel()
            await answering.close()
            await server.close()
            if "/" in shown:
                with suppress(OSError):
                    Path(shown).unlink()


def _listener(address: str) -> tuple[socket.socket, str]:
    """A listening socket and the address that clients use."""
    place = split_address(address)
    if place is None:
        return listen(Path(address)), address
    host, port = place
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise EtudeError(f"cannot listen on {address} ({error.strerror or error}); choose another address") from None
    name = f"[{host}]" if ":" in host else host
    return listener, f"{name}:{listener.getsockname()[1]}"
