"""A task's workspace as a layer to start sandboxes over. Knows tasks and the layer store, no policy and no grade."""

from __future__ import annotations

import errno
import tempfile
import weakref
from pathlib import Path

from etude.errors import EtudeError
from etude.sandbox.base import Layer, SandboxFailure
from etude.sandbox.hosts import StoringHost
from etude.sandbox.layers import Store
from etude.tasks.format import Task

# A copy of a large workspace is made once for each store, however many attempts there are.
_made: weakref.WeakKeyDictionary[Store, dict[str, Layer]] = weakref.WeakKeyDictionary()
# What the machine, and not the tree, did wrong.
_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def workspace_layer(task: Task, host: StoringHost) -> Layer:
    """The pristine workspace. A store that cannot take it is a failure of the machinery, a hostile tree is not."""
    files = task.workspace
    if not len(files):
        raise EtudeError(f"task {task.name} has no environment/workspace; only an image could run it")
    plain = all(files.kind(path) == "file" for path in files)
    try:
        if files.directory is None and plain:
            return host.store.add_files(dict(files))
        made = _made.setdefault(host.store, {})
        digest = task.digest
        if digest not in made:
            if files.directory is not None:
                made[digest] = host.store.add(files.directory)
            else:
                with tempfile.TemporaryDirectory() as folder:
                    files.write(Path(folder) / "workspace")
                    made[digest] = host.store.add(Path(folder) / "workspace")
        return made[digest]
    except (OSError, EtudeError) as error:
        trouble = error if isinstance(error, OSError) else error.__context__
        if isinstance(trouble, OSError) and trouble.errno in _MACHINE:
            text = f"the workspace of {task.name} cannot be stored: {trouble.strerror}"
            raise SandboxFailure("store", text) from error
        raise
