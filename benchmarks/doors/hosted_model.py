"""A hosted model for commands of the pages that need a clever one: a server that answers from a script.

It speaks the part of the OpenAI-compatible interface that our client asks for, and knows what the auditor, the maker of
questions and the installer ask. Given a task, it looks something up in the standard library and gives up.
"""

from __future__ import annotations

import json
import re
import sysconfig
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from etude.core.policy import Assistant, Call
from etude.forge.install.rules.install_and_repair import ANSWER
from etude.harness.text_turns import write_turn

NAME = "hosted"
SUITE = {"tests": ["tests"], "paths": ["src"], "options": [], "env": {}, "services": [], "notes": []}
EXPLORE = (
    ("python -m pytest -q", "the tests pass", "passed", "tests"),
    ("python -c 'import other; print(other.__name__)'", "the name of the package", "other", "import"),
    ("python -m pytest --version", "the version of pytest", "pytest", "version"),
)
INSTALL = f"cp -r . /tmp/copy && pip install -q pytest /tmp/copy && echo '{json.dumps(SUITE)}' > {ANSWER}"
FINISH = Assistant(calls=(Call("finish", {"message": "done"}),))


def reply(asked: str, said: int) -> str:
    """The answer to all that was asked, by a model that has spoken `said` times."""
    if '{"verdict": "..."' in asked:
        return json.dumps({"verdict": "clean", "findings": []})
    if "Write one question" in asked:
        words = dict.fromkeys(re.findall(r"[A-Za-z_]{8,}", asked.partition("look as likely.")[2]))
        return json.dumps(
            {"question": "Which name is in it?", "answer": [*words][-1], "wrong": ["abcd", "efgh", "ijkl"]}
        )
    if "Reply with the letter" in asked:
        source, _, rest = asked.rpartition("Question: ")
        return next(letter for letter, answer in re.findall(r"^([A-Z])\. (.*)$", rest, re.M) if answer in source)
    if said:
        return write_turn(FINISH)
    if "call\n`propose`" in asked:
        named = ("command", "prints", "expects", "kind")
        return write_turn(
            Assistant(calls=tuple(Call("propose", dict(zip(named, each, strict=True))) for each in EXPLORE))
        )
    if "Make these commands work" in asked:
        return write_turn(Assistant(calls=(Call("run", {"command": INSTALL, "seconds": "300"}),)))
    looked = f"head -c 3000 {sysconfig.get_path('stdlib')}/json/decoder.py"
    return write_turn(Assistant(calls=(Call("run", {"command": looked}),)))


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer({"object": "list", "data": [{"id": NAME, "object": "model"}]})

    def do_POST(self) -> None:
        messages = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"]
        text = reply(_text(messages), sum(message["role"] == "assistant" for message in messages))
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        self._answer({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})

    def log_message(self, format: str, *words: Any) -> None:
        """Nobody reads it."""

    def _answer(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _text(messages: Sequence[dict[str, Any]]) -> str:
    return "\n".join(str(message["content"]) for message in messages if message["role"] in ("system", "user"))


def serve(port: int) -> None:
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
