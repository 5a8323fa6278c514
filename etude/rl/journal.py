"""The journal: every change of every slot, in SQLite, so that `kill -9` at any moment loses no finished rollout.

    changes    one row for each change of state; a slot's last row is its state
    rollouts   finished rollouts, written in the same transaction as their `ready`
    files      path and digest of those that are too large for a row (`rollout_files`), in the same way
    terms      what all rollouts of a group are told alike
    editions   what the run's settings that may change were (`editions.py`)
    unmoved    steps that left the weights as they were
    lineages   the last step that each start has in common with those before it, and the row that it went on from

A checkpoint names the last row that it knows. A resume from it returns what was trained after that row to ready, and
what was under way to queued. Steps that were trained after it can be repeated with the same groups, which gives the
same weights: `Resumed.replays`. Write-ahead logging makes each transaction survive the death of this process; `sync`
makes all of them survive the machine's. Knows numbers and states; no task, no model and no clock.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etude.core.errors import EtudeError
from etude.core.terms import Terms
from etude.rl.groups import State
from etude.rl.rollout_files import RolloutFile, RolloutFiles

FORMAT = 3
GROUP = -1  # in the place of a slot: the group as a whole
# A resume finds these as queued, so a kill may lose them: a transaction of their own each would be half of all.
PASSING: tuple[State, ...] = ("running", "grading")

_TABLES = """
CREATE TABLE changes (
    row INTEGER PRIMARY KEY, lineage INTEGER NOT NULL, number INTEGER NOT NULL, slot INTEGER NOT NULL,
    state TEXT NOT NULL, step INTEGER NOT NULL);
CREATE INDEX changes_of_slot ON changes (number, slot, row);
CREATE TABLE rollouts (
    number INTEGER NOT NULL, slot INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (number, slot));
CREATE TABLE lineages (lineage INTEGER PRIMARY KEY, step INTEGER NOT NULL, row INTEGER NOT NULL);
"""
_SINCE_2 = """
CREATE TABLE files (
    number INTEGER NOT NULL, slot INTEGER NOT NULL, path TEXT NOT NULL, digest TEXT NOT NULL,
    PRIMARY KEY (number, slot));
CREATE TABLE editions (edition INTEGER PRIMARY KEY, facts TEXT NOT NULL);
CREATE TABLE terms (number INTEGER PRIMARY KEY, effort TEXT NOT NULL, edition INTEGER NOT NULL);
"""
_SINCE_3 = "CREATE TABLE unmoved (lineage INTEGER NOT NULL, step INTEGER NOT NULL, PRIMARY KEY (lineage, step));"


@dataclass(frozen=True)
class SavedSlot:
    """A slot as a resume finds it: still to be sampled (neither data nor file), or ready."""

    state: State
    data: bytes | None = None
    file: RolloutFile | None = None


@dataclass(frozen=True)
class Resumed:
    """What a lineage starts from."""

    groups: dict[int, tuple[int, list[SavedSlot]]]  # not yet trained: number -> (step it began at, its slots)
    next: int  # the number of the next new group
    terms: dict[int, Terms] = field(default_factory=dict)  # of those groups; the default where none are written
    replays: list[list[int]] = field(default_factory=list)  # groups of each step that is to be repeated first, in order
    unmoved: list[int] = field(default_factory=list)  # of those steps, the ones that left the weights as they were


class Journal:
    def __init__(self, path: Path, lineage: int) -> None:
        self.path = path
        self.lineage = lineage
        self.files = RolloutFiles(path.parent / "rollouts")
        self._passing: list[tuple[int, int, int, int, State, int]] = []  # rows that go with the next transaction
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Transactions are opened by hand (`_transaction`); Python's implicit ones would begin at other places.
            self._base = sqlite3.connect(path, isolation_level=None)
            self._base.execute("PRAGMA journal_mode = WAL")
            # NORMAL waits for the disk only where the log is checkpointed (`sync`): a kill loses nothing, a power
            # cut the rows since then.
            self._base.execute("PRAGMA synchronous = NORMAL")
            (found,) = self._base.execute("PRAGMA user_version").fetchone()
            if found < FORMAT:
                missing = (_TABLES if found == 0 else "") + (_SINCE_2 if found < 2 else "") + _SINCE_3
                self._base.executescript(f"BEGIN; {missing} PRAGMA user_version = {FORMAT}; COMMIT;")
            elif found != FORMAT:
                raise EtudeError(f"{path} was written by another version of etude; start over with --fresh")
            (self.row,) = self._base.execute("SELECT coalesce(max(row), 0) FROM changes").fetchone()
        except (sqlite3.Error, OSError) as error:
            raise EtudeError(f"the journal {path} cannot be used ({error}); start over with --fresh") from error

    # What happens

    def admit(self, number: int, slots: int, step: int, terms: Terms | None = None) -> None:
        """A new group begins; `step` is that of the weights its rollouts may begin with."""
        terms = terms or Terms()
        with self._transaction():
            self._base.execute("INSERT OR REPLACE INTO terms VALUES (?, ?, ?)", (number, terms.effort, terms.edition))
            self._write((number, slot, "queued", step) for slot in range(slots))

    def change(self, number: int, slot: int, state: State) -> None:
        if state in PASSING:
            self.row += 1
            self._passing.append((self.row, self.lineage, number, slot, state, 0))
            return
        with self._transaction():
            self._write([(number, slot, state, 0)])

    def ready(self, number: int, slot: int, data: bytes | RolloutFile) -> None:
        """A rollout is finished: from now on it is never lost."""
        with self._transaction():
            # One that is sampled anew, as its file was damaged, may be small enough to lie here: the file counts first.
            self._base.execute("DELETE FROM files WHERE number = ? AND slot = ?", (number, slot))
            if isinstance(data, RolloutFile):
                row = (number, slot, data.path, data.digest)
                self._base.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)", row)
            else:
                self._base.execute("INSERT OR REPLACE INTO rollouts VALUES (?, ?, ?)", (number, slot, data))
            self._write([(number, slot, "ready", 0)])

    def trained(self, groups: Iterable[tuple[int, Sequence[int]]], step: int, moved: bool = True) -> None:
        """These slots made the optimiser's step number `step`, which may have left the weights as they were."""
        with self._transaction():
            if not moved:
                self._base.execute("INSERT OR REPLACE INTO unmoved VALUES (?, ?)", (self.lineage, step))
            self._write((number, slot, "trained", step) for number, slots in groups for slot in slots)

    def void_group(self, number: int) -> None:
        """Too few of its rollouts are valid."""
        with self._transaction():
            self._base.execute("DELETE FROM rollouts WHERE number = ?", (number,))
            gone = self._base.execute("SELECT path FROM files WHERE number = ?", (number,)).fetchall()
            self._base.execute("DELETE FROM files WHERE number = ?", (number,))
            self._write([(number, GROUP, "void", 0)])
        self.files.remove([path for (path,) in gone])

    def edition(self, number: int, facts: Mapping[str, Any]) -> None:
        """From now on groups may be admitted under this edition."""
        with self._transaction():
            self._base.execute("INSERT OR REPLACE INTO editions VALUES (?, ?)", (number, json.dumps(facts)))

    def editions(self) -> list[dict[str, Any]]:
        return [json.loads(facts) for (facts,) in self._base.execute("SELECT facts FROM editions ORDER BY edition")]

    def forget(self, row: int) -> None:
        """Rollouts that were trained up to `row` will never be asked for again."""
        with self._transaction():
            self._base.execute(
                # the newest row decides: one that an abandoned lineage trained is ready again
                "DELETE FROM rollouts WHERE (SELECT c.state = 'trained' AND c.row <= ? FROM changes c "
                "WHERE c.number = rollouts.number AND c.slot = rollouts.slot ORDER BY c.row DESC LIMIT 1)",
                (row,),
            )
            gone = self._base.execute(
                "SELECT number, slot, path FROM files WHERE (SELECT c.state = 'trained' AND c.row <= ? FROM changes c "
                "WHERE c.number = files.number AND c.slot = files.slot ORDER BY c.row DESC LIMIT 1)",
                (row,),
            ).fetchall()
            for number, slot, _ in gone:
                self._base.execute("DELETE FROM files WHERE number = ? AND slot = ?", (number, slot))
        # After the commit: a kill in between leaves a file that nobody names, which the next start removes.
        self.files.remove([path for *_, path in gone])

    def sync(self) -> None:
        """Everything so far is on the disk."""
        self._write_passing()
        self._base.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        with suppress(EtudeError):  # nothing depends on them
            self._write_passing()
        self._base.close()

    # What a resume finds

    @property
    def continued(self) -> bool:
        """Whether there was a lineage before ours."""
        (found,) = self._base.execute("SELECT count(*) FROM lineages WHERE lineage < ?", (self.lineage,)).fetchone()
        return bool(found)

    def resume(self, row: int, step: int, begun: Collection[int] = (), replays: int = 0) -> Resumed:
        """Opens our lineage on a checkpoint at `step` that knows the journal up to `row` (0 and 0: there is none).

        `begun` are numbers of groups of which some rollout goes on from turns that older weights sampled. Whoever asks
        for `replays` (at most so many) promises to train them first: the weights that they led to then count as ours.
        """
        if row > self.row:
            raise EtudeError(
                f"the journal {self.path} ends at row {self.row}, before row {row} of the checkpoint at step {step}; "
                "restore it or start over with --fresh"
            )
        with self._transaction():
            found = self._reconcile(row, step, begun, replays)
        self.files.keep_only({path for (path,) in self._base.execute("SELECT path FROM files")})
        return found

    def branches(self) -> dict[int, int]:
        """Lineage -> the last step of it that the present weights descend from, for all lineages before ours."""
        starts = dict(self._base.execute("SELECT lineage, step FROM lineages").fetchall())
        return {
            # The smallest step: a later start may have gone back further than the one right after it.
            lineage: min(step for later, step in starts.items() if later > lineage)
            for lineage in starts
            if lineage < self.lineage
        }

    def _replays(
        self, step: int, most: int, there: Mapping[int, Sequence[SavedSlot]]
    ) -> tuple[list[list[int]], list[int]]:
        """The groups of the steps behind `step` that led to the newest weights, while all their rollouts are left; and
        which of those steps moved nothing."""
        trained: dict[int, dict[int, list[int]]] = {}  # lineage -> step -> groups, in the order of their training
        for lineage, at, number in self._base.execute(
            "SELECT lineage, step, number FROM changes WHERE state = 'trained' AND step > ? ORDER BY row", (step,)
        ):
            batch = trained.setdefault(lineage, {}).setdefault(at, [])
            if batch[-1:] != [number]:
                batch.append(number)
        history: dict[int, tuple[int, list[int]]] = {}  # step -> a lineage that took it, and its groups
        starts = "SELECT lineage, step FROM lineages WHERE lineage < ? ORDER BY lineage"
        for lineage, common in self._base.execute(starts, (self.lineage,)).fetchall():
            history = {at: taken for at, taken in history.items() if at <= common}
            history |= {at: (lineage, batch) for at, batch in trained.get(lineage, {}).items()}
        whole = {number for number, slots in there.items() if all(slot.state != "queued" for slot in slots)}
        still = set(self._base.execute("SELECT lineage, step FROM unmoved WHERE step > ?", (step,)).fetchall())
        found: list[list[int]] = []
        unmoved: list[int] = []
        for at in range(step + 1, step + most + 1):
            lineage, batch = history.get(at, (-1, []))
            if not batch or not whole.issuperset(batch):
                break
            found.append(batch)
            unmoved += [at] if (lineage, at) in still else []
        return found, unmoved

    def _reconcile(self, row: int, step: int, begun: Collection[int], most: int) -> Resumed:
        # The database finds what is not settled: in memory, all rows of a long run took 360 bytes for each rollout.
        # Trained up to the checkpoint's row: its gradients are in the weights. After it: ready once more.
        unsettled: list[tuple[int, int, State]] = self._base.execute(
            "SELECT number, slot, state FROM changes JOIN (SELECT max(row) AS last FROM changes GROUP BY number, slot) "
            "ON row = last WHERE NOT (state = 'trained' AND row <= ?) "
            "AND number NOT IN (SELECT number FROM changes WHERE slot = ?) ORDER BY number, slot",
            (row, GROUP),
        ).fetchall()
        groups: dict[int, list[SavedSlot]] = {}
        written: list[tuple[int, int, State, int]] = []
        kept = set(self._base.execute("SELECT number, slot FROM rollouts"))
        files = {
            (number, slot): RolloutFile(*named)
            for number, slot, *named in self._base.execute("SELECT number, slot, path, digest FROM files")
        }
        for number, slot, state in unsettled:
            now: State = state
            if state != "void":
                # Data that `forget` removed cannot become ready again, so such a slot is sampled anew.
                there = (number, slot) in kept or (number, slot) in files
                now = "ready" if state in ("ready", "trained") and there else "queued"
            if now != state:
                written.append((number, slot, now, step))
            file = files.get((number, slot)) if now == "ready" else None
            data = self._rollout(number, slot) if now == "ready" and file is None else None
            groups.setdefault(number, []).append(SavedSlot(now, data, file))
        self._write(written)
        # A slot that was void when its group was trained has no row `trained` of its own.
        open_groups = {n: slots for n, slots in groups.items() if any(slot.state != "void" for slot in slots)}
        replays, unmoved = self._replays(step, most, open_groups)
        newest = step + len(replays)
        self._base.execute("INSERT OR REPLACE INTO lineages VALUES (?, ?, ?)", (self.lineage, newest, row))
        branches = self.branches()
        found = {}
        for number, slots in open_groups.items():
            lineage, of = self._base.execute(
                "SELECT lineage, step FROM changes WHERE number = ? AND state = 'queued' ORDER BY row LIMIT 1",
                (number,),
            ).fetchone()
            # Nothing of it was sampled, or nothing is left: it begins with the weights that new groups begin with.
            fresh = all(slot.state != "ready" for slot in slots) and number not in begun
            found[number] = (newest if fresh else min(of, newest, branches.get(lineage, newest)), slots)
        told = self._base.execute("SELECT number, effort, edition FROM terms")
        terms = {number: Terms(effort, edition) for number, effort, edition in told if number in found}
        (after,) = self._base.execute("SELECT coalesce(max(number), -1) + 1 FROM changes").fetchone()
        return Resumed(found, after, terms, replays, unmoved)

    def find(self, number: int, slot: int) -> bytes | RolloutFile | None:
        """Where a finished rollout is kept."""
        where = "WHERE number = ? AND slot = ?"
        named = self._base.execute(f"SELECT path, digest FROM files {where}", (number, slot)).fetchone()  # noqa: S608
        if named is not None:
            return RolloutFile(*named)
        data = self._base.execute(f"SELECT data FROM rollouts {where}", (number, slot)).fetchone()  # noqa: S608
        return bytes(data[0]) if data is not None else None

    def _rollout(self, number: int, slot: int) -> bytes:
        (data,) = self._base.execute(
            "SELECT data FROM rollouts WHERE number = ? AND slot = ?", (number, slot)
        ).fetchone()
        return bytes(data)

    # Inside

    def _write_passing(self) -> None:
        if self._passing:
            with self._transaction():
                pass

    def _write(self, rows: Iterable[tuple[int, int, State, int]]) -> None:
        for number, slot, state, step in rows:
            self.row += 1
            self._base.execute(
                "INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?)", (self.row, self.lineage, number, slot, state, step)
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of it or nothing; a full disk is said in a sentence."""
        try:
            self._base.execute("BEGIN")
            passing, self._passing = self._passing, []
            try:
                self._base.executemany("INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?)", passing)
                yield
                self._base.execute("COMMIT")
            except BaseException:
                self._passing = passing + self._passing
                raise
        except BaseException as error:
            with suppress(sqlite3.Error):
                self._base.execute("ROLLBACK")
            if not isinstance(error, sqlite3.Error):
                raise
            raise EtudeError(f"cannot write {self.path}: {error}; make room and run the same command again") from error
