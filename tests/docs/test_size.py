"""The bars of CONTRIBUTING.md on the package's size: what is too large for one reading is cut at a seam."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2] / "etude"


def test_no_module_has_more_than_500_lines():
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in ROOT.rglob("*.py")}
    assert {path: count for path, count in lines.items() if count > 500} == {}


def test_no_folder_has_more_than_20_modules():
    modules = {init.parent: set(init.parent.glob("*.py")) - {init} for init in ROOT.rglob("__init__.py")}
    assert {str(folder.relative_to(ROOT)): len(each) for folder, each in modules.items() if len(each) > 20} == {}


def test_nothing_lies_loose_at_the_top():
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_the_walk_through_one_step_links_at_most_45_files_and_says_how_many():
    page = (ROOT.parent / "docs" / "rooms" / "one-step.md").read_text()
    links = set(re.findall(r"\]\(\.\./\.\./(etude/[^)]+\.py)\)", page))
    assert f"The walk links {len(links)} files" in page and len(links) <= 45
    learn = [ROOT.parent / link for link in links if link.startswith("etude/learn/")]
    assert sum(len(path.read_text().splitlines()) for path in learn) < 1000  # as the page says


def test_what_the_page_lists_beside_the_walk_is_as_much_as_it_says():
    page = (ROOT.parent / "docs" / "rooms" / "one-step.md").read_text()
    rows = re.findall(r"^\| .* \((\d+)\) \| (.*) \|$", page, re.MULTILINE)
    assert all(int(count) == len(re.findall(r"`[^`]+`", files)) for count, files in rows)
    found = re.search(r"runs functions of (\d+) files .* the other (\d+) are listed", page)
    assert found and int(found[2]) == sum(int(count) for count, _ in rows) == int(found[1]) - 45
