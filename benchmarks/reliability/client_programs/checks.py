"""What every program here shares: its server's address, and a line on standard output for each check."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

BASE_URL, MODEL, KEY = os.environ["BASE_URL"], os.environ["MODEL"], os.environ["KEY"]
FOLDER = os.environ["FOLDER"]
HELLO = "Hello, wörld! € 🎉 done"  # what the model answers to "say hello"
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
# The tool that the model calls by heart when it is asked to "call the tool".
ARGUMENTS = {"type": "object", "properties": {"path": {"type": "string"}, "line": {"type": "integer"}}}
READ = {"type": "function", "function": {"name": "read", "description": "Read a file.", "parameters": ARGUMENTS}}
CALL = [{"role": "user", "content": "call the tool"}]


def check(name: str, work: Callable[[], Any]) -> None:
    """Passed if `work` returns something true."""
    try:
        said = "passed" if (found := work()) else f"gave {found!r}"
    except BaseException as error:
        said = f"{type(error).__name__}: {error}".replace("\n", " ")[:500]
    print(f"CHECK {name} {said}", flush=True)
