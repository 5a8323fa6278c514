"""A task's workspace as a layer to start sandboxes over. Knows tasks and the layer store, no policy and no grade."""

from __future__ import annotations

import errno
import tempfile
import weakref
from collections import OrderedDict
from pathlib import Path

from etude.errors import EtudeError
from etude.sandbox.base import Layer, SandboxFailure
from etude.sandbox.hosts import StoringHost
from etude.sandbox.layers import Store
from etude.tasks.format import Task

# A layer is made once for each store, however many attempts there are; the newest tasks are remembered.
_REMEMBERED = 128
_made: weakref.WeakKeyDictionary[Store, OrderedDict[str, Layer]] = weakref.WeakKeyDictionary()
# What the machine, and not the tree, did wrong.
_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def workspace_layer(task: Task, host: StoringHost) -> Layer:
    """The pristine workspace. A store that cannot take it is a failure of the machinery, a hostile tree is not."""
    try:
        store = host.store
        made = _made.setdefault(store, OrderedDict())
        layer = made.get(task.digest)
        if layer is None or not layer.path.exists():  # the store may have been pruned
            layer = made[task.digest] = _add(task, store)
            if len(made) > _REMEMBERED:
                made.popitem(last=False)
        return layer
    except (OSError, EtudeError) as error:
        trouble = error if isinstance(error, OSError) else error.__context__
        if isinstance(trouble, OSError) and trouble.errno in _MACHINE:
            text = f"the workspace of {task.name} cannot be stored: {trouble.strerror}"
            raise SandboxFailure("store", text) from error
        raise


def _add(task: Task, store: Store) -> Layer:
    files = task.workspace
    if not len(files):
        raise EtudeError(f"task {task.name} has no environment/workspace; only an image could run it")
    if files.directory is not None:
        return store.add(files.directory)
    if all(files.kind(path) == "file" for path in files):
        return store.add_files(dict(files))
    with tempfile.TemporaryDirectory() as folder:
        files.write(Path(folder) / "workspace")
        return store.add(Path(folder) / "workspace")
