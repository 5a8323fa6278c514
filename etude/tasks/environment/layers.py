"""The layers that a task's sandboxes start over: its environment, where it has one, and its workspace.

Also our own code as a layer, for an interpreter of the sandbox that has not loaded it. Knows tasks and the layer
store, no policy and no grade.
"""

from __future__ import annotations

import errno
import io
import json
import py_compile
import tempfile
import weakref
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Final

from etude.core.errors import EtudeError
from etude.sandbox.base import WORKSPACE, Layer, Sandbox, SandboxFailure
from etude.sandbox.environment import ENVIRONMENT
from etude.sandbox.hosts import StoringHost
from etude.sandbox.store.layers import Store, default_store
from etude.tasks.environment.hide_file_digests import without_digests
from etude.tasks.environment.services import Service, read_services, serve
from etude.tasks.format.file_tree import Files
from etude.tasks.format.task import Task

ARCHIVE: Final = "/opt/etude/inside.zip"  # what runs inside, as `inside_layer` brings it
REPORTER: Final = Path(__file__).parents[1] / "sandbox_side" / "report.cjs"  # what a JavaScript process loads

# A layer is made once for each store, however many rollouts there are; the newest tasks are remembered.
_REMEMBERED = 128
_made: weakref.WeakKeyDictionary[Store, OrderedDict[tuple[str, str], Layer]] = weakref.WeakKeyDictionary()
_installed: dict[tuple[Path, str], Installation] = {}
_covering: dict[tuple[Path, str], list[Layer]] = {}  # what lies over an environment, by store and digest
# What the machine, and not the tree, did wrong.
_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


@dataclass(frozen=True)
class Installation:
    """What a task needs of the environment that it names."""

    layer: Layer
    options: tuple[str, ...]  # of the runner of its tests
    services: tuple[Service, ...]


def task_layers(task: Task, host: StoringHost) -> list[Layer]:
    """What every sandbox of the task starts over, later ones on top."""
    workspace = workspace_layer(task, host)
    if task.facts.environment is None:
        return [workspace]
    environment = installation(task, host).layer
    return [environment, *_covers(environment, host.store), workspace]


def _covers(environment: Layer, store: Store) -> list[Layer]:
    covers = _covering.get((store.root, environment.digest))
    if covers is None or not all(each.path.exists() for each in covers):
        covers = _covering[store.root, environment.digest] = without_digests(environment, store)
    return covers


def task_variables(task: Task) -> dict[str, str]:
    """What programs in every sandbox of the task find in their environment, beside what all sandboxes have."""
    installed = task.facts.environment
    return {} if installed is None else environment_variables(installed.python, installed.env)


def environment_variables(python: str, env: Mapping[str, str]) -> dict[str, str]:
    """What programs of an environment find: its own interpreter and scripts first."""
    folder = python.rpartition("/")[0]
    path = f"{folder}:{ENVIRONMENT['PATH']}"
    return {"PATH": path, "VIRTUAL_ENV": folder.rpartition("/")[0], **env}


def installation(task: Task, host: StoringHost) -> Installation:
    """What the task's repository was installed into: from the host's own store, or the one that commands share."""
    assert task.facts.environment is not None
    digest = task.facts.environment.digest
    for root in (host.store.root, default_store()):
        found = _installed.get((root, digest))
        if found is None or not found.layer.path.exists():
            file = root / "environments" / f"{digest}.json"
            if not file.is_file():
                continue
            facts = json.loads(file.read_text())
            store = host.store if root == host.store.root else Store(root)
            services = read_services(facts.get("services", []))
            found = Installation(store.layer(facts["layer"]), tuple(facts["suite"]["options"]), services)
            _installed[root, digest] = found
        return found
    made_from = f" ({task.facts.provenance})" if task.facts.provenance else ""
    # An environment to build in is made with the tasks that need it.
    how = "etude tasks make NAME --from devops" if task.facts.category == "DevOps" else "etude env install NAME"
    raise EtudeError(
        f"task {task.name}{made_from} needs environment {digest[:12]}, which is not in {default_store()}: "
        f"run `{how}` with the repository that it was made from"
    )


async def serve_task(task: Task, host: StoringHost, sandbox: Sandbox) -> None:
    """Starts the services that the task's environment brings, in a sandbox that nobody has used yet."""
    if task.facts.environment is not None:
        await serve(sandbox, installation(task, host).services, task.facts.environment.python)


def workspace_layer(task: Task, host: StoringHost) -> Layer:
    """The pristine workspace."""
    if not len(task.workspace):
        raise EtudeError(
            f"task {task.name} has no environment/workspace; only its image could run it (--sandbox docker)"
        )
    return _layer(task, host, "workspace", WORKSPACE, lambda: task.workspace)


def data_layers(task: Task, host: StoringHost, at: str, left_out: Callable[[str], bool]) -> list[Layer]:
    """Files beside the tests that are no tests, where the tests look for them: none, or one layer."""
    left = dict.fromkeys(path for path in task.tests if left_out(path))
    if len(left) == len(task.tests):
        return []
    return [_layer(task, host, f"data at {at}", at, lambda: task.tests.replaced(left))]


def _layer(task: Task, host: StoringHost, what: str, at: str, files: Callable[[], Files]) -> Layer:
    """A store that cannot take it is a failure of the machinery, a hostile tree is not."""
    try:
        store = host.store
        made = _made.setdefault(store, OrderedDict())
        layer = made.get((task.digest, what))
        if layer is None or not layer.path.exists():  # the store may have been pruned
            # An environment shows what its programs need of the host; the other layers then show nothing more.
            shows = None if task.facts.environment is None else ()
            layer = made[task.digest, what] = _add(files(), store, at, shows)
            if len(made) > _REMEMBERED:
                made.popitem(last=False)
        return layer
    except (OSError, EtudeError) as error:
        trouble = error if isinstance(error, OSError) else error.__context__
        if isinstance(trouble, OSError) and trouble.errno in _MACHINE:
            text = f"the {what} of {task.name} cannot be stored: {trouble.strerror}"
            raise SandboxFailure("store", text) from error
        raise


def _add(files: Files, store: Store, at: str, shows: tuple[str, ...] | None) -> Layer:
    if files.directory is not None:
        return store.add(files.directory, at=at, shows=shows)
    if all(files.kind(path) == "file" for path in files):
        return store.add_files(dict(files), at=at, shows=shows)
    with tempfile.TemporaryDirectory() as folder:
        files.write(Path(folder) / "files")
        return store.add(Path(folder) / "files", at=at, shows=shows)


def inside_layer(store: Store) -> Layer:
    """The code that runs inside, for an interpreter that has not loaded it: a file that it can import from, and what
    is loaded into a JavaScript process."""
    folder, _, name = ARCHIVE.rpartition("/")
    return store.add_files({name: _archive(), REPORTER.name: _reporter()}, at=folder, shows=())


@cache
def _reporter() -> bytes:
    """Read once, as the archive is: a run whose package is updated under it goes on with what it began with."""
    return REPORTER.read_bytes()


@cache
def _archive() -> bytes:
    """Sources, and what our own interpreter makes of them: another version takes the sources."""
    root = Path(__file__).parents[2]
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive, tempfile.TemporaryDirectory() as folder:
        for path in [
            root / "__init__.py",
            root / "tasks" / "__init__.py",
            *(root / "tasks" / "sandbox_side").glob("*.py"),
        ]:
            name = f"etude/{path.relative_to(root)}"
            compiled = Path(folder) / "compiled"
            py_compile.compile(
                str(path), str(compiled), name, doraise=True, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH
            )
            archive.writestr(zipfile.ZipInfo(name), path.read_bytes())
            archive.writestr(zipfile.ZipInfo(f"{name}c"), compiled.read_bytes())
    return data.getvalue()


def program(module: str) -> str:
    """What to give an interpreter with `-c` so that it becomes a module of ours, from the archive."""
    # From the current folder, as the weaker backend's root is not the machine's.
    # It loads without a search for garbage, of which there is none, and ends without taking everything apart.
    load = f"import gc, os, sys; gc.disable(); sys.path.insert(0, '..{ARCHIVE}'); from {module} import main"
    return f"{load}; gc.enable(); main(); sys.stdout.flush(); sys.stderr.flush(); os._exit(0)"
