"""From a sandbox in which an agent has installed to an environment: strip, lock, unpack, make the layer.

What the sandbox says about itself is checked before it is believed, and believed only as a description: whether the
environment works is for `verify` to find.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from etude.core.errors import EtudeError
from etude.forge.environments.environment import PREFIX, Environment, Suite, with_digest
from etude.forge.install import strip_and_lock
from etude.forge.install.checkout import Repo
from etude.forge.install.pip_settings import interpreter
from etude.forge.install.result import InstallFailed
from etude.forge.install.sandbox_files import add_root_layer, last_line, plain_folder, unpacked_snapshot
from etude.forge.leaks.minimal_host import minimal_host_folders
from etude.sandbox.base import WORKSPACE, Layer, Sandbox
from etude.sandbox.store.importing import Bounds
from etude.sandbox.store.layers import Store
from etude.tasks.environment.services import Service, read_services

REPORTS: Final = "/home/agent/reports"
CACHE: Final = "/home/agent/.cache/pip"
GENERATED: Final = "/opt/generated"
_SECONDS: Final = 300.0
LOCK_LINE: Final = re.compile(r"[A-Za-z0-9][\w.-]*==[\w.!+-]+( --hash=sha256:[0-9a-f]{64})?")
_MOST_TEXT: Final = 100_000


@dataclass(frozen=True)
class UnverifiedEnvironment:
    """An environment that nobody has verified, and what else came out of its sandbox."""

    environment: Environment
    notes: tuple[str, ...]
    downloads: Layer | None = None  # pip's cache, for the next try


async def make_environment(sandbox: Sandbox, repo: Repo, store: Store) -> UnverifiedEnvironment:
    """Make the environment of what the sandbox holds. Its programs are dead afterwards, its files as they were."""
    words = strip_command("finish", PREFIX, WORKSPACE, REPORTS, GENERATED)
    result = await sandbox.run(words, timeout=_SECONDS, max_output=8 << 20)
    try:
        said: dict[str, Any] = json.loads(result.stdout)
        paths, answer = tuple(map(str, said["paths"])), said["answer"]
        # The lock is read by people and by pip; a hostile build can write anything into its report.
        lock = "".join(f"{line}\n" for line in said["lock"].splitlines() if LOCK_LINE.fullmatch(line))
        trouble = str(said["trouble"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InstallFailed(f"the environment cannot be finished: {last_line(result.stderr)}") from None
    if trouble:
        raise InstallFailed(trouble[:300])
    suite, env, services, notes = _read_answer(answer)
    # The copy that was built from would be a second copy of the repository's code in the layer.
    await sandbox.run(["rm", "-rf", "/home/agent/source"])
    with unpacked_snapshot(await sandbox.snapshot(), store) as root:
        downloads = _add_downloads(root, store)
        layer = add_environment(root, store)
    python = f"{PREFIX}/bin/python"
    made = Environment(repo.name, repo.version, "", layer, python, paths, suite, lock, env, services=services)
    return UnverifiedEnvironment(with_digest(made), notes, downloads)


def strip_command(step: Literal["finish", "shrink"], *paths: str) -> list[str]:
    """How a sandbox runs our program over its environment."""
    return [interpreter(), "-I", "-c", Path(strip_and_lock.__file__).read_text(), step, *paths]


def add_environment(root: Path, store: Store, at: str = PREFIX) -> Layer:
    """What lies at this place below a sandbox's root becomes the environment of a layer."""
    installed = plain_folder(root, at)
    if installed is None:
        raise InstallFailed(f"nothing was installed at {at}")
    with store.scratch() as folder:
        (folder / "opt").mkdir()
        installed.rename(folder / PREFIX.strip("/"))
        generated = plain_folder(root, GENERATED)
        if generated is not None:
            generated.rename(folder / WORKSPACE.strip("/"))
        return add_root_layer(folder, store, minimal_host_folders())


def _add_downloads(root: Path, store: Store) -> Layer | None:
    cache = plain_folder(root, CACHE)
    if cache is None:
        return None
    try:
        return store.add(cache, at=CACHE, shows=(), bounds=Bounds(bytes=2 << 30))
    except EtudeError:  # too much to keep: the next try downloads again
        return None


def _read_answer(answer: Any) -> tuple[Suite, dict[str, str], tuple[Service, ...], tuple[str, ...]]:
    """How the agent says the suite is run, as far as it has the right form."""
    given: Mapping[str, Any] = answer if isinstance(answer, dict) else {}
    # An agent's file may be of any size, and goes into a record.
    if len(json.dumps(given)) > _MOST_TEXT:
        raise InstallFailed("the answer about how to run the tests is too long")
    if why := given.get("give_up"):
        raise InstallFailed(str(why)[:500], final=True)
    tests = tuple(path for path in _texts(given.get("tests")) if is_inside(path))
    if not tests:
        raise InstallFailed("nothing says where the tests are")
    env = given.get("env")
    pairs = env.items() if isinstance(env, dict) else ()
    # Variables are set for the interpreter that grades.
    named = {str(name): str(value) for name, value in pairs if re.fullmatch(r"[A-Za-z_]\w*", str(name))}
    try:
        services = read_services(given.get("services") or [])
    except EtudeError as error:
        raise InstallFailed(str(error)) from None
    suite = Suite("pytest", tests, tuple(_texts(given.get("options"))))
    return suite, named, services, tuple(_texts(given.get("notes")))


def _texts(value: Any) -> Sequence[str]:
    return [each for each in value if isinstance(each, str) and "\0" not in each] if isinstance(value, list) else []


def is_inside(path: str) -> bool:
    """Whether a path that a sandbox or a repository names stays below the folder that it starts from."""
    # A leading dash would be an option of pytest.
    return bool(path) and not path.startswith(("/", "-")) and ".." not in path.split("/")
