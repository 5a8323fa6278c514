"""The built-in algorithms by name, and a recipe's entry turned into one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etude.core.component import resolve
from etude.core.errors import EtudeError
from etude.core.rl_settings import RLSettings
from etude.rl.algorithms.base import Algorithm

ALGORITHMS = {
    "dr_grpo": "etude.rl.algorithms.dr_grpo:DrGrpo",
    "grpo": "etude.rl.algorithms.grpo:Grpo",
    "rloo": "etude.rl.algorithms.rloo:Rloo",
    "dapo": "etude.rl.algorithms.dapo:Dapo",
    "gspo": "etude.rl.algorithms.gspo:Gspo",
    "cispo": "etude.rl.algorithms.cispo:Cispo",
    "single_rollout": "etude.rl.algorithms.single_rollout:SingleRollout",
    "sdpo": "etude.rl.algorithms.self_distillation:Sdpo",
    "sdft": "etude.rl.algorithms.self_distillation:Sdft",
    "opsd": "etude.rl.algorithms.self_distillation:Opsd",
}

BOUNDS = ("correction_level", "correction_low", "correction_high")  # of rl.correction, unless an algorithm has its own


def build_algorithm(spec: Mapping[str, Any], where: str = "rl.algorithm") -> Algorithm:
    """The algorithm that an entry such as `{"use": "grpo"}` asks for."""
    settings = dict(spec)
    if not isinstance(use := settings.pop("use", None), str):
        raise EtudeError(f"{where} does not say which algorithm: use = {'|'.join(ALGORITHMS)} or ./file.py:Class")
    found = resolve("algorithm", use, settings, ALGORITHMS, where)
    if not isinstance(found, Algorithm):
        raise EtudeError(f"{where}: {use} is not an algorithm; derive it from etude.rl.algorithms.base.Algorithm")
    return found


def check_algorithm(algorithm: Algorithm, settings: RLSettings) -> None:
    """Refuses what would train something else than it says."""
    use = settings.algorithm.get("use")
    if settings.kl and settings.kl_estimator == "k1" and algorithm.scales_rewards:
        raise EtudeError(
            f"rl.kl takes k1 from the rewards, and {use} divides those by their deviation: a group of equal rewards "
            'would be pure KL of unit variance; set rl.kl_estimator = "k2", or use dr_grpo'
        )
    if algorithm.correction() is not None and settings.correction != "auto":
        raise EtudeError(
            f'{use} brings its own correction, and rl.correction = "{settings.correction}" would replace it: '
            'set rl.correction = "auto"'
        )
    moved = [name for name in BOUNDS if getattr(settings, name) != getattr(RLSettings(), name)]
    if algorithm.correction() is not None and moved:
        raise EtudeError(
            f"{use} brings its own correction, and rl.{moved[0]} would change nothing: leave it out, and set what "
            "the algorithm has instead, such as rl.algorithm.high"
        )
    if settings.feedback.behaviours and settings.feedback.context != "turn":
        raise EtudeError(
            f'rl.feedback.context = "{settings.feedback.context}" puts one text above the whole rollout, and '
            "rl.feedback.behaviours would teach nothing: leave out one of the two, and name behaviours to be counted "
            "in rl.monitor"
        )
    own = algorithm.correction()
    low, high = (own.low, own.high) if own else (settings.correction_low, settings.correction_high)
    if low > high:  # every ratio would become `high`, or be masked
        raise EtudeError(
            f"the importance ratio is bounded from {low:g} to {high:g}: lower the first or raise the other"
        )
    if settings.group == 1 and not algorithm.single:
        raise EtudeError(f"rl.group is 1, and the baseline of {use} is its group's mean: use single_rollout")
