"""Words for the user that help nobody: filler, praise of the own work, the same sentence twice, a report too long."""

from __future__ import annotations

import re

import pydantic

from etude.behaviours.base import Behaviour, Site, own_turns
from etude.core.policy import Assistant
from etude.harness.trajectory import Trajectory

NAME = "communication"
FILLER = re.compile(
    r"\b(?:certainly|of course|great question|absolutely|i'?d be happy|i hope this helps|let me know if|"
    r"feel free to|as an ai|i have successfully|perfectly|flawless(?:ly)?)\b",
    re.I,
)
SENTENCE = re.compile(r"[^.!?\n]{20,}[.!?]")


class Communication(Behaviour):
    class Settings(pydantic.BaseModel, extra="forbid", frozen=True):
        longest: int = pydantic.Field(1200, ge=1, description="characters of one message to the user")

    settings: Settings

    def sites(self, trajectory: Trajectory) -> list[Site]:
        found = []
        for entry, turn in own_turns(trajectory):
            text = said(turn)
            sentences = [sentence.strip().lower() for sentence in SENTENCE.findall(text)]
            if len(text) > self.settings.longest:
                found.append(Site(entry, f"{NAME}.too_long", "Say what changed and what is open, in a few sentences."))
            if FILLER.search(text):
                found.append(Site(entry, f"{NAME}.filler", "Leave out courtesies and praise; say what is the case."))
            if len(sentences) > len(set(sentences)):
                found.append(Site(entry, f"{NAME}.repeated", "Say each thing once."))
        return found


def said(turn: Assistant) -> str:
    """All that a turn says to the user."""
    finished = [call.arguments.get("message", "") for call in turn.calls if call.name == "finish"]
    return "\n".join([turn.final, *finished]).strip()
