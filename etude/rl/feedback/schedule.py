"""How much feedback counts at a step: it warms up, stays, and may decay; and what its teacher needs of a recipe."""

from __future__ import annotations

from etude.core.errors import EtudeError
from etude.core.settings import FeedbackSettings, RLSettings


def weight_at(settings: FeedbackSettings, step: int) -> float:
    """The weight of step `step` (0 is the first)."""
    rising = min(1.0, (step + 1) / (settings.warmup + 1))
    falling = max(0.0, 1 - max(0, step - settings.hold) / settings.decay) if settings.decay else 1.0
    return settings.weight * rising * falling


def needs_frozen(settings: RLSettings) -> bool:
    """Whether the learner has to keep the weights that it starts from."""
    return bool(settings.kl) or (bool(settings.feedback.behaviours) and settings.feedback.teacher == "frozen")


def check_feedback(settings: RLSettings) -> None:
    """Refuses a teacher that the learner would not have."""
    feedback = settings.feedback
    if feedback.behaviours and feedback.teacher == "ema" and not settings.optim.ema:
        raise EtudeError("rl.feedback.teacher is 'ema', but no weights are averaged; set rl.optim.ema, such as 0.95")
    if feedback.behaviours and feedback.support == "sampled" and feedback.direction != "reverse":
        raise EtudeError(
            "rl.feedback.support is 'sampled', whose gradient is that of the reverse divergence alone; "
            "set rl.feedback.direction to 'reverse', or support to 'full' or 'top'"
        )
