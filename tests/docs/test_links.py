"""What the pages name exists: links, headings, files, modules, and what code blocks import."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *(ROOT / "docs").rglob("*.md")})
FOLDERS = ("etude", "redteam", "examples", "benchmarks", "docs")
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"")
# `tests/test_a.py` and `tests/tests/...` are files of a task's repository, not ours
FILE = re.compile(rf"(?<![\w/.-])(?:tests/(?!tests/)\w+|{'|'.join(FOLDERS)})/[\w./*-]*\.(?:py|md|toml|css|svg|png)\b")
FOLDER = re.compile(r"`((?:etude|redteam|examples|benchmarks|docs)/[\w./-]*)/`")
DOTTED = re.compile(r"(?<![\w/.=-])etude(?:\.\w+)+")  # behind "=" it is a label of an image
IMPORT = re.compile(r"^\s*from (etude[\w.]*) import (\([^)]*\)|.+)$", re.MULTILINE)
ROOMS = [path.name for path in (ROOT / "etude").iterdir() if path.is_dir() and path.name != "__pycache__"]
ROOM_FILE = re.compile(rf"`((?:{'|'.join(ROOMS)})/[\w/]+\.py)`")


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(params=PAGES, ids=named)
def page(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@cache
def anchors(page: Path) -> frozenset[str]:
    """The headings of a page as links spell them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return frozenset(re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain)


def targets(page: Path) -> list[str]:
    found = [a or b for a, b in LINK.findall(FENCE.sub("", page.read_text()))]
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def test_links_lead_to_files_and_headings_that_exist(page: Path):
    for target in targets(page):
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{target} leads nowhere"
        if anchor:
            assert anchor in anchors(found), f"{target}: there is no such heading"


def test_files_and_folders_that_are_named_exist(page: Path):
    text = page.read_text()
    missing = [name for name in FILE.findall(text) if not any(ROOT.glob(name))]
    missing += [name for name in FOLDER.findall(text) if not (ROOT / name).is_dir()]
    assert missing == []


@cache
def names_of(module: Path) -> frozenset[str]:
    """What a module defines or imports at its top level."""
    found: set[str] = set()
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            aims = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {aim.id for aim in aims if isinstance(aim, ast.Name)}
            if any(isinstance(aim, ast.Name) and aim.id in ("__all__", "_HOMES", "PUBLIC") for aim in aims):
                found |= {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return frozenset(found)


def exists(dotted: str) -> bool:
    """Whether a dotted name is a package, a module, or something that a module has at its top level."""
    place, *rest = dotted.split(".")
    path = ROOT / place
    for number, part in enumerate(rest):
        if (path / part).is_dir():
            path = path / part
            continue
        module = path / f"{part}.py"
        if module.exists():
            return number + 1 == len(rest) or rest[number + 1] in names_of(module)
        return part in names_of(path / "__init__.py")
    return True


def test_modules_and_what_is_named_in_them_exist(page: Path):
    assert [name for name in DOTTED.findall(page.read_text()) if not exists(name)] == []


def test_code_blocks_import_what_exists(page: Path):
    missing = []
    for module, names in IMPORT.findall(page.read_text()):
        for name in re.findall(r"(\w+)(?: as \w+)?", names.partition("#")[0]):
            if not exists(f"{module}.{name}"):
                missing.append(f"{module}.{name}")
    assert missing == []


def test_files_named_from_their_room_on_exist(page: Path):
    files = ROOM_FILE.findall(FENCE.sub("", page.read_text()))
    assert [name for name in files if not (ROOT / "etude" / name).exists()] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "rooms").glob("*.md")), ids=named)
def test_pages_of_rooms_name_files_of_the_package(page: Path):
    known = [f"/{path.relative_to(ROOT)}" for path in ROOT.glob("etude/**/*.py")]
    files = re.findall(r"`([\w/]+\.py)`", FENCE.sub("", page.read_text()))
    missing = [name for name in files if not any(path.endswith(f"/{name}") for path in known)]
    assert [name for name in missing if not (ROOT / name).exists()] == []


def test_every_page_is_in_the_index():
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / target.partition("#")[0]).resolve() for target in targets(index)}
    missing = [named(page) for page in PAGES if page.is_relative_to(index.parent) and page not in linked | {index}]
    assert missing == []


def test_reading_lists_name_every_module_of_their_folder():
    missing = {}
    for init in sorted((ROOT / "etude").glob("*/**/__init__.py")):
        listed = re.findall(r"\w+", ast.get_docstring(ast.parse(init.read_text())) or "")
        modules = {path.stem for path in init.parent.glob("*.py")} - {"__init__"}
        folders = {path.parent.name for path in init.parent.glob("*/__init__.py")}
        if forgotten := sorted((modules | folders).difference(listed)):
            missing[named(init)] = forgotten
    assert missing == {}


def test_lines_of_the_log_are_short():
    long = {
        f"{named(page)}:{number}"
        for page in (ROOT / "docs" / "log").glob("*.md")
        for number, line in enumerate(page.read_text().splitlines(), start=1)
        if len(line) > 160
    }
    assert sorted(long) == []
