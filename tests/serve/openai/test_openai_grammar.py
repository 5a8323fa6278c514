"""The library that forces answers into a schema: what is said where it is missing, too old or does not load."""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib
from pathlib import Path

import pytest

from etude.serve.openai import grammar
from etude.serve.openai.errors import ApiError
from etude.tokens.dialect import open_dialect


def test_without_the_library_or_with_an_old_one_the_request_is_refused(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialect = open_dialect(tiny_model)
    grammars = grammar.Grammars(dialect, dialect.vocab_size)
    with monkeypatch.context() as patch:
        patch.setattr(importlib.metadata, "version", lambda _: "1.2.9")
        with pytest.raises(ApiError, match=r"needs llguidance 1\.3 or newer: .*; installed is 1\.2\.9") as old:
            grammars.of_schema({"type": "object"})
        assert (old.value.status, old.value.param) == (400, "response_format")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "llguidance", None)
        with pytest.raises(ApiError, match=r"needs llguidance 1\.3 or newer: pip install 'etude\[structured\]'$"):
            grammars.of_schema({"type": "object"})
    assert grammars.of_schema({"type": "object"}).allowed(()) is not None


def test_the_oldest_version_is_the_one_of_the_extra() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["structured"] == ["llguidance>={}.{}".format(*grammar.OLDEST)]
