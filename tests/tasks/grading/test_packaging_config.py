"""Which changes of a configuration file are about packaging alone."""

from __future__ import annotations

from typing import Any

import pytest

from etude.tasks.grading import packaging_config
from etude.tasks.grading.packaging_config import steering_change
from etude.tasks.grading.submission import submission_of

TOML = """[build-system]
requires = ["setuptools"]

[project]
name = "shop"

[tool.setuptools]
packages = ["shop"]

[tool.pytest.ini_options]
addopts = "-q"
"""
INI = """[metadata]
name = shop

[options]
packages = find:

[tool:pytest]
addopts = -q
"""


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("pyproject.toml", TOML, TOML.replace('name = "shop"', 'name = "shop"\nscripts = {shop = "shop:main"}')),
        ("pyproject.toml", TOML, TOML.replace('packages = ["shop"]', "include-package-data = true")),
        ("pyproject.toml", TOML, TOML.replace("[project]", "# a comment\n\n[project]")),
        ("pyproject.toml", "", "[project]\nname = 'shop'\n"),
        ("setup.cfg", INI, INI.replace("packages = find:", "packages = find:\n\n[options.extras_require]\na = b")),
        ("setup.cfg", INI, INI.replace("[tool:pytest]", "# settings\n[tool:pytest]")),
        ("setup.py", "", "print('anything')\n"),
    ],
)
def test_packaging_may_change(path: str, before: str, after: str) -> None:
    assert steering_change(path, before.encode(), after.encode()) == ""


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("pyproject.toml", TOML, TOML.replace("-q", "-p evil")),
        ("pyproject.toml", TOML, ""),
        ("pyproject.toml", TOML, None),
        ("pyproject.toml", TOML, TOML.replace("[project]", 'build-backend = "mine"\n\n[project]')),
        ("pyproject.toml", TOML, TOML.replace("[project]", 'backend-path = ["."]\n\n[project]')),
        ("pyproject.toml", TOML + "xfail_strict = 0\n", TOML + "xfail_strict = false\n"),
        ("pyproject.toml", TOML, TOML + '[tool.pytest]\naddopts = ["-p", "evil"]\n'),
        ("pyproject.toml", TOML, TOML + "[tool.pytest_env]\nA = '1'\n"),
        ("pyproject.toml", "", "tool.pytest.ini_options.addopts = '-p evil'\n"),
        ("pyproject.toml", TOML, TOML.replace("[project]", "[project")),
        ("pyproject.toml", TOML, TOML.replace("shop", "\udcff")),
        ("setup.cfg", INI, INI.replace("-q", "-p evil")),
        ("setup.cfg", INI, INI.replace("[options]", "[options]\n[tool:pytest] # again\naddopts = -p evil\n[options]")),
        (
            "setup.cfg",
            INI,
            INI.replace("packages = find:", "packages = find:\u2028[tool:pytest]\u2028usefixtures = evil"),
        ),
        ("setup.cfg", INI, INI + "    -p evil\n"),
        ("setup.cfg", INI, None),
    ],
)
def test_nothing_else_may(path: str, before: str, after: str | None) -> None:
    changed = None if after is None else after.encode("utf-8", "surrogateescape")
    assert steering_change(path, before.encode(), changed)


def test_a_file_whose_other_settings_change_is_not_carried(make_task: Any) -> None:
    workspace = {"pyproject.toml": TOML, "shop.py": ""}
    task = make_task({}, {"shop.py": ""}, workspace, fail_to_pass=["x.Y.z"], allowed_paths=["pyproject.toml"])
    honest = TOML.replace('name = "shop"', 'name = "shop"\nversion = "1"').encode()
    cheat = TOML.replace("-q", "-p evil").encode()
    assert [each.path for each in submission_of(task, {"pyproject.toml": honest}).files] == ["pyproject.toml"]
    refused = submission_of(task, {"pyproject.toml": cheat}).refused
    assert [(each.path, each.why) for each in refused] == [
        ("pyproject.toml", "it changes settings that are not about packaging")
    ]
    gone = submission_of(task, {"pyproject.toml": None})
    assert not gone.files and len(gone.refused) == 1


@pytest.mark.parametrize(
    "more",
    [
        "a" + ".a" * 30_000 + " = 1\n",
        "[" + ".".join(["b"] * 8_000) + "]\na" + ".a" * 16_000 + " = 1\n",
        "[" + " . ".join(['"b"'] * 8_000) + "]\n",
        "a = { " + "b" + ".b" * 30_000 + " = 1 }\n",
        "# " + "x" * 70_000 + "\n",
    ],
)
def test_what_takes_long_to_read_is_not_read(more: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of 32,000 parts takes a reader of TOML ten seconds, in a table of many parts minutes."""
    read = []
    monkeypatch.setattr(packaging_config, "_aside", lambda *given: read.append(given))
    assert "longer" in steering_change("pyproject.toml", TOML.encode(), (TOML + more).encode())
    assert not read


def test_a_long_sentence_that_was_there_may_stay() -> None:
    before = TOML + 'description = "' + "Words. " * 40 + '"\n'
    assert (
        steering_change("pyproject.toml", before.encode(), before.replace('"setuptools"', '"hatchling"').encode()) == ""
    )
