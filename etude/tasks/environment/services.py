"""Services that an environment brings: what they are, what of them is refused, and how an agent's sandbox gets them.

A service is a program of the environment's layer that listens on a port of the sandbox's own loopback: a stand-in for
a database, a queue, an object store, a mail server. `sandbox_side/start_services.py` starts it, in every sandbox a new
one. Knows nothing of what a service does.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from etude.core.errors import EtudeError
from etude.sandbox.base import WORKSPACE, Sandbox, SandboxFailure
from etude.tasks.sandbox_side import start_services as inside
from etude.tasks.sandbox_side.start_services import SECONDS

PREFIX: Final = "/opt/env"  # where an environment's layer lies, in every sandbox
MOST: Final = 4
PROCESSES: Final = 64  # threads and processes that each service may add to those of a sandbox
_MOST_WORDS: Final = 32
_LONGEST: Final = 1000  # characters of a word
_GRACE: Final = 10.0  # seconds for the program that starts them


@dataclass(frozen=True)
class Service:
    """A program that listens while an environment is used."""

    name: str
    argv: tuple[str, ...]  # an absolute program below /opt/env, and its words
    port: int  # of the loopback; it is ready once this is listened on


class ServiceFailure(SandboxFailure):
    """A service did not come up, so there is no sandbox to be used."""

    def __init__(self, message: str) -> None:
        super().__init__("start", message)


def read_services(value: Any) -> tuple[Service, ...]:
    """Services as JSON tells them. Whoever wrote it is not trusted: what is not as it should be is an `EtudeError`."""
    if not isinstance(value, list) or len(value) > MOST:
        raise EtudeError(f"services are a list of at most {MOST}, each with name, argv and port")
    found = tuple(_read(each) for each in value)
    for what, several in (("name", [each.name for each in found]), ("port", [each.port for each in found])):
        if len({*several}) < len(several):
            raise EtudeError(f"two services have the same {what}")
    return found


def _read(value: Any) -> Service:
    if not isinstance(value, dict) or {*value} != {"name", "argv", "port"}:
        raise EtudeError("a service has name, argv and port, and nothing else")
    name, argv, port = value["name"], value["argv"], value["port"]
    if not isinstance(name, str) or re.fullmatch(r"[a-z][a-z0-9-]{0,31}", name) is None:
        raise EtudeError(f"{ascii(name)[:80]} is no name for a service: small letters, digits and dashes are")
    if not isinstance(argv, list) or not 1 <= len(argv) <= _MOST_WORDS or not all(_is_word(each) for each in argv):
        raise EtudeError(f"argv of the service {name} is not a list of 1 to {_MOST_WORDS} words")
    if not argv[0].startswith(f"{PREFIX}/") or ".." in PurePosixPath(argv[0]).parts:
        raise EtudeError(f"the program of the service {name} is not an absolute path below {PREFIX}")
    if any(WORKSPACE in word for word in argv):
        raise EtudeError(f"the service {name} names {WORKSPACE}: it has to start from {PREFIX} alone")
    if type(port) is not int or not 1024 <= port <= 65535:
        raise EtudeError(f"the port of the service {name} is not a number from 1024 to 65535")
    return Service(name, tuple(argv), port)


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST and value.isprintable()


def as_job(services: Sequence[Service]) -> list[list[Any]]:
    """As `sandbox_side/start_services.py` takes them."""
    return [[each.name, list(each.argv), each.port] for each in services]


async def serve(sandbox: Sandbox, services: Sequence[Service], python: str) -> None:
    """Starts them in a sandbox, where they stay until it is reset or closed; returns when they listen."""
    if not services:
        return
    process = await sandbox.spawn([python, "-I", "-S", "-", json.dumps(as_job(services))], cwd="/")
    await process.send(Path(inside.__file__).read_bytes())
    await process.close_stdin()
    ends = time.monotonic() + SECONDS + _GRACE
    complaint = b""
    while True:
        # What it complains of may come before it ends: each look takes what was written since the last.
        listening, more = process.output()
        complaint += more
        if listening:
            return
        ended = await process.wait(0.02)
        if ended is not None:
            said = (complaint + ended.stderr).decode(errors="replace").strip().splitlines()
            raise ServiceFailure(said[-1][:500] if said else f"the services ended with {ended.code}")
        if time.monotonic() > ends:
            raise ServiceFailure(f"the services were not started within {SECONDS + _GRACE:g} s")
