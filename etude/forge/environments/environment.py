"""An installed environment: a layer at /opt/env, its lock, its services, how its suite is run, and what that gave.

It is kept beside the layers, as `environments/DIGEST.json` in their store; the digest names layer, lock, services and
how the tests are run together, and a task names it. The layer holds no code of the repository itself: imports of that
come from the workspace. Knows nothing of how an environment is made (`forge.install`) or used (`suite_run`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from etude.core import durable
from etude.core.errors import EtudeError
from etude.sandbox.base import Layer
from etude.sandbox.store.layers import Store
from etude.tasks.environment.services import PREFIX as PREFIX
from etude.tasks.environment.services import Service, read_services

_FOLDER = "environments"
# Tests that may be left out because the suite does not come to its end with them; with more it needs something else.
MOST_LEFT_OUT: Final = 3


@dataclass(frozen=True)
class Suite:
    """How a repository's tests are run."""

    kind: Literal["pytest", "unittest", "node"]
    folders: tuple[str, ...]  # where the tests lie, relative to the workspace: ("tests",); of "node" the test files
    options: tuple[str, ...] = ()  # for the runner, such as ("-p", "no:cacheprovider"); of "node" the framework first


@dataclass(frozen=True)
class Environment:
    """What a repository's tests need, ready to be laid below its workspace."""

    repo: str
    version: str
    digest: str  # names layer, lock, services and suite together
    layer: Layer  # at /opt/env: a virtual environment with the dependencies and pytest, and what of the host it shows
    python: str  # "/opt/env/bin/python"
    paths: tuple[str, ...]  # folders of the workspace that imports start from: ("",) or ("src",)
    suite: Suite
    lock: str  # every distribution with version and hash, a line each
    env: Mapping[str, str] = field(default_factory=dict)  # variables the suite needs
    outcomes: Mapping[str, str] = field(default_factory=dict)  # test id -> passed | failed | skipped, as last verified
    seconds: float = 0.0  # one run of the suite
    services: tuple[Service, ...] = ()  # started in every sandbox, before anything else

    def save(self, folder: Path) -> Path:
        """Write it into the layer store whose root is `folder`."""
        target = folder / _FOLDER / f"{self.digest}.json"
        facts = asdict(self) | {"layer": self.layer.digest, "env": dict(self.env), "outcomes": dict(self.outcomes)}
        target.parent.mkdir(parents=True, exist_ok=True)
        durable.write_whole(target, json.dumps(facts, indent=1) + "\n")
        return target

    @classmethod
    def load(cls, digest: str, store: Store) -> Environment:
        """The environment of this digest; an `EtudeError` when it, or its layer, is not in the store."""
        path = store.root / _FOLDER / f"{digest}.json"
        # Before it becomes a path.
        if not digest.isalnum() or not path.is_file():
            raise EtudeError(f"the store {store.root} has no environment {digest[:12]}; `etude env install` makes it")
        try:
            facts: dict[str, Any] = json.loads(path.read_text())
            suite = facts["suite"]
            made = {
                "layer": store.layer(facts["layer"]),
                "paths": tuple(facts["paths"]),
                "suite": Suite(suite["kind"], tuple(suite["folders"]), tuple(suite["options"])),
                "services": read_services(facts.get("services", [])),
            }
            return cls(**(facts | made))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EtudeError(f"{path} is damaged ({error}): remove it and install again") from error


def environment_digest(
    layer: Layer,
    lock: str,
    paths: tuple[str, ...],
    suite: Suite,
    env: Mapping[str, str],
    version: str = "",
    services: Sequence[Service] = (),
) -> str:
    """One name for all that decides how the tests run."""
    facts = [layer.digest, lock, paths, asdict(suite), sorted(env.items()), version, *map(asdict, services)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def with_digest(made: Environment) -> Environment:
    """The environment under the name that its contents give it."""
    digest = environment_digest(made.layer, made.lock, made.paths, made.suite, made.env, made.version, made.services)
    return replace(made, digest=digest)


def without_test(made: Environment, test: str) -> Environment:
    """The environment whose suite leaves out a test, or a whole file."""
    options = (*made.suite.options, "--deselect" if "::" in test else "--ignore", test)
    return with_digest(replace(made, suite=replace(made.suite, options=options)))
