"""What comes of an installation, why a try came to nothing, and what a store remembers of both."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from etude.core import durable
from etude.core.errors import EtudeError
from etude.forge.environments.environment import Environment
from etude.forge.install.target_commands import Proposal
from etude.sandbox.base import Layer
from etude.sandbox.store.layers import Store

_FORMAT: Final = 1  # of what is remembered: a change of the rules that matters makes old results unknown


class InstallFailed(EtudeError):
    """This try led to nothing, and why; `final` where another one would lead nowhere else."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


@dataclass(frozen=True)
class InstallResult:
    """What came of it."""

    ok: bool
    reason: str  # why not, in a sentence
    commands: tuple[Proposal, ...] = ()
    verified: tuple[str, ...] = ()
    passed: int = 0
    failed: int = 0
    digest: str = ""
    seconds: float = 0.0
    tries: tuple[str, ...] = ()  # why each try was not the last
    notes: tuple[str, ...] = ()  # what the agent mocked or changed
    cached: bool = False
    lasting: bool = False  # a failure that the same rules would come to again
    environment: Environment | None = field(default=None, compare=False)

    def facts(self) -> dict[str, Any]:
        return {
            **_kept(self, "ok", "reason", "commands", "verified", "digest", "tries", "notes", "cached"),
            "tests": {"passed": self.passed, "failed": self.failed},
            "failing": self.failing,
            "seconds": round(self.seconds, 3),
        }

    @property
    def failing(self) -> list[str]:
        """The names of the tests that fail in the installed repository as it came."""
        outcomes = self.environment.outcomes if self.environment is not None else {}
        return sorted(name for name, outcome in outcomes.items() if outcome == "failed")


class Memory:
    """What the store remembers about the files of one repository: the result, and pip's downloads.

    A failure is remembered with the terms under which it came: with other rules, packages from elsewhere or more time
    for the tests it is unknown.
    """

    def __init__(self, store: Store, workspace: Layer) -> None:
        self._store = store
        # The same files under another interpreter are another installation.
        facts = [_FORMAT, workspace.digest, sys.version, sys.base_prefix]
        self._folder = store.root / "installs" / hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]

    def result(self) -> InstallResult | None:
        """An earlier success whose environment is still there."""
        try:
            facts = json.loads((self._folder / "result.json").read_text())
            environment = Environment.load(facts["digest"], self._store)
        except (OSError, ValueError, KeyError, EtudeError):
            return None
        commands = tuple(Proposal(**each) for each in facts.pop("commands"))
        facts |= {name: tuple(facts[name]) for name in ("verified", "tries", "notes")}
        return InstallResult(True, "", commands, **facts, cached=True, environment=environment)

    def failure(self, index: Mapping[str, str], suite_seconds: float) -> InstallResult | None:
        """An earlier failure of these rules, under terms that were no harder."""
        try:
            facts = json.loads((self._folder / "failure.json").read_text())
            # More time may make a suite that was too slow pass.
            if facts["terms"] != _terms(index) or facts["suite_seconds"] < suite_seconds:
                return None
            commands = tuple(Proposal(**each) for each in facts["commands"])
            return InstallResult(False, facts["reason"], commands, tries=tuple(facts["tries"]), cached=True)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep_failure(self, result: InstallResult, index: Mapping[str, str], suite_seconds: float) -> None:
        terms = {"terms": _terms(index), "suite_seconds": suite_seconds}
        self._write("failure.json", terms | _kept(result, "reason", "commands", "tries"))

    def keep(self, result: InstallResult) -> None:
        kept = _kept(result, "digest", "commands", "verified", "passed", "failed", "tries", "notes")
        self._write("result.json", kept)

    def downloads(self) -> Layer | None:
        try:
            return self._store.layer((self._folder / "downloads").read_text().strip())
        except (OSError, EtudeError):
            return None

    def keep_downloads(self, layer: Layer | None) -> None:
        if layer is not None:
            self._write("downloads", layer.digest)

    def _write(self, name: str, facts: Mapping[str, Any] | str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        text = facts if isinstance(facts, str) else json.dumps(facts, indent=1)
        durable.write_whole(self._folder / name, f"{text}\n")


def _kept(result: InstallResult, *names: str) -> dict[str, Any]:
    """Fields of a result, without those that only hold while it is in memory."""
    facts = asdict(replace(result, environment=None))
    return {name: facts[name] for name in names}


def _terms(index: Mapping[str, str]) -> str:
    """What a failure depends on beside the repository: the text of the rules, and where packages come from."""
    found = hashlib.sha256(json.dumps(sorted(index.items())).encode())
    # The text of the rules is part of the terms: a better rule makes old failures unknown.
    for file in sorted(Path(__file__).parent.rglob("*")):
        if file.suffix in (".py", ".toml"):
            found.update(file.read_bytes())
    return found.hexdigest()[:32]
