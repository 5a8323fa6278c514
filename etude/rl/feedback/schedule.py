"""How much feedback counts at a step: it warms up, stays, and may decay; and what its teacher needs of a recipe."""

from __future__ import annotations

from etude.core.errors import EtudeError
from etude.core.rl_settings import FeedbackSettings


def weight_at(settings: FeedbackSettings, step: int) -> float:
    """The weight of step `step` (0 is the first)."""
    rising = min(1.0, (step + 1) / (settings.warmup + 1))
    falling = max(0.0, 1 - max(0, step - settings.hold) / settings.decay) if settings.decay else 1.0
    return settings.weight * rising * falling


def is_on(settings: FeedbackSettings) -> bool:
    return bool(settings.behaviours) or settings.context != "turn"


def needs_frozen(settings: FeedbackSettings) -> bool:
    """Whether the learner has to keep the weights that it starts from."""
    return is_on(settings) and settings.teacher == "frozen"


def check_feedback(settings: FeedbackSettings, ema: float) -> None:
    """Refuses a teacher that the learner would not have; `ema` is the decay of its averaged weights."""
    if is_on(settings) and settings.teacher == "ema" and not ema:
        raise EtudeError(
            "the teacher of feedback is 'ema', but no weights are averaged; set rl.optim.ema, such as 0.95"
        )
    if is_on(settings) and settings.support == "sampled" and settings.direction != "reverse":
        raise EtudeError(
            "rl.feedback.support is 'sampled', whose gradient is that of the reverse divergence alone; "
            "set rl.feedback.direction to 'reverse', or support to 'full' or 'top'"
        )
