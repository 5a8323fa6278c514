"""Installing a JavaScript repository: npm in a sandbox with network, a layer of what came, verified without network.

Its packages lie at /opt/env/node_modules, and a link in the workspace leads there. Of what package.json names for
developing only that is installed which the tests take; where they then miss something, all of it. Copies of the
repository itself among the packages become links into the workspace, and a framework that needs one cannot judge it.
What the sandbox says about itself is a description, and counts when the tests have passed.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from etude.core.errors import EtudeError
from etude.forge.environments.environment import PREFIX, Environment, Suite, environment_digest
from etude.forge.install.checkout import Repo
from etude.forge.install.javascript.npm import node, read_npm
from etude.forge.install.javascript.project_facts import Developing, Project, manifest, read_project
from etude.forge.install.package_index import PackageIndex, interpreter, shown_folders
from etude.forge.install.result import InstallFailed, InstallResult, Memory
from etude.forge.install.rules.proposal import Proposal
from etude.forge.install.sandbox_files import drop, plain_folder, unpacked_snapshot
from etude.forge.install.verify import verify
from etude.forge.leaks.minimal_host import minimal_host_folders
from etude.sandbox.base import WORKSPACE, Layer, Sandbox, SandboxLimits
from etude.sandbox.hosts import StoringHost
from etude.tasks.javascript.parsing import require_parser

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
_COMMANDS: Final = {"node": "node --test", "tape": "tape", "mocha": "mocha"}


async def install_scripts(
    repo: Repo,
    host: StoringHost,
    *,
    suite_seconds: float,
    seconds: float,
    note: Callable[[str], None],
) -> InstallResult:
    """Install a repository into an environment of the host's store, or say why it cannot be."""
    require_parser()
    started = time.monotonic()
    workspace = host.store.add(repo.tree, shows=())
    remembered = Memory(host.store, workspace)
    if (known := remembered.result()) is not None:
        return known
    result = await _play(repo, host, workspace, suite_seconds, started + seconds, note)
    result = InstallResult(**(vars(result) | {"seconds": time.monotonic() - started}))
    if result.environment is not None:
        result.environment.save(host.store.root)
        remembered.keep(result)
    return result


async def _play(
    repo: Repo,
    host: StoringHost,
    workspace: Layer,
    suite_seconds: float,
    deadline: float,
    note: Callable[[str], None],
) -> InstallResult:
    tries: list[str] = []
    targets: list[Proposal] = []
    try:
        project = read_project(repo.tree)
        index = read_npm()
        targets = _targets(project)
    except InstallFailed as error:
        return InstallResult(False, str(error))
    for options, developing in _TRIES:
        try:
            if time.monotonic() > deadline:
                raise InstallFailed("there is no time left for another try", final=True)
            note(f"npm install {' '.join(options)}")
            environment = await _settle(repo, project, host, index, options, developing)
            found = await verify(environment, workspace, targets, host, suite_seconds=suite_seconds, note=note)
        except InstallFailed as error:
            tries.append(str(error))
            note(f"try {len(tries)} failed: {error}")
            if error.final:
                break
            continue
        return InstallResult(
            True,
            "",
            tuple(targets),
            found.commands,
            found.passed,
            found.failed,
            found.environment.digest,
            tries=tuple(tries),
            environment=found.environment,
        )
    return InstallResult(False, tries[-1], tuple(targets), tries=tuple(tries))


def _targets(project: Project) -> list[Proposal]:
    """The tests, and that what the package exports can be loaded."""
    suite = Proposal(f"{_COMMANDS[project.framework]} {' '.join(project.tests)}", "its tests pass", kind="tests")
    exports = any(project.package.get(key) for key in ("main", "exports", "module"))
    load = Proposal("node -e \"import('./index.js')\"", "nothing, and ends with 0", kind="import")
    entry = project.package.get("main")
    if isinstance(entry, str) and exports:
        spelled = json.dumps(f"{WORKSPACE}/{entry}")
        load = Proposal(f"node -e 'require({spelled})'", "nothing, and ends with 0", kind="import")
        return [suite, load] if "'" not in spelled and project.package.get("type") != "module" else [suite]
    return [suite]


async def _settle(
    repo: Repo,
    project: Project,
    host: StoringHost,
    index: PackageIndex,
    options: tuple[str, ...],
    developing: Developing,
) -> Environment:
    base = host.store.add_files({}, shows=(*shown_folders(), *index.shows))
    variables = index.variables | {"npm_config_cache": _CACHE}
    async with await host.start([base], limits=_LIMITS, network=True, env=variables) as sandbox:
        asked = json.dumps(manifest(project, developing), indent=1)
        await sandbox.write(f"{_BUILD}/package.json", asked.encode())
        # What would come is asked first: most of what is refused is refused without a download.
        for step in (("--package-lock-only", "--ignore-scripts"), ()):
            command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *options, *step]
            done = await sandbox.run(command, cwd=_BUILD, timeout=_SECONDS)
            if not done.ok:
                raise InstallFailed(f"npm install failed: {_complaint(done.stdout + done.stderr)}")
            packages = await _locked(sandbox)
            _check_framework(project, packages)
        snapshot = await sandbox.snapshot()
    try:
        with unpacked_snapshot(snapshot, host.store) as root:
            layer = add_environment(root, project, repo.tree, host)
    finally:
        drop(snapshot)
    suite = Suite("node", project.tests, (project.framework, *project.options))
    lock = _lines(packages)
    digest = environment_digest(layer, lock, ("",), suite, {}, repo.version)
    return Environment(repo.name, repo.version, digest, layer, f"{PREFIX}/bin/python", ("",), suite, lock)


async def _locked(sandbox: Sandbox) -> dict[str, dict[str, Any]]:
    """What npm says it takes, by the place of each package."""
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
        home = folder / PREFIX.strip("/")
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "python").symlink_to(interpreter())
        (home / "bin" / "node").symlink_to(node())
        if installed is not None:
            installed.rename(home / _MODULES)
            _lead_back(home / _MODULES, project.name, tree)
        else:
            (home / _MODULES).mkdir()
        (folder / WORKSPACE.strip("/")).mkdir()
        (folder / WORKSPACE.strip("/") / _MODULES).symlink_to(f"{PREFIX}/{_MODULES}")
        shows = minimal_host_folders()
        own = str(node())
        shows += () if any(own.startswith(f"{each}/") for each in shows) else (own,)
        try:
            return host.store.add(folder, at="/", shows=shows)
        except EtudeError as error:
            raise InstallFailed(f"what was installed cannot be kept: {error}") from None


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
