"""What of a running run may change: `RUN/live.toml` with `reward.parts`, `harness.tools` and `rl.optim.lr`, edition by
edition, and `cluster.engines`, which is no part of an edition: it changes nothing that is learnt from.

Edition 0 is the recipe that the run began with. A valid edit of the file, or of a Python file that it names, makes the
next one; so does a command that continues the run with other values, as far as the file does not say otherwise. An
edition is written to the journal with a copy of those files by their digest. A group keeps the edition that it was
admitted under, so that its rollouts are rewarded alike, after a resume too. New weights of the same parts count at
once, for all of a group: the parts' own values are kept with every rollout. An invalid edit is refused with a
sentence, and the old edition stays. Evaluations keep the recipe's tools: their rates would not be comparable. Knows
rewards, tools and a rate; no group and no learner.
"""

from __future__ import annotations

import copy
import hashlib
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from etude.core.durable import write_whole
from etude.core.errors import EtudeError
from etude.core.recipe import Recipe
from etude.core.run_files import read_facts
from etude.core.settings import RewardSettings
from etude.rl.groups import Rollout
from etude.rl.journal import Journal
from etude.rollout.rollout import RolloutSetup, reward_and_audit, with_tools

FILE = "live.toml"
MAY_CHANGE = ("reward.parts", "rl.optim.lr")
TOOLS, ENGINES = "harness.tools", "cluster.engines"


@dataclass(frozen=True)
class Edition:
    number: int
    parts: list[dict[str, Any]]
    lr: float
    digests: dict[str, str] = field(default_factory=dict)  # of the Python files that parts and tools name
    tools: list[dict[str, Any]] | None = None  # None: the recipe's

    def same_parts(self, other: Edition) -> bool:
        """Whether only weights differ."""
        bare = [[{k: v for k, v in p.items() if k != "weight"} for p in each.parts] for each in (self, other)]
        return bare[0] == bare[1] and all(self.digests.get(f) == other.digests.get(f) for f in _files_of(self.parts))


class Editions:
    def __init__(
        self, run: Path, recipe: Recipe, setup: RolloutSetup, journal: Journal, log: Callable[[str], None]
    ) -> None:
        self.file, self.copies = run / FILE, run / "rl" / "editions"
        self.journal, self.log = journal, log
        self._recipe, self._setup = recipe, setup
        self._engines = self.engines = recipe.cluster.engines  # by the recipe, and wanted now
        # What a continued run was told on the command line is an edition like an edit of the file.
        self._told = Edition(0, recipe.reward.parts, recipe.rl.optim.lr)
        self.editions = {int(facts["number"]): Edition(**facts) for facts in journal.editions()}
        if 0 not in self.editions:
            self.editions = {0: _as_begun(self._told, run, journal)} | self.editions
            journal.edition(0, vars(self.editions[0]))
        self.current = self.editions[max(self.editions)]
        self._setups = {0: setup} if self.editions[0].parts == self._told.parts else {}
        self._seen: list[tuple[str, int, int]] | None = None
        self._watched: list[Path] = []
        self.held = False  # while steps are repeated, which have to be as they were
        self.poll()

    def setup(self, number: int) -> RolloutSetup:
        """How rollouts of groups of this edition are run and rewarded."""
        if number not in self._setups:
            self._setups[number] = self._build(self.editions[number])
        return self._setups[number]

    def poll(self) -> bool:
        """Looks at the file; True when a new edition began. Costs a look at a few modification times."""
        if self.held:
            return False
        seen = [_stamp(path) for path in (self.file, *self._watched)]
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            wanted = self._read()
            if replace(wanted, number=self.current.number) == self.current:
                return False
            built = self._build(wanted)
        except EtudeError as refused:
            self.log(f"rl: {FILE} is refused, and edition {self.current.number} stays: {refused}")
            return False
        finally:
            self._seen = [_stamp(path) for path in (self.file, *self._watched)]
        self.journal.edition(wanted.number, vars(wanted))
        self.editions[wanted.number], self._setups[wanted.number], self.current = wanted, built, wanted
        self.log(f"rl: edition {wanted.number} of {FILE} begins with the next group")
        return True

    def rewarded(self, rollout: Rollout) -> Rollout:
        """With the present weights, where its edition had the same parts."""
        edition = self.editions.get(rollout.terms.edition)
        if edition is None or edition is self.current or not edition.same_parts(self.current):
            return rollout
        weights = {each.name: each.weight for each in self.setup(self.current.number).reward.parts}
        return replace(rollout, reward=sum(weights[name] * value for name, value in rollout.parts.items()))

    def _read(self) -> Edition:
        """What the file asks for."""
        try:
            found = tomllib.loads(self.file.read_text()) if self.file.exists() else {}
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise EtudeError(f"it is not TOML: {error}") from None
        flat = _flat(found)
        if unknown := sorted(flat.keys() - {*MAY_CHANGE, TOOLS, ENGINES}):
            can = f"{', '.join((*MAY_CHANGE, TOOLS))} and {ENGINES}"
            raise EtudeError(f"{unknown[0]} cannot change while a run goes on; {can} can")
        engines = flat.get(ENGINES, self._engines)
        if isinstance(engines, bool) or not isinstance(engines, int) or engines < 1:
            raise EtudeError(f"{ENGINES} is {engines!r}; it must be a whole number of at least 1")
        self.engines = engines
        parts, lr = flat.get("reward.parts", self._told.parts), flat.get("rl.optim.lr", self._told.lr)
        tools = flat.get(TOOLS)
        for name, value, such in (("reward.parts", parts, "tests"), (TOOLS, tools or [], "read")):
            if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
                raise EtudeError(f"{name} must be a list of tables, such as [{{ use = '{such}' }}]")
        if isinstance(lr, bool) or not isinstance(lr, int | float) or not (0 <= lr < math.inf):
            raise EtudeError(f"rl.optim.lr is {lr!r}; it must be a number of at least 0")
        # Of what the recipe says no file is watched, nor copied: the run began with it as it was.
        own = "reward.parts" in flat or parts != self.editions[0].parts
        files = _files_of([*(parts if own else ()), *(tools or ())])
        self._watched = [Path(file) for file in files]
        digests = {file: self._copied(Path(file)) for file in files}
        return Edition(max(self.editions) + 1, parts, float(lr), digests, tools)

    def _copied(self, path: Path) -> str:
        """The digest of a file, of which a copy is kept: an older edition may be needed when it has changed."""
        try:
            data = path.read_bytes()
            text = data.decode()
        except (OSError, UnicodeDecodeError) as error:
            raise EtudeError(f"{path} cannot be read: {error}") from None
        digest = hashlib.sha256(data).hexdigest()
        self.copies.mkdir(parents=True, exist_ok=True)
        if not self._copy(path, digest).exists():
            write_whole(self._copy(path, digest), text)
        return digest

    def _copy(self, path: Path, digest: str) -> Path:
        return _copy_of(self.copies, path, digest)

    def _build(self, edition: Edition) -> RolloutSetup:
        return build_edition(edition, self.copies, self._recipe, self._setup)


def build_edition(edition: Edition, copies: Path, recipe: Recipe, setup: RolloutSetup) -> RolloutSetup:
    """How rollouts of an edition are run and rewarded."""
    # From the copies, whose names have the digest: a changed file is another module, and is loaded anew.
    parts, tools = copy.deepcopy((edition.parts, edition.tools))
    for each in _of_files([*parts, *(tools or ())]):
        file, _, name = each["use"].rpartition(":")
        if file in edition.digests:
            each["use"] = f"{_copy_of(copies, Path(file), edition.digests[file])}:{name}"
    reward, audited = reward_and_audit(RewardSettings(parts), recipe.audit)
    setup = replace(setup, reward=reward, audit=audited)
    return setup if tools is None else with_tools(setup, replace(recipe.harness, tools=tools))


def _files_of(value: Any) -> list[str]:
    return list(dict.fromkeys(each["use"].rpartition(":")[0] for each in _of_files(value)))


def _of_files(value: Any) -> Iterator[dict[str, Any]]:
    """The tables in it that name a component of a Python file: parts, and what those are made of."""
    if isinstance(value, dict):
        if isinstance(use := value.get("use"), str) and ".py:" in use:
            yield value
        value = list(value.values())
    for each in value if isinstance(value, list) else ():
        yield from _of_files(each)


def _copy_of(copies: Path, path: Path, digest: str) -> Path:
    return copies / f"{path.stem}_{digest[:16]}.py"


def _as_begun(told: Edition, run: Path, journal: Journal) -> Edition:
    """Edition 0 of a run whose journal does not have it: it began before that was written, with the recipe of then."""
    if not journal.continued:
        return told
    changed = read_facts(run)["lineages"][-1].get("changed", {})
    parts, lr = (changed.get(key, [now])[0] for key, now in zip(MAY_CHANGE, (told.parts, told.lr), strict=True))
    return Edition(0, parts, lr)


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def _stamp(path: Path) -> tuple[str, int, int]:
    try:
        facts = path.stat()
    except OSError:
        return str(path), 0, -1
    return str(path), facts.st_mtime_ns, facts.st_size
