"""The engine in a process of its own, behind HTTP on a local socket or loopback.

The main thread speaks HTTP with asyncio; the engine steps in a thread of its own (engine/thread.py). The routes are
those of the training loop (engine_routes), whose own processes ask them in binary frames, on a second local socket or
TCP. With a `ServeAccess`, the process serves text to OpenAI's clients instead (openai/).

Loading this file does not load torch: as a program it must prepare its process first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import socket as sockets
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from etude.core import child_process as child
from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.core.settings import EngineSettings
from etude.core.tcp_address import FILE, Announced, listen_at
from etude.core.transport import from_json
from etude.model.torch_process import prepare
from etude.serve import messages
from etude.serve.engine_routes import EngineRoutes

if TYPE_CHECKING:
    from etude.engine.engine import Engine
    from etude.model.weight_transfer.receive import WeightSource
    from etude.serve.openai.app import OpenAIRoutes
    from etude.tokens.dialect import Dialect

BACKLOG = 1024  # connections that may wait to be taken
QUIET = 5.0  # seconds without a request after which an engine that is given back has been left by all


@dataclass(frozen=True)
class ServeAccess:
    """Who may come in when a model is served to other people's programs."""

    model: str  # the name that clients give it
    key: str | None = None  # without it, everybody who can reach the address
    engine_routes: bool = False  # the training loop's routes as well; only with a key
    log: Path | None = None  # a line for each request; "-" is standard error


def serve(
    model_dir: Path,
    settings: EngineSettings,
    *,
    device: str = "cpu",
    host: str = "127.0.0.1",
    port: int = 0,
    socket: Path | None = None,
    weights: WeightSource | None = None,
    version: Version = messages.FIRST,
    access: ServeAccess | None = None,
    announced: Announced | None = None,
    give_back: Path | None = None,
) -> None:
    """Serves the model until SIGTERM or SIGINT, which let running requests finish. Raises if the engine crashes.

    With `access`, to OpenAI's clients; without, to the training loop, whose frames come over TCP where `announced` says
    so. `give_back` is a file that asks those who come to go elsewhere, before requests are refused. The caller has
    prepared the process (`etude.model.torch_process.prepare`).
    """
    if access is not None and access.engine_routes and access.key is None:
        raise EtudeError("the engine's own routes can stop it and change its weights: set an API key to open them")
    import torch

    from etude.engine.engine import Engine
    from etude.model.checkpoint.directory import load_model

    # The engine's thread wants to go on as soon as the device is done, while the other one reads and writes messages.
    sys.setswitchinterval(0.001)
    # On a GPU the learner rounds each weight to bfloat16 where it is used, so both multiply the same numbers.
    dtype = torch.bfloat16 if torch.device(device).type == "cuda" else torch.float32
    engine = Engine(load_model(model_dir, device, dtype), settings, version)
    dialect = None
    if access is not None:
        from etude.tokens.dialect import open_dialect

        dialect = open_dialect(model_dir)
    # With the model loaded: whoever can connect is answered at once.
    listener = _listen_on(host, port, socket)
    print(f"key-value cache: {engine.cache.bytes >> 20} MiB", file=sys.stderr)
    try:
        asyncio.run(_serve(engine, listener, weights, access, dialect, announced, give_back))
    finally:
        if socket is not None:
            socket.unlink(missing_ok=True)
            Path(messages.frames_path(str(socket))).unlink(missing_ok=True)


async def _serve(
    engine: Engine,
    listener: sockets.socket,
    weights: WeightSource | None,
    access: ServeAccess | None,
    dialect: Dialect | None,
    announced: Announced | None,
    give_back: Path | None,
) -> None:
    from etude.engine.thread import EngineThread
    from etude.serve.connection import connections, quiet_when_full

    quiet_when_full(asyncio.get_running_loop())
    thread = EngineThread(engine)
    engine_api = EngineRoutes(thread, engine.settings, weights)
    api: EngineRoutes | OpenAIRoutes = engine_api
    if access is not None and dialect is not None:
        from etude.serve.openai.app import OpenAIRoutes  # with pydantic, which the training loop's engine never loads

        config = engine.decoder.config
        api = OpenAIRoutes(
            thread,
            engine.settings,
            dialect,
            model=access.model,
            vocab_size=config.vocab_size,
            positions=config.max_position_embeddings,
            key=access.key,
            engine_routes=engine_api.routes() if access.engine_routes else (),
            access_log=_open_log(access.log),
        )
    signalled = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signalled.set)
    # a handler whose client leaves is cancelled, which aborts its request
    runner = web.AppRunner(api.application(), handler_cancellation=True, shutdown_timeout=5)
    await runner.setup()
    assert runner.server is not None
    made = connections(runner.server, engine.settings, api.refuse, _quiet_log())
    listening = await asyncio.get_running_loop().create_server(made, sock=listener, backlog=BACKLOG)
    name = listener.getsockname()
    address = f"unix:{name}" if isinstance(name, str) else _url(*name[:2])
    frames = None
    if access is None and isinstance(name, str):
        frames = engine_api.frames()
        if announced is None:
            await frames.listen(child.listen(Path(messages.frames_path(name))))
        else:  # HTTP stays inside this machine: it has no token
            reached, there = listen_at(announced)
            await frames.listen(reached, there.secret)
            address = f"{FILE}{announced.path}"
    # The parent waits for this line, and reads it as the first one of standard output.
    print(messages.READY, address, flush=True)
    if access is not None:
        print(f"base URL {address}/v1, model {access.model}; Ctrl-C ends it", file=sys.stderr, flush=True)
    try:
        waits = [asyncio.create_task(event.wait()) for event in (signalled, thread.ended)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        deadline = time.monotonic() + engine.settings.drain_seconds
        if give_back is not None:
            give_back.touch()
            quiet = time.monotonic()
            while time.monotonic() < min(quiet + QUIET, deadline) and not thread.ended.is_set():
                quiet = time.monotonic() if thread.pending else quiet
                await asyncio.sleep(0.01)
        # New requests are refused from here on; those that run have `drain_seconds` to finish.
        api.draining = True
        while thread.pending and not thread.ended.is_set() and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
    finally:
        # The engine first: those who still wait get an error, and their handlers can send it.
        await thread.stop()
        listening.close()
        if frames is not None:
            await frames.close()
        await runner.cleanup()
    if thread.crash is not None:
        raise thread.crash


def _open_log(path: Path | None) -> TextIO | None:
    if path is None or str(path) == "-":
        return sys.stderr if path is not None else None
    try:
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise EtudeError(f"the access log {path} cannot be written: {error.strerror}; choose another file") from None


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _quiet_log() -> logging.Logger:
    """aiohttp's log, without a traceback for everybody who comes and does not speak HTTP."""
    log = logging.getLogger("etude.serve.server")
    log.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))
    return log


def _listen_on(host: str, port: int, path: Path | None) -> sockets.socket:
    if path is not None:
        return child.listen(path)
    try:
        family = sockets.AF_INET6 if ":" in host else sockets.AF_INET
        return sockets.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as refused:
        raise EtudeError(f"the engine cannot listen on {host}:{port} ({refused}); choose another address") from None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m etude.serve.server", description="Serve a model on this machine.")
    parser.add_argument("spec", help="JSON object, see messages.EngineSpec")
    child.add_arguments(parser)
    options = parser.parse_args()
    child.end_with(options, (options.socket, options.announce, options.folder))
    try:
        spec = from_json(messages.EngineSpec, json.loads(options.spec))
        prepare(spec.threads)
        from etude.model.weight_transfer.receive import open_source

        serve(
            spec.model,
            spec.settings,
            device=spec.device,
            socket=options.socket,
            weights=open_source(spec.board, spec.chain, spec.chain_seconds),
            version=spec.version,
            announced=options.announce and Announced(options.announce, options.host, options.incarnation),
        )
    except EtudeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
