"""The access log of the real process: a line of JSON a request, with what it cost and nothing of what was said."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

from tests.serve.openai.test_openai_errors import ASK, post, run


def test_each_request_is_one_line_without_its_text_and_key(
    tiny_module: ModuleType, tiny_model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "access"
    options = ("--access-log", str(path), "run.threads=1", "engine.cache_tokens=1024")
    with tiny_module.served(tiny_model, tmp_path / "log", *options, key="the-secret-key") as server:
        chat = ASK | {"messages": [{"role": "user", "content": "words of mine"}], "max_tokens": 3}
        assert run(post(server, "/v1/chat/completions", chat))[0] == 200
        assert run(post(server, "/v1/chat/completions", chat | {"max_tokens": -1}))[0] == 400
        assert run(post(server, "/nowhere?key=the-secret-key", {}))[0] == 404
    answered, refused, missing = map(json.loads, path.read_text().splitlines())
    assert [entry["status"] for entry in (answered, refused, missing)] == [200, 400, 404]
    assert (answered["method"], answered["path"]) == ("POST", "/v1/chat/completions") and answered["seconds"] > 0
    assert answered["completion_tokens"] == 3 and answered["prompt_tokens"] > 0 and "prompt_tokens" not in refused
    assert missing["path"] == "/nowhere"
    assert "the-secret-key" not in path.read_text() and "words of mine" not in path.read_text()
