"""The reward of a recipe: its parts by name, each with a weight. The sum trains; the parts are logged beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from etude.behaviours.base import Behaviour
from etude.core.component import resolve
from etude.core.errors import EtudeError
from etude.core.renamed import COMPONENTS
from etude.reward.base import GradedRollout, Part
from etude.reward.function import function_part

PARTS = {
    "tests": "etude.reward.tests:Tests",
    "effort": "etude.reward.effort:Effort",
    "diff": "etude.reward.diff_size:Diff",
    "ending": "etude.reward.ending:Ending",
    "behaviour": "etude.reward.behaviour:BehaviourPenalty",
    "hack_penalty": "etude.reward.hack_penalty:HackPenalty",
}


@dataclass(frozen=True)
class Weighted:
    """One part of a reward."""

    name: str
    weight: float
    part: Part


@dataclass(frozen=True)
class Reward:
    """All parts of a reward."""

    parts: tuple[Weighted, ...]

    @property
    def behaviours(self) -> list[Behaviour]:
        """Those that its parts count."""
        return [each.part.behaviour for each in self.parts if each.part.behaviour is not None]

    def score(self, rollout: GradedRollout) -> tuple[float, dict[str, float]]:
        """The weighted sum, and what each part gave before its weight."""
        total, values = 0.0, dict[str, float]()
        for each in self.parts:
            if not each.part.concerns(rollout.task):
                continue
            value = each.part.score(rollout)
            # One NaN in a batch would make every weight of the model NaN.
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise EtudeError(f"the reward {each.name} gave {value!r} for {rollout.task.name}, not a finite number")
            values[each.name] = float(value)
            total += each.weight * value
        return total, values


def build_reward(entries: Sequence[Mapping[str, Any]], where: str = "reward.parts") -> Reward:
    """The reward of such parts and no others: `[{use = "tests"}, {use = "effort", weight = 0.1, q = 0.5}]`."""
    found: list[Weighted] = []
    for number, entry in enumerate(entries):
        place = f"{where}[{number}]"
        use, weight = entry.get("use"), entry.get("weight", 1.0)
        if not isinstance(use, str):
            raise EtudeError(f"{place} must say which reward it is: use = {'|'.join(PARTS)} or ./file.py:Class")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise EtudeError(f"{place}.weight is {weight!r}, not a finite number")
        settings = {key: value for key, value in entry.items() if key not in ("use", "weight")}
        use = COMPONENTS.get(use, use)
        part = function_part(use, settings, place) or resolve("reward", use, settings, PARTS, place)
        if not isinstance(part, Part):
            raise EtudeError(f"{place}: {use} is not a reward; derive it from etude.reward.base.Part")
        name = part.name or (use.rpartition(":")[2] if ".py:" in use else use)
        if name in (each.name for each in found):
            apart = ", or give one a name of its own: name = '...'" if use == "behaviour" else ""
            raise EtudeError(f"{place}: the reward {name!r} is there twice; keep one{apart}")
        found.append(Weighted(name, float(weight), part))
    if not found:
        raise EtudeError(f"{where} is empty: name at least one reward, such as {{ use = 'tests' }}")
    return Reward(tuple(found))
