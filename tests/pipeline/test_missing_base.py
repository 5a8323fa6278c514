"""A recipe that continues a run which was not made yet says how to make it."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.core.errors import EtudeError
from etude.pipeline.find_model import find_model


def test_the_run_of_a_builtin_recipe_is_no_name_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EtudeError, match=r"no run at runs/nano-base yet; train it first \(etude pretrain nano-base\)"):
        find_model(Path("runs/nano-base"))
