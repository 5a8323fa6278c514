"""The built-in algorithms by name, and a recipe's entry turned into one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etude.core.component import resolve
from etude.core.errors import EtudeError
from etude.rl.algorithms.base import Algorithm

ALGORITHMS = {
    "dr_grpo": "etude.rl.algorithms.dr_grpo:DrGrpo",
    "grpo": "etude.rl.algorithms.grpo:Grpo",
    "rloo": "etude.rl.algorithms.rloo:Rloo",
    "sdpo": "etude.rl.algorithms.self_distillation:Sdpo",
    "sdft": "etude.rl.algorithms.self_distillation:Sdft",
    "opsd": "etude.rl.algorithms.self_distillation:Opsd",
}


def build_algorithm(spec: Mapping[str, Any], where: str = "rl.algorithm") -> Algorithm:
    """The algorithm that an entry such as `{"use": "grpo"}` asks for."""
    settings = dict(spec)
    if not isinstance(use := settings.pop("use", None), str):
        raise EtudeError(f"{where} does not say which algorithm: use = {'|'.join(ALGORITHMS)} or ./file.py:Class")
    found = resolve("algorithm", use, settings, ALGORITHMS, where)
    if not isinstance(found, Algorithm):
        raise EtudeError(f"{where}: {use} is not an algorithm; derive it from etude.rl.algorithms.base.Algorithm")
    return found
