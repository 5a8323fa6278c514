"""`etude chat` from another terminal: a conversation with a served model, and a task solved by one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("warm_children")


def chat(server: Any, *arguments: str, text: str = "", key: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"} | ({"ETUDE_API_KEY": key} if key else {})
    command = [sys.executable, "-m", "etude", "chat", server.address, *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, env=environment)


@pytest.fixture(scope="module")
def roomy(tiny_module: ModuleType, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server whose context has room for an agent's prompt."""
    log = tmp_path_factory.mktemp("roomy") / "log"
    with tiny_module.served(tiny_model, log, "engine.max_length=4096", "run.threads=1", key="a-roomy-key") as server:
        yield server


def answer_of(server: Any, messages: list[dict[str, str]], seed: int) -> dict[str, Any]:
    body = json.dumps({"model": "tiny", "messages": messages, "seed": seed}).encode()
    headers = {"Content-Type": "application/json", **server.headers}
    with urllib.request.urlopen(urllib.request.Request(f"{server.address}/v1/chat/completions", body, headers)) as got:
        return dict(json.loads(got.read())["choices"][0]["message"])


def test_lines_are_answered_as_the_server_answers_them(roomy: Any) -> None:
    first = answer_of(roomy, [{"role": "user", "content": "say hello"}], 4)
    done = chat(roomy, "--seed", "4", "--json", text="say hello\n\nand more\n", key=roomy.key)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["model"] == "tiny"
    roles = [message["role"] for message in found["messages"]]
    assert roles == ["user", "assistant", "user", "assistant"]
    assert found["messages"][1]["content"] == first["content"]
    shown = chat(roomy, "--seed", "4", text="say hello\n", key=roomy.key)
    assert first["content"] in shown.stdout
    assert first["reasoning_content"] in shown.stdout


def test_a_served_model_tries_a_task_with_its_ids_or_with_messages(roomy: Any, tiny_model: Path) -> None:
    limits = ("harness.limits.turns=2", "harness.limits.sampled_tokens=64")
    for tokens in ((), ("--tokens", str(tiny_model))):
        done = chat(roomy, *limits, "--task", "0", *tokens, "--json", key=roomy.key)
        found = json.loads(done.stdout.splitlines()[-1])
        assert found.get("passed") is False, (found, done.stderr)


def test_a_wrong_key_and_a_wrong_address_are_one_sentence(roomy: Any) -> None:
    refused = chat(roomy, text="x\n", key="a-wrong-key")
    assert refused.returncode == 2
    assert "refused: the request lacks the server's API key" in refused.stderr
    roomy.address, right = "http://127.0.0.1:1", roomy.address
    try:
        unreachable = chat(roomy, text="x\n")
    finally:
        roomy.address = right
    assert unreachable.returncode == 2
    assert "cannot be reached" in unreachable.stderr
