"""Installing a JavaScript repository: npm in a sandbox with network, and a layer of what came.

Its packages lie at /opt/env/node_modules, and a link in the workspace leads there. Of what package.json names for
developing only that is installed which the tests take; where they then miss something, all of it. Copies of the
repository itself among the packages become links into the workspace, and a framework that needs one cannot test it.
What the sandbox says about itself is a description, and counts when the tests have passed.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from etude.forge.environments.environment import PREFIX, Environment, Suite, with_digest
from etude.forge.install.agent_rollout import Installers
from etude.forge.install.checkout import Repo
from etude.forge.install.javascript.npm_settings import node, read_npm
from etude.forge.install.javascript.project_facts import Developing, Project, manifest, read_project
from etude.forge.install.make_layer import UnverifiedEnvironment
from etude.forge.install.pip_settings import interpreter, shown_folders
from etude.forge.install.result import InstallFailed
from etude.forge.install.sandbox_files import add_root_layer, plain_folder, unpacked_snapshot
from etude.forge.install.target_commands import Proposal
from etude.forge.leaks.minimal_host import minimal_host_folders
from etude.sandbox.base import WORKSPACE, Layer, Sandbox, SandboxLimits
from etude.sandbox.hosts import StoringHost

_BUILD: Final = "/home/agent/build"
_CACHE: Final = "/home/agent/.npm"
_LIMITS: Final = SandboxLimits(memory=3 << 30, disk=3 << 30, processes=512, cpu_seconds=3600, open_files=16384)
_MODULES: Final = "node_modules"
_LOCK: Final = "package-lock.json"
# What npm is given at each try, and which of the packages named for developing: those that the tests take, the same in
# any version, or all.
_TRIES: Final[tuple[tuple[tuple[str, ...], Developing], ...]] = (
    ((), "taken"),
    (("--legacy-peer-deps",), "loose"),
    (("--legacy-peer-deps",), "all"),
    (("--legacy-peer-deps", "--ignore-scripts"), "loose"),
)
_SECONDS: Final = 900.0
_INSTALL: Final = f"""\
This folder holds the package.json of a JavaScript repository, with what its tests need. Install its packages here, into
./{_MODULES}, with `npm install`; change package.json here where a version cannot be had or does not work. In the
repository itself, these commands should then work:

{{targets}}

Only ./{_MODULES} and ./{_LOCK} are kept. The commands are then run in a fresh sandbox without network, twice. End with
`finish`.
{{earlier}}"""
Packages = dict[str, dict[str, Any]]  # what npm says it takes, by the place of each package
_COMMANDS: Final = {"node": "node --test", "tape": "tape", "mocha": "mocha"}


@dataclass
class JavaScriptInstaller:
    """One installation under way."""

    repo: Repo
    host: StoringHost
    note: Callable[[str], None]
    installers: Installers | None = None  # who acts in place of the rules
    deadline: float = math.inf  # of time.monotonic()
    tries: int = len(_TRIES)

    async def propose(self) -> list[Proposal]:
        """The tests, and that what the package exports can be loaded."""
        project = self.project = read_project(self.repo.tree)
        self.index = read_npm()
        suite = Proposal(f"{_COMMANDS[project.framework]} {' '.join(project.tests)}", "its tests pass", kind="tests")
        entry = project.package.get("main")
        spelled = json.dumps(f"{WORKSPACE}/{entry}")
        if not isinstance(entry, str) or not entry or "'" in spelled or project.package.get("type") == "module":
            return [suite]
        return [suite, Proposal(f"node -e 'require({spelled})'", "nothing, and ends with 0", kind="import")]

    async def attempt(self, number: int, targets: Sequence[Proposal], earlier: Sequence[str]) -> UnverifiedEnvironment:
        options, developing = _TRIES[number - 1]
        repo, project, store = self.repo, self.project, self.host.store
        base = store.add_files({}, shows=(*shown_folders(), *self.index.shows))
        variables = self.index.variables | {"npm_config_cache": _CACHE}
        async with await self.host.start([base], limits=_LIMITS, network=True, env=variables) as sandbox:
            asked = json.dumps(manifest(project, developing), indent=1)
            await sandbox.write(f"{_BUILD}/package.json", asked.encode())
            if self.installers is not None:
                packages = await self._let_act(sandbox, number, targets, earlier)
            else:
                packages = await self._by_rules(sandbox, options)
            snapshot = await sandbox.snapshot()
        with unpacked_snapshot(snapshot, store) as root:
            layer = add_environment(root, project, repo.tree, self.host)
        suite = Suite("node", project.tests, (project.framework, *project.options))
        lock, python = _lines(packages), f"{PREFIX}/bin/python"
        made = Environment(repo.name, repo.version, "", layer, python, ("",), suite, lock)
        return UnverifiedEnvironment(with_digest(made), ())

    async def _by_rules(self, sandbox: Sandbox, options: Sequence[str]) -> Packages:
        self.note(f"npm install {' '.join(options)}")
        # What would come is asked first: most of what is refused is refused without a download.
        for step in (("--package-lock-only", "--ignore-scripts"), ()):
            command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *options, *step]
            done = await sandbox.run(command, cwd=_BUILD, timeout=_SECONDS)
            if not done.ok:
                raise InstallFailed(f"npm install failed: {_complaint(done.stdout + done.stderr)}")
            packages = await _locked(sandbox)
            _check_framework(self.project, packages)
        return packages

    async def _let_act(
        self, sandbox: Sandbox, number: int, targets: Sequence[Proposal], earlier: Sequence[str]
    ) -> Packages:
        assert self.installers is not None
        listed = "\n".join(f"    {each.command}\n        prints {each.prints}" for each in targets)
        why_again = "\nWhat came of earlier tries:\n" + "\n".join(earlier) if earlier else ""
        tools = self.installers.tools(_SECONDS)
        left = self.deadline - time.monotonic()
        text = _INSTALL.format(targets=listed, earlier=why_again)
        await self.installers.act("settle", number, text, sandbox, tools, left, self.note, root=_BUILD)
        packages = await _locked(sandbox)
        _check_framework(self.project, packages)
        return packages


async def _locked(sandbox: Sandbox) -> Packages:
    try:
        packages = json.loads(await sandbox.read(f"{_BUILD}/{_LOCK}", limit=32 << 20))["packages"]
        if all(isinstance(facts, dict) for facts in packages.values()):
            return dict(packages)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise InstallFailed("npm left no lock that can be read")


def add_environment(root: Path, project: Project, tree: Path, host: StoringHost) -> Layer:
    """The layer of what was installed below `root`, for the repository at `tree`."""
    installed = plain_folder(root, f"{_BUILD}/{_MODULES}")
    with host.store.scratch() as folder:
        home, workspace = folder / PREFIX.strip("/"), folder / WORKSPACE.strip("/")
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "python").symlink_to(interpreter())
        (home / "bin" / "node").symlink_to(node())
        if installed is not None:
            installed.rename(home / _MODULES)
            _lead_back(home / _MODULES, project.name, tree)
        else:
            (home / _MODULES).mkdir()
        workspace.mkdir()
        (workspace / _MODULES).symlink_to(f"{PREFIX}/{_MODULES}")
        shows, own = minimal_host_folders(), str(node())
        shown = any(own.startswith(f"{each}/") for each in shows)
        return add_root_layer(folder, host.store, shows if shown else (*shows, own))


def _lead_back(modules: Path, name: str, tree: Path) -> None:
    """Copies of the repository itself become links to what the workspace has; caches of tools go."""
    for path in (modules / ".cache", modules / ".package-lock.json"):
        _remove(path)
    if not name:
        return
    for copy in [path for path in modules.rglob(name.rpartition("/")[2]) if path.is_dir() and not path.is_symlink()]:
        if copy.as_posix().endswith(f"/{_MODULES}/{name}"):
            _remove(copy)
            copy.mkdir()
            for each in sorted(tree.iterdir()):
                if each.name != _MODULES:  # one link to all of it would lead round: its packages lie here
                    (copy / each.name).symlink_to(f"{WORKSPACE}/{each.name}")


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)


def _check_framework(project: Project, packages: Mapping[str, Mapping[str, Any]]) -> None:
    """A framework that itself needs what is tested would stand and fall with it, and show its code."""
    needs = {path.rpartition(f"{_MODULES}/")[2]: facts.get("dependencies") or {} for path, facts in packages.items()}
    waiting, seen = [str(project.framework)], set()
    while waiting:
        name = waiting.pop()
        if name == project.name:
            raise InstallFailed(f"{project.framework}, which runs its tests, needs a copy of {name} itself", final=True)
        if name not in seen:
            seen.add(name)
            waiting += needs.get(name, {})


def _lines(packages: Mapping[str, Mapping[str, Any]]) -> str:
    """Every package with its place, version and hash, a line each."""
    found = [
        f"{path.removeprefix(f'{_MODULES}/')}@{facts.get('version', '')} {facts.get('integrity', '')}".rstrip()
        for path, facts in sorted(packages.items())
        if path
    ]
    return "".join(f"{line}\n" for line in found)


def _complaint(said: bytes) -> str:
    lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line.removeprefix("npm error ") for line in lines if line.startswith("npm error")]
    telling = [line for line in errors if not re.match(r"code |A complete log|$", line)]
    return ascii((telling or lines or ["nothing was said"])[0])[1:-1][:300]
