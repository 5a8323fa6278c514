"""Where a program of a run is started: one protocol, whatever starts it.

A `Program` is a module of ours with its arguments; it prints a line when it is ready. A `Placement` starts it somewhere
and returns a `Running` one, which can be waited for and ended. Each start of a name has an address of its own, which
`publish` makes the address of that name: so clients keep one address, and never reach a process that is not ready or
whose place another has taken. Knows neither what programs compute nor how they are asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

Spread = Literal["together", "apart"]
LEARNER, ENGINE, WORKER = "learner", "engine", "worker"  # what programs are called, with their number


@dataclass(frozen=True)
class Program:
    """A module of ours as a process of its own."""

    name: str  # role and number, as in "engine-0"
    module: str
    arguments: tuple[str, ...]
    ready: str  # what the line begins with that it prints when it can be asked
    log: Path | None = None
    leaves: tuple[Path, ...] = ()  # files that it may leave when it is killed
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """As people read it: the first engine is "engine", as where there is one."""
        return self.name.removesuffix("-0")


@dataclass(frozen=True)
class Role:
    """How many programs of one kind a run has, and what each of them takes of its machine."""

    name: str
    count: int
    gpus: int = 0
    spread: Spread = "apart"

    def programs(self) -> list[str]:
        return [f"{self.name}-{number}" for number in range(self.count)]


class Running(Protocol):
    """A program that was started and said that it is ready."""

    said: str  # the rest of that line

    @property
    def pid(self) -> int:
        """Its number, where it runs on this machine; otherwise 0."""

    @property
    def ended(self) -> bool:
        """Whether it is known that it ended, or that it is lost with its host."""

    async def wait(self) -> None:
        """Returns when it ended, or is lost."""

    async def last_words(self) -> str | None:
        """How it ended and the end of its log; None while it lives."""

    def log_end(self) -> str: ...

    async def close(self, seconds: float) -> None:
        """Asks it to stop, and kills it if that takes longer."""


class Placement(Protocol):
    """Starts programs."""

    def address(self, name: str) -> str:
        """Where clients find whichever process has this name; it stays."""

    async def start(self, program: Program, seconds: float) -> Running:
        """A new process of that name. Nobody finds it until it is published."""

    def publish(self, name: str) -> None:
        """The process of this name that was started last answers at the name's address from now on."""

    async def ranks(self, names: Sequence[str]) -> list[Mapping[str, str]]:
        """torchrun's variables for programs that are the ranks of one learner; none where they start each other."""

    async def give_back(self, name: str) -> None:
        """No process of this name will be started again: what was kept for it is free."""

    async def close(self) -> None: ...
