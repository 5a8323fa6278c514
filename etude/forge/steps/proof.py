"""What running a candidate showed, and how its task is verified once it is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from etude.forge.steps.candidate import Candidate, RemovedCode
from etude.forge.steps.choose_functions import LEAST_TESTS
from etude.tasks.format.file_tree import Files

C = TypeVar("C", bound=Candidate)


@dataclass(frozen=True)
class Gates:
    """The gates that a change of the code has to pass, with what they ask about."""

    green: Collection[str]  # tests that pass with the reference
    whole: Files | None = None  # the repository with the reference
    least_broken: int = LEAST_TESTS  # tests that must fail before
    # Right solutions beside the reference, as the files that they write: an answer has to be theirs as well.
    others: tuple[Mapping[str, bytes | None], ...] = ()


@dataclass(frozen=True)
class Proof(Generic[C]):
    """The candidate with all that became known of it. An origin adds what its instructions and files need."""

    candidate: C
    removed: tuple[RemovedCode, ...] = ()  # what the agent must not find: scrubbed from the workspace, then searched
    gates: Gates | None = None  # None: the task is no change of code, and `check` verifies it
    partial: bool = False  # not every test ran: gates that find another failing one want the candidate tried again
