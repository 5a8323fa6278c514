"""Files out of a sandbox that nobody trusts: what it changed is packed by its init, unpacked by us, never followed.

One piece serves both a package that was fetched and unpacked inside, and an environment that was installed there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from etude.core.errors import EtudeError
from etude.forge.install.result import InstallFailed
from etude.sandbox.base import Layer, Snapshot
from etude.sandbox.store.layers import Store
from etude.sandbox.store.packed_changes import BadChanges, unpack


@contextmanager
def unpacked_snapshot(snapshot: Snapshot, store: Store) -> Iterator[Path]:
    """A folder with everything that the snapshot's sandbox had changed, from its root on; both are gone afterwards.

    No component of a path in it may be followed unseen: use `plain_folder`, `Store.add` and `Files.scan`.
    """
    try:
        with store.scratch() as partial:
            target = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            source = os.open(snapshot.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                unpack(source, target)
            except (BadChanges, OSError) as error:
                raise EtudeError(f"what the sandbox holds cannot be taken out: {error}") from None
            finally:
                os.close(source)
                os.close(target)
            yield partial
    finally:
        snapshot.path.unlink(missing_ok=True)
        snapshot.path.with_suffix(".json").unlink(missing_ok=True)


def plain_folder(root: Path, path: str) -> Path | None:
    """A folder below `root`, or None where it is missing or a link takes its place."""
    here = root
    for name in path.strip("/").split("/"):
        here = here / name
        if here.is_symlink() or not here.is_dir():
            return None
    return here


def add_root_layer(folder: Path, store: Store, shows: tuple[str, ...]) -> Layer:
    """A layer of what was installed, from the root on."""
    try:
        return store.add(folder, at="/", shows=shows)
    except EtudeError as error:
        raise InstallFailed(f"what was installed cannot be kept: {error}") from None


def last_line(output: bytes | str) -> str:
    """What a program said last."""
    text = output if isinstance(output, str) else output.decode("utf-8", "replace")
    return ([line.strip() for line in text.splitlines() if line.strip()] or ["it said nothing"])[-1][:300]
