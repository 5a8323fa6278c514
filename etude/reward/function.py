"""A plain function as a part of the reward: `use = "./mine.py:short"`, where `short(rollout)` returns a number."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from etude.core.component import load_file
from etude.core.errors import EtudeError
from etude.reward.base import GradedRollout, Part


class FunctionPart(Part):
    def __init__(self, function: Callable[..., float], settings: Mapping[str, Any]) -> None:
        super().__init__(dict(settings))
        self.function = function

    def score(self, rollout: GradedRollout) -> float:
        return self.function(rollout, **self.settings)


def function_part(use: str, settings: Mapping[str, Any], where: str) -> FunctionPart | None:
    """The part that `./file.py:function` names; None where it names something else. Settings are its keywords."""
    if ".py:" not in use:
        return None
    file, _, name = use.rpartition(":")
    found = getattr(load_file("reward", file), name, None)
    if found is None or isinstance(found, type) or not callable(found):
        return None
    try:
        inspect.signature(found).bind(None, **settings)
    except TypeError as wrong:
        raise EtudeError(
            f"{where}: the reward {use} takes a rollout and its settings as keywords, but: {wrong}"
        ) from None
    return FunctionPart(found, settings)
