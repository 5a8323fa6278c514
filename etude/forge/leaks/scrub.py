"""Takes out of a task's workspace whatever would give the deleted code away, and says what and why.

Two rules. By name: history, caches, bytecode, build outputs, archives of releases, virtual environments, reports and
editors' leftovers go, whether or not they hold a copy; no suite needs them. By content: of everything else, a file
that shows a deleted piece goes when nobody imports it (docs, notebooks, patches, data), and is refused when it is
code that the repository may need (a vendored duplicate). A task with a refusal is no task.

Knows a folder and what was deleted from it; no sandbox, and nothing outside the folder is touched.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from etude.core.errors import EtudeError
from etude.forge.leaks.audit import audit_tree
from etude.forge.leaks.bytecode import HEADER, looks_like_bytecode
from etude.forge.leaks.deleted_code import Deleted
from etude.tasks.format.task import matches

CODE: Final = (".py", ".pyi", ".pyx", ".pxd", ".so", ".pyd", ".c", ".h", ".toml", ".cfg", ".ini", ".in")
SCRIPTS: Final = (".js", ".cjs", ".mjs", ".jsx", ".ts", ".cts", ".mts", ".tsx", ".node", ".wasm")

# Anywhere in the tree.
FOLDERS: Final = {
    **dict.fromkeys((".git", ".hg", ".svn", ".bzr", ".jj", "_darcs", "CVS"), "history"),
    "__pycache__": "bytecode",
    **dict.fromkeys((".mypy_cache", ".dmypy", ".pytype", ".pyre", ".pyright", ".basedpyright"), "type checker's cache"),
    **dict.fromkeys((".ruff_cache", ".flake8_cache", ".pylint.d", ".pylint_cache"), "linter's cache"),
    **dict.fromkeys((".pytest_cache", ".hypothesis", ".testmondata", ".cache"), "test runner's cache"),
    **dict.fromkeys((".tox", ".nox", ".venv", "__pypackages__", ".direnv", "node_modules"), "installed copies"),
    **dict.fromkeys(("bower_components", "jspm_packages"), "installed copies"),
    **dict.fromkeys((".npm", ".yarn", ".pnpm-store", ".parcel-cache", ".turbo", ".rollup.cache"), "package cache"),
    **dict.fromkeys((".nyc_output", ".c8_output"), "coverage report"),
    **dict.fromkeys((".eggs", ".pip", ".pip-cache", ".uv-cache", "pip-wheel-metadata"), "package cache"),
    **dict.fromkeys(("htmlcov", ".coverage_html"), "coverage report"),
    ".doctrees": "generated documentation",
    ".ipynb_checkpoints": "notebook's checkpoints",
    **dict.fromkeys((".idea", ".vscode", ".vs", ".history", ".ropeproject", ".jedi"), "editor's files"),
}
# Only at the top, where no package has its own of that name.
TOP_FOLDERS: Final = {
    **dict.fromkeys(("build", "dist", "wheelhouse", "sdist", "_skbuild"), "build output"),
    "coverage": "coverage report",
    **dict.fromkeys(("site", "public", "apidocs"), "generated documentation"),
}
FILES: Final = (
    (re.compile(r"\.(pyc|pyo|pyd\.old)$"), "bytecode"),
    (re.compile(r"^\.git$"), "history"),
    (re.compile(r"\.(whl|egg|pex|shiv|pyz|bundle|pack|tgz)$"), "archive of a release"),
    (re.compile(r"\.([cm]?js|css|ts)\.map$|\.tsbuildinfo$"), "source map"),
    (re.compile(r"\.min\.[cm]?js$"), "minified copy"),
    (re.compile(r"^(\.coverage.*|coverage\.xml|coverage\.json|lcov\.info|\.testmondata.*)$"), "coverage report"),
    (re.compile(r"(\.orig|\.rej|\.bak|\.old|\.swp|\.swo|\.swn|~)$|^#.*#$|^\.#"), "editor's leftover"),
    (re.compile(r"^(TAGS|tags|GTAGS|GRTAGS|GPATH|cscope\.out|\.tags)$"), "index of symbols"),
    (re.compile(r"^core\.\d+$|\.(prof|pstats|lprof|dmp)$"), "dump of a process"),
)
BUILT: Final = re.compile(r"(^|/)(_build|build)/(html|doctrees|dirhtml|singlehtml|latex|lib|bdist|temp)")


@dataclass
class Scrubbed:
    """What went, and what could not: (path, why) each."""

    removed: list[tuple[str, str]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not self.refused


def scrub(tree: Path, deleted: Sequence[Deleted], *, keep: Sequence[str] = ()) -> Scrubbed:
    """Clean the workspace at `tree`, in place. `keep` has globs of paths that must stay: they are refused instead."""
    if not tree.is_dir() or tree.is_symlink():
        raise EtudeError(f"there is no workspace {tree} to scrub")
    done = Scrubbed()
    for path, why in list(_by_name(tree)):
        if any(matches(path, pattern) or matches(f"{path}/x", pattern) for pattern in keep):
            continue  # its content is still looked at below
        _remove(tree / path)
        done.removed.append((path, why))
    # Scripts count as code only where scripts were deleted: a bundled .js of some docs may go.
    endings = CODE + SCRIPTS if any(each.path.endswith(SCRIPTS) for each in deleted) else CODE
    for leak in audit_tree(tree, deleted):
        path = leak.place.partition("!")[0]
        kept = any(matches(path, pattern) for pattern in keep)
        # Code is refused and not removed: the repository may import it, and would be broken.
        if path.endswith(endings) or kept or path in {each.path for each in deleted}:
            done.refused.append((leak.place, leak.why))
        elif (tree / path).exists():
            _remove(tree / path)
            done.removed.append((path, leak.why))
    return done


def _by_name(tree: Path) -> Iterator[tuple[str, str]]:
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        with os.scandir(tree / folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                why = _folder_reason(tree / path, path)
                if why:
                    yield path, why
                else:
                    waiting.append(path)
            elif why := _file_reason(Path(entry.path), entry.name, entry.is_file(follow_symlinks=False)):
                yield path, why


def _folder_reason(folder: Path, path: str) -> str:
    name = folder.name
    if name in FOLDERS:
        return FOLDERS[name]
    if (folder / "pyvenv.cfg").exists():
        return "installed copies"
    if name.endswith(".egg") or (name.endswith(".dist-info") and (folder / "RECORD").exists()):
        return "installed copies"
    if (folder / "HEAD").is_file() and (folder / "objects").is_dir():  # a bare repository under any name
        return "history"
    if BUILT.search(path):
        return "build output"
    # A package may be called build; an output has no modules right in it.
    if "/" not in path and name in TOP_FOLDERS and not any(folder.glob("*.py")):
        documentation = TOP_FOLDERS[name] == "generated documentation"
        return TOP_FOLDERS[name] if not documentation or (folder / "index.html").exists() else ""
    return ""


def _file_reason(path: Path, name: str, plain: bool) -> str:
    for pattern, why in FILES:
        if pattern.search(name):
            return why
    if plain and not name.endswith((".py", ".txt", ".md", ".rst")):
        try:
            with path.open("rb") as file:
                head = file.read(HEADER + 1)
        except OSError:
            return ""
        if looks_like_bytecode(head):
            return "bytecode"
        if head[:4] == b"PACK":
            return "history"
    return ""


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
