"""A question as a candidate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from etude.forge.steps.candidate import Candidate
from etude.tasks.format.config import AnswerKind


@dataclass(frozen=True)
class Question(Candidate):
    """Something to find out, with `changes` of the workspace or none; `how` is the kind of question."""

    kind: AnswerKind = "name"
    accepted: tuple[str, ...] = ()  # functions as path:name
    choices: tuple[str, ...] = ()  # functions that it could be, the right ones among them
    test: str = ""  # the test that it is about
    without_bug: Mapping[str, bytes | None] = field(default_factory=dict, repr=False)  # of a patch
    patch: str = field(default="", repr=False)
    output: Mapping[str, str] = field(default_factory=dict, repr=False)  # of failing tests
    guesses: tuple[str, ...] = ()  # answers of somebody who does not look closely, all of them wrong

    @property
    def key(self) -> str:
        """The same for the same question, in every process."""
        return self.key_of(self.how, self.test, self.patch, *self.accepted, "", *self.choices)

    @property
    def difficulty(self) -> float:
        """What has to be read: the patch, or the functions that it could be; and how far apart they lie."""
        places = {name.partition(":")[0] for name in self.choices}
        return 0.6 * math.log2(1 + self.lines) + 0.3 * len(self.choices) + 0.4 * (len(places) - 1)
