"""A repository as we keep it: our own checked copy of its files, and of its history where there is one.

`open_repo` takes a folder, a git checkout (or bare repository), or the name of a package (`npm:` before one of npm's).
Nothing of it is ever run outside a sandbox: a checkout's configuration is not read, a package is fetched and unpacked
inside one, and every tree is scanned before it becomes ours: links that leave it, devices, and sizes past the limits
are refused.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from etude.core.errors import EtudeError
from etude.forge.install.fetch_package import NAME, VERSION, Fetched, fetch_package, fetched_tree
from etude.forge.install.git_files import take_checkout
from etude.forge.install.javascript import npm_settings as npm
from etude.forge.install.pip_settings import PackageIndex, read_index
from etude.sandbox.store.layers import Store
from etude.tasks.format.file_tree import Files

Origin = Literal["path", "git", "package", "npm"]
NPM = "npm:"  # before the name of a package of npm's index
_FACTS = "repo.json"
# What tools leave in a working folder: nobody's source, and often more than all of it.
_LEFT_OUT = frozenset(
    (".git", "__pycache__", ".venv", "venv", ".tox", ".nox", "node_modules", ".mypy_cache", ".pytest_cache")
)


@dataclass(frozen=True)
class Repo:
    """A repository, ready to be a workspace."""

    name: str  # "attrs"
    version: str  # "24.2.0", a commit's hash, or ""
    origin: Origin
    tree: Path  # our own checked copy of its files: no .git, no link that leaves
    history: Path | None  # a bare git directory of ours; never visible in any agent's sandbox


def open_repo(spec: str, folder: Path, *, index: PackageIndex | None = None) -> Repo:
    """A repository from a path, a git directory, or a package name (`attrs`, `attrs==24.2.0`), kept below `folder`.

    What was taken once is not taken again: a version of a package, a commit, or files that are still the same. A
    name without a version stands for the newest one that is here, or else the newest there is.
    """
    path = Path(spec).expanduser()
    if spec and path.is_dir():
        return _open_git(path, folder) if _is_git(path) else _open_path(path, folder)
    if spec and not spec.startswith(NPM) and (path.exists() or "/" in spec):
        raise EtudeError(f"{spec} is not a folder; give a folder, a git checkout, or the name of a package")
    if spec.startswith(NPM):
        return _open_npm(spec.removeprefix(NPM), folder)
    name, pinned, version = spec.partition("==")
    if not NAME.fullmatch(name) or (pinned and not VERSION.fullmatch(version)):
        raise EtudeError(f"{spec!r} is neither a folder nor a package; packages are called like attrs or attrs==24.2.0")
    name = re.sub(r"[-_.]+", "-", name).lower()
    return _open_package(
        name, version, folder, "package", lambda store: fetch_package(name, version, index or read_index(), store)
    )


def _open_path(path: Path, folder: Path) -> Repo:
    with Store(folder / ".work").scratch() as work:
        return _publish(folder, work, path, path.resolve().name, "", "path")


def _open_git(path: Path, folder: Path) -> Repo:
    with Store(folder / ".work").scratch() as work:
        commit = take_checkout(path, work / "checkout", work / "repo" / "history")
        return _publish(folder, work, work / "checkout", path.resolve().name.removesuffix(".git"), commit, "git")


def _open_npm(spec: str, folder: Path) -> Repo:
    # From the second character on: scoped packages of npm begin with an @.
    at = spec.find("@", 1)
    name, version = (spec, "") if at < 0 else (spec[:at], spec[at + 1 :])
    if not npm.NAME.fullmatch(name) or (version and not npm.VERSION.fullmatch(version)):
        raise EtudeError(f"{NPM}{spec} is no package of npm's index; those are called like npm:qs or npm:qs@6.13.0")
    return _open_package(name, version, folder, "npm", lambda store: npm.fetch_npm_package(name, version, store))


def _open_package(
    name: str, version: str, folder: Path, origin: Origin, fetch: Callable[[Store], Coroutine[Any, Any, Fetched]]
) -> Repo:
    """A version that is here, or else what `fetch` brings."""
    if (kept := _kept(folder, _label(name), version, origin)) is not None:
        return kept
    store = Store(folder / ".work")
    snapshot, came = _finished(fetch(store))
    with fetched_tree(snapshot, store) as tree, store.scratch() as work:
        return _publish(folder, work, tree, name, version or came, origin)


def _publish(folder: Path, work: Path, tree: Path, name: str, version: str, origin: Origin) -> Repo:
    """Copy a tree, checked, and give it its name by one rename; whoever made the same before was as good."""
    made = work / "repo"
    Files.scan(tree, skip=_LEFT_OUT).write(made / "tree")
    files = Files.scan(made / "tree")
    if not len(files):
        raise EtudeError(f"{name} holds no files; there is nothing to install")
    name = _label(name)
    label = version[:40] if origin != "path" else files.digest()[:16]
    (made / _FACTS).write_text(json.dumps({"name": name, "version": version, "origin": origin}))
    final = folder / f"{name}-{label}-{origin}"
    # Somebody else took the same version: theirs is as good.
    with suppress(OSError):
        made.rename(final)
    return _load(final)


def _label(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "repository"


def _load(place: Path) -> Repo:
    facts = json.loads((place / _FACTS).read_text())
    history = place / "history"
    return Repo(facts["name"], facts["version"], facts["origin"], place / "tree", history if history.is_dir() else None)


def _kept(folder: Path, name: str, version: str, origin: Origin) -> Repo | None:
    found = [
        repo
        for place in folder.glob(f"{name}-*-{origin}")
        if (repo := _load(place)).name == name and version in ("", repo.version)
    ]
    newest = sorted(found, key=lambda repo: (repo.tree.parent / _FACTS).stat().st_mtime)
    return newest[-1] if newest else None


def _is_git(path: Path) -> bool:
    return any((store / "HEAD").is_file() and (store / "objects").is_dir() for store in (path / ".git", path))


def _finished(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine. Where the caller's own loop runs, in a thread with another one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    # Called from a running loop: a second one needs a thread of its own.
    with ThreadPoolExecutor(1, "etude-fetch") as apart:
        return apart.submit(asyncio.run, work).result()
