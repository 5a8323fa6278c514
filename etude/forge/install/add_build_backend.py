"""An environment in which its repository can also be built: the same, with the build backend, and without the answer.

What pip installed of the repository itself (metadata, entry points, scripts, the record of its files) says how it was
packaged, which is what a task about packaging takes away. So of that only name and version stay. The backend and what
it asks for are installed by pip inside a sandbox with network, at versions that leave everything else as it is.
Remembered beside the environment that it was made from.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from etude.core import durable
from etude.core.errors import EtudeError
from etude.forge.environments.environment import PREFIX, Environment, with_digest
from etude.forge.install.checkout import Repo
from etude.forge.install.make_layer import GENERATED, LOCK_LINE, add_environment, is_inside, strip_command
from etude.forge.install.pip_settings import PackageIndex, interpreter, shown_folders
from etude.forge.install.project.config_files import read_toml
from etude.forge.install.result import InstallFailed
from etude.forge.install.sandbox_files import last_line, unpacked_snapshot
from etude.sandbox.base import WORKSPACE, CommandResult, Sandbox, SandboxLimits
from etude.sandbox.hosts import StoringHost
from etude.sandbox.store.layers import Store

FORMAT: Final = 1  # a change of what is record makes it again
FRONTEND: Final = ("build",)  # what people start a backend with
ANCIENT: Final = ("setuptools", "wheel")  # where nothing says what builds it
# Where the version is read from a history, which no workspace has: as at installation.
HISTORY: Final = re.compile(r"scm|vcs|pbr|pdm|versioning", re.IGNORECASE)
PRETENDED: Final = ("SETUPTOOLS_SCM_PRETEND_VERSION", "PBR_VERSION", "PDM_BUILD_SCM_VERSION")
_SOURCE: Final = "/home/agent/source"
_REPORT: Final = "/home/agent/report-{}.json"
_WHOLE: Final = "/opt/whole"
_LIMITS: Final = SandboxLimits(memory=2 << 30, disk=2 << 30, processes=256, cpu_seconds=1800)
_SECONDS: Final = 300.0
_REQUIREMENT: Final = re.compile(r"[A-Za-z0-9][^\n]{0,300}")
_ASK: Final = """
import importlib, json, sys
sys.path[:0] = sys.argv[2:]
module, _, inner = sys.argv[1].partition(":")
backend = importlib.import_module(module)
for name in filter(None, inner.split(".")):
    backend = getattr(backend, name)
asked = getattr(backend, "get_requires_for_build_wheel", lambda: [])()
open("/home/agent/asked.json", "w").write(json.dumps(asked))
"""


async def building_environment(
    repo: Repo, environment: Environment, host: StoringHost, index: PackageIndex, test_file: str = ""
) -> Environment:
    """The same environment with what builds the repository.

    `test_file` joins the suite, where its folders do not cover it.
    `InstallFailed` where the backend cannot be had."""
    if environment.suite.kind != "pytest":
        raise InstallFailed("only Python repositories are built")
    record = host.store.root / "environments" / f"{environment.digest[:32]}.building-{FORMAT}.json"
    known = _known(record, host.store)
    if known is None:
        known = await _make(repo, environment, host, index)
        known.save(host.store.root)
        durable.write_whole(record, json.dumps({"digest": known.digest}) + "\n")
    return _with_file(known, test_file, host.store)


def _known(record: Path, store: Store) -> Environment | None:
    try:
        return Environment.load(json.loads(record.read_text())["digest"], store)
    except (OSError, ValueError, KeyError, EtudeError):
        return None


def _with_file(made: Environment, file: str, store: Store) -> Environment:
    folders = [folder.strip("/") for folder in made.suite.folders]
    if not file or any(folder in ("", ".") or file.startswith(f"{folder}/") for folder in folders):
        return made
    found = with_digest(replace(made, suite=replace(made.suite, folders=(*made.suite.folders, file))))
    found.save(store.root)
    return found


async def _make(repo: Repo, environment: Environment, host: StoringHost, index: PackageIndex) -> Environment:
    backend, folders, requirements = _build_system(repo)
    source = host.store.add(repo.tree, at=_SOURCE, shows=())
    base = host.store.add_files({}, at="/home/agent", shows=(*shown_folders(), *index.shows))
    env = index.variables | {"PATH": f"{PREFIX}/bin:/usr/local/bin:/usr/bin:/bin", "PIP_ROOT_USER_ACTION": "ignore"}
    layers = [base, environment.layer, source]
    async with await host.start(layers, limits=_LIMITS, network=True, env=env, workdir="/home/agent") as sandbox:
        pins = [line.partition(" ")[0] for line in environment.lock.splitlines()]
        await sandbox.write("/home/agent/pins.txt", "".join(f"{line}\n" for line in pins).encode())
        lock = await _pip(sandbox, [*FRONTEND, *requirements], 1)
        words = [environment.python, "-P", "-c", _ASK, backend, *(f"{_SOURCE}/{folder}" for folder in folders)]
        asked = await sandbox.run(words, cwd=_SOURCE, timeout=_SECONDS)
        more = await _asked(sandbox, asked)
        lock += await _pip(sandbox, more, 2) if more else []
        words = strip_command("shrink", PREFIX, WORKSPACE, _WHOLE, GENERATED)
        done = await sandbox.run(words, timeout=_SECONDS)
        if not done.ok:
            raise InstallFailed(f"the environment to build in cannot be finished: {last_line(done.stderr)}")
        snapshot = await sandbox.snapshot()
    with unpacked_snapshot(snapshot, host.store) as root:
        layer = add_environment(root, host.store, _WHOLE)
    variables = dict(environment.env)
    if not (repo.tree / "PKG-INFO").exists() and any(HISTORY.search(line) for line in requirements):
        variables |= dict.fromkeys(PRETENDED, "0.0.1")
    lines = dict.fromkeys([*environment.lock.splitlines(), *lock])
    text = "".join(f"{line}\n" for line in sorted(lines))
    return with_digest(replace(environment, layer=layer, lock=text, env=variables))


def _build_system(repo: Repo) -> tuple[str, list[str], list[str]]:
    """The backend, the repository's folders that it may lie in, and what has to be installed for it."""
    file = repo.tree / "pyproject.toml"
    text = file.read_text(errors="replace") if file.is_file() and not file.is_symlink() else ""
    system = read_toml(text).get("build-system")
    if not isinstance(system, dict) or not isinstance(system.get("requires"), list):
        return "setuptools.build_meta:__legacy__", [], list(ANCIENT)
    backend = system.get("build-backend", "setuptools.build_meta:__legacy__")
    folders = [each for each in system.get("backend-path", []) if isinstance(each, str) and is_inside(each)]
    return str(backend), folders, _requirements(system["requires"])


def _requirements(lines: list[Any]) -> list[str]:
    """As arguments for pip: nothing that it would take for an option."""
    return [line for line in lines if isinstance(line, str) and _REQUIREMENT.fullmatch(line.strip())]


async def _pip(sandbox: Sandbox, requirements: list[str], number: int) -> list[str]:
    """Installs, and gives a line of the lock for each distribution that came."""
    report = _REPORT.format(number)
    words = [interpreter(), "-m", "pip", "--python", f"{PREFIX}/bin/python", "install", "--no-compile"]
    words += ["--constraint", "/home/agent/pins.txt", "--report", report, *requirements]
    done = await sandbox.run(words, timeout=_SECONDS)
    if not done.ok:
        raise InstallFailed(f"what builds it cannot be installed: {last_line(done.stderr)}")
    try:
        entries = json.loads(await sandbox.read(report))["install"]
        return [line for line in map(_locked, entries) if LOCK_LINE.fullmatch(line)]
    except (OSError, ValueError, KeyError, TypeError):
        raise InstallFailed("pip does not say what it installed") from None


def _locked(entry: dict[str, Any]) -> str:
    name = re.sub(r"[-_.]+", "-", str(entry["metadata"]["name"])).lower()
    hashes = (entry.get("download_info", {}).get("archive_info") or {}).get("hashes") or {}
    found = f" --hash=sha256:{hashes['sha256']}" if "sha256" in hashes else ""
    return f"{name}=={entry['metadata']['version']}{found}"


async def _asked(sandbox: Sandbox, done: CommandResult) -> list[str]:
    """What the backend wants beside what the repository names."""
    if not done.ok:
        raise InstallFailed(f"the build backend does not start: {last_line(done.stderr)}")
    try:
        found = json.loads(await sandbox.read("/home/agent/asked.json", limit=1 << 20))
    except (OSError, ValueError):
        return []
    return _requirements(found) if isinstance(found, list) else []
