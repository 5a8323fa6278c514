"""Thinking left in code comments: musings in the first person, or a long block of comments where code was asked for.

Seen in published runs: a penalty on thinking tokens moves the thinking into the files.
"""

from __future__ import annotations

import re
from itertools import groupby

import pydantic

from etude.behaviours.base import Behaviour, Site
from etude.behaviours.written_code import written_code
from etude.harness.trajectory import Trajectory

NAME = "thinking_in_comments"
COMMENT = re.compile(r"\s*(?:#|//)\s?(.*)|.*\s{2}(?:#|//)\s(.*)")
MUSING = re.compile(
    r"\b(?:wait\b|hmm+|let me\b|let's (?:see|try|think)|i (?:think|guess|need to|should|wonder|will|am not sure)|"
    r"actually,|maybe i|not sure (?:if|why|whether)|on second thought|oh,)",
    re.I,
)
HINT = "Think before the call, not in the file: a comment there says why the code is so, in a line."


class ThinkingInComments(Behaviour):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        block: int = pydantic.Field(8, ge=2, description="comment lines one after another that are too many")

    settings: Settings

    def sites(self, trajectory: Trajectory) -> list[Site]:
        found = []
        for change in written_code(trajectory):
            comments = [_comment(line) for line in change.new_lines]
            runs = [len(list(run)) for there, run in groupby(comments, lambda text: text is not None) if there]
            if any(text and MUSING.search(text) for text in comments) or max(runs, default=0) >= self.settings.block:
                found.append(Site(change.step.turn, NAME, HINT))
        return found


def _comment(line: str) -> str | None:
    found = COMMENT.fullmatch(line)
    return None if found is None else found[1] or found[2] or ""
