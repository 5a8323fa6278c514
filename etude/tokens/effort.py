"""How a prompt states the effort asked for: by the chat template's own variable, or as a line of the system text.

Knows the levels' names only; what they cost is the reward's business.
"""

from __future__ import annotations

from etude.tokens.dialect import Dialect


def state_effort(system: str, level: str, dialect: Dialect | None) -> tuple[str, Dialect | None]:
    """The system text and the dialect with which a rollout of this level is rendered; no level changes nothing."""
    if not level:
        return system, dialect
    stating = dialect.stating_effort(level) if dialect is not None else None
    if stating is not None:
        return system, stating
    return "\n".join([*([system] if system else []), f"Effort: {level}."]), dialect
