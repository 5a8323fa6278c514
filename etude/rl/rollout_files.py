"""Large rollouts as files of their own: written in another thread, named in the journal by path and digest.

A rollout of 200,000 tokens with experts is some 190 MB; as a row of the journal it would stop the event loop while it
is written. Knows bytes and names; neither what a rollout is nor which state it is in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from etude.core.durable import sync
from etude.core.errors import EtudeError

# Below this a row in SQLite is cheaper than a file and its two syncs; a rollout of a few hundred tokens has 10 kB.
INLINE = 64 << 10


@dataclass(frozen=True)
class RolloutFile:
    """Where a rollout lies, and what it must hold."""

    path: str  # below the folder of the files
    digest: str


class RolloutFiles:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, number: int, slot: int, lineage: int, data: bytes) -> RolloutFile:
        """On the disk when it returns; meant for a thread."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # The lineage is part of the name: a file that an abandoned lineage left is never taken for this one.
        name = f"{number:06d}-{slot:02d}-{lineage}.safetensors"
        working = self.folder / f".{name}"
        try:
            working.write_bytes(data)
            sync(working)
            working.rename(self.folder / name)
            sync(self.folder)
        except OSError as error:
            working.unlink(missing_ok=True)
            raise EtudeError(
                f"the rollout {self.folder / name} cannot be written: {error}; make room and run the same command again"
            ) from error
        return RolloutFile(name, hashlib.sha256(data).hexdigest())

    def read(self, file: RolloutFile) -> bytes:
        """Its bytes; a file that is gone or changed is refused."""
        if not _plain(file.path):
            raise EtudeError(f"{file.path!r} is no name of a rollout's file")
        try:
            data = (self.folder / file.path).read_bytes()
        except OSError as error:
            raise EtudeError(f"the rollout {self.folder / file.path} cannot be read: {error}") from None
        if hashlib.sha256(data).hexdigest() != file.digest:
            raise EtudeError(f"the rollout {self.folder / file.path} is not the one that was written")
        return data

    def remove(self, names: Collection[str]) -> None:
        for name in filter(_plain, names):
            (self.folder / name).unlink(missing_ok=True)

    def keep_only(self, names: Collection[str]) -> None:
        """Removes what a killed process wrote and never named."""
        if self.folder.is_dir():
            self.remove([path.name for path in self.folder.iterdir() if path.name not in names])


def _plain(name: str) -> bool:
    """Whether it stays in the folder: a worker's answer and a journal from elsewhere may name anything."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name
