"""Broken packaging as a proposal, and what is demanded of a distribution: texts and facts alone, nothing is built."""

from __future__ import annotations

import random
import tomllib
from typing import Any

import pytest

from etude.forge.origins.packaging.expectations import expectations, written_tests
from etude.forge.origins.packaging.propose import area_of, broken_packagings
from etude.tasks.format.file_tree import Files
from etude.tasks.kinds.packaging.config_entries import entries, exchanged, without

TOML = """[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "shop"  # what it is called
dependencies = [
    "attrs>=23",  # [for carts]
]
requires-python = ">=3.9"
dynamic = ["version"]

[project.scripts]
shop = "shop.cli:main"

[project.optional-dependencies]
fast = ["orjson>=3"]
web = ["flask"]

[tool.setuptools.dynamic]
version = {attr = "shop.__version__"}

[tool.pytest.ini_options]
addopts = "-q"
"""
INI = """[metadata]
name = shop
version = attr: shop.__version__

[options]
install_requires =
    attrs>=23
    six

[options.entry_points]
console_scripts =
    shop = shop.cli:main

[tool:pytest]
addopts = -q
"""
SETUP = """from setuptools import setup

setup(
    name="shop",
    packages=["shop"],  # all of it
    entry_points={"console_scripts": ["shop = shop.cli:main"]},
    extras_require={
        "fast": ["orjson"],
    },
)
"""


def names(path: str, text: str) -> dict[str, str]:
    return {each.name: each.text for each in entries(path, text)}


def test_entries_of_every_form_are_found_with_their_lines() -> None:
    found = names("pyproject.toml", TOML)
    assert found["project.dependencies"] == 'dependencies = [\n    "attrs>=23",  # [for carts]\n]\n'
    assert found["tool.setuptools.dynamic.version"] == 'version = {attr = "shop.__version__"}\n'
    assert "tool.pytest.ini_options.addopts" not in found
    found = names("setup.cfg", INI)
    assert found["options.install_requires"] == "install_requires =\n    attrs>=23\n    six\n"
    assert not any("addopts" in name for name in found)
    found = names("setup.py", SETUP)
    assert found["setup.packages"] == '    packages=["shop"],  # all of it\n' and "setup.extras_require" in found


@pytest.mark.parametrize(("path", "text"), [("pyproject.toml", TOML), ("setup.cfg", INI), ("setup.py", SETUP)])
def test_an_entry_goes_alone(path: str, text: str) -> None:
    for each in entries(path, text):
        left = names(path, without(text, [each]))
        assert left == {name: said for name, said in names(path, text).items() if name != each.name}


def test_a_table_without_entries_loses_its_head() -> None:
    gone = [each for each in entries("pyproject.toml", TOML) if each.table == ("project", "optional-dependencies")]
    text = without(TOML, gone)
    assert "optional-dependencies" not in text and "[project.scripts]" in text
    expected = tomllib.loads(TOML)
    del expected["project"]["optional-dependencies"]
    assert tomllib.loads(text) == expected


def test_a_word_is_exchanged_where_it_stands_once() -> None:
    entry = next(each for each in entries("pyproject.toml", TOML) if each.name == "project.scripts.shop")
    text = exchanged(TOML, entry, "shop.cli:main", "shop.cli:start")
    assert text is not None and tomllib.loads(text)["project"]["scripts"] == {"shop": "shop.cli:start"}
    assert exchanged(TOML, entry, "shop", "shed") is None  # it stands there twice


def test_what_an_entry_is_about() -> None:
    areas = {each.name: area_of(each) for each in [*entries("pyproject.toml", TOML), *entries("setup.cfg", INI)]}
    assert areas["project.scripts.shop"] == areas["options.entry_points.console_scripts"] == "scripts"
    assert areas["project.optional-dependencies.fast"] == "extras" and areas["project.requires-python"] == "python"
    assert areas["tool.setuptools.dynamic.version"] == areas["metadata.version"] == "version"
    assert areas["project.name"] is None


def test_proposals_follow_from_files_and_seed() -> None:
    files = Files({"pyproject.toml": TOML.encode(), "shop/__init__.py": b""})
    first = list(broken_packagings(files, random.Random("1")))
    assert [each.key for each in first] == [each.key for each in broken_packagings(files, random.Random("1"))]
    assert len({each.key for each in first}) == len(first) >= 10
    assert {area for each in first for area in each.areas} >= {"scripts", "extras", "dependencies", "version", "python"}
    for each in first:
        data = each.changes["pyproject.toml"]
        assert data is not None and data != TOML.encode()
        assert tomllib.loads(data.decode())["tool"]["pytest"] == tomllib.loads(TOML)["tool"]["pytest"]


def test_a_repository_without_packaging_has_no_proposals() -> None:
    assert list(broken_packagings(Files({"a.py": b""}), random.Random(1))) == []


WAS: dict[str, Any] = {
    "built": True,
    "file": "shop-1.0-py3-none-any.whl",
    "fields": {"Name": "shop", "Version": "1.0", "Requires-Python": ">=3.9"},
    "lists": {},
    "first_line": "",
    "packed": ["shop/__init__.py", "shop/cli.py", "shop/py.typed"],
    "tops": ["shop"],
    "imports": {"shop": "shop:"},
    "entry_points": {"console_scripts": {"shop": "shop.cli:main"}},
    "loads": {"console_scripts:shop": "shop.cli:main"},
    "helps": {"shop": [0, "usage: shop"]},
    "requirements": {"": ["attrs>=23"], "fast": ['orjson>=3; python_version < "3.13"']},
}


def test_every_difference_is_demanded_and_the_rest_stays() -> None:
    now = {**WAS, "entry_points": {}, "loads": {}, "helps": {}}
    expected = expectations(WAS, now, ("scripts",))
    assert [each.area for each in expected] == ["scripts"] and "`shop.cli:main`" in expected[0].goal
    text = written_tests(expected, WAS)
    compile(text, "test_distribution.py", "exec")
    for name in (
        "shop_is_declared",
        "shop_can_be_loaded",
        "shop_says_how_it_is_used",
        "other_requirements",
        "the_files",
    ):
        assert f"def test_{name}()" in text
    assert "other_entry_points" not in text and "__main__" not in text


def test_an_extra_is_demanded_by_name_versions_and_markers() -> None:
    now = {**WAS, "requirements": {"": ["attrs>=23"]}}
    (expected,) = expectations(WAS, now, ("extras",))
    assert "brings `orjson>=3; python_version" in expected.goal and "shop" not in expected.goal
    said = " ".join(assertion for _, assertion in expected.tests)
    assert "names('fast') == ['orjson']" in said and "bounds('fast') == {'orjson': '>=3'}" in said


def test_of_what_cannot_be_built_only_the_broken_areas_are_demanded() -> None:
    expected = expectations(WAS, {"built": False, "why": "no version"}, ("version",))
    assert {each.area for each in expected} == {"version"}
