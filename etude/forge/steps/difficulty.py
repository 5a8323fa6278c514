"""How hard a task is likely to be, from 1 to 5, before anybody has tried it; pass rates replace it later."""

from __future__ import annotations

from typing import Final

from etude.forge.steps.candidate import Candidate

STEPS: Final = (3.2, 4.6, 6.0, 7.6)  # scores at which the next level begins


def level(candidate: Candidate) -> int:
    return 1 + sum(candidate.difficulty >= step for step in STEPS)
