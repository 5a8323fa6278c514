"""What a repository says about itself, and what errors ask for: text in, facts out."""

from __future__ import annotations

import pytest

from etude.forge.install.project.facts import files_to_read, read_project
from etude.forge.install.project.pytest_options import options_without_reports
from etude.forge.install.project.requirements import needed, read_requirements, without_version
from etude.forge.install.rules.explore import propose
from etude.forge.install.rules.missing_packages import commands_of, requirements_of, unknown_modules
from etude.forge.install.target_commands import PROPOSALS, TARGETS, choose_targets

PATHS = ["pyproject.toml", "src/thing/__init__.py", "src/thing/core.py", "tests/test_core.py", "docs/test_docs.py"]


def read(texts: dict[str, str], paths: list[str] | None = None):  # type: ignore[no-untyped-def]
    return read_project([*(paths or PATHS), *texts], texts)


def test_pyproject_names_extras_groups_and_scripts() -> None:
    project = read(
        {
            "pyproject.toml": """
            [project]
            name = "Thing"
            version = "2.0"
            [project.optional-dependencies]
            test = ["hypothesis>=6", "thing[yaml]", "black"]
            yaml = ["PyYAML"]
            docs = ["sphinx", "furo"]
            [project.scripts]
            thing-run = "thing:main"
            [dependency-groups]
            base = ["attrs"]
            tests = [{include-group = "base"}, "pytest>=8"]
            """
        }
    )
    assert (project.name, project.version, project.roots, project.modules) == ("Thing", "2.0", ("src",), ("thing",))
    assert project.tests == ("tests",)
    assert project.scripts == ("thing-run",)
    assert project.requirements == ("attrs", "pytest>=8", "hypothesis>=6", "PyYAML")  # tools and itself left out
    assert project.extras == ()  # all of them are known, so none is left to the build


def test_tests_beside_the_pages_count_where_there_are_no_others() -> None:
    alone = ["setup.py", "old.py", "doc/test_old.py", "vendor/test_other.py"]
    assert read({"setup.py": ""}, alone).tests == ("doc/test_old.py",)
    assert read({"setup.py": ""}, [*alone, "tests/test_new.py"]).tests == ("tests",)


def test_setup_files_are_read_without_running_them() -> None:
    source = """
from setuptools import setup
TESTS = ["mock", "pytest-mock"]
open("/nowhere/at/all")
setup(name="old", version="0.1", tests_require=TESTS, extras_require={"testing": TESTS + ["six"]},
      entry_points={"console_scripts": ["old=old:main"]})
"""
    project = read({"setup.py": source}, ["setup.py", "old.py", "test_old.py"])
    assert project.name == "old" and project.modules == ("old",) and project.tests == ("test_old.py",)
    assert set(project.requirements) == {"mock", "pytest-mock", "six"}
    assert project.scripts == ("old",)


def test_metadata_of_a_source_distribution_tells_extras() -> None:
    metadata = (
        "Metadata-Version: 2.1\nName: thing\nVersion: 3.1\nProvides-Extra: test\n"
        'Requires-Dist: freezegun>=1; extra == "test"\n'
        'Requires-Dist: tzdata; sys_platform == "linux" and extra == "test"\n'
    )
    project = read({"PKG-INFO": metadata})
    assert project.version == "3.1"
    assert project.requirements == ("freezegun>=1", 'tzdata; sys_platform == "linux"')


def test_requirements_tox_nox_and_workflows_are_read() -> None:
    texts = {
        "requirements/test.txt": "-r base.txt\nresponses==0.1  # pinned\n-e .\n--hash=x\n",
        "requirements/base.txt": "requests\n",
        "tox.ini": "[testenv]\ndeps =\n    freezegun\n    -r{toxinidir}/more.txt\n    docs: sphinx-rtd\n"
        "setenv =\n    MODE = fast\n    X = {envdir}\ncommands = pytest tests/unit\n",
        "more.txt": "respx\n",
        "noxfile.py": "import nox\n@nox.session\ndef tests(session):\n    session.install('-e', '.', 'syrupy')\n",
        ".github/workflows/ci.yml": "- run: pip install -U pip coverage dirty-equals\n- run: pytest -x\n",
    }
    project = read(texts)
    assert project.requirements[:2] == ("requests", "responses==0.1")
    wide = {"freezegun", "respx", "syrupy", "coverage", "dirty-equals"}
    assert wide <= set(project.wide_requirements)
    assert project.variables == {"MODE": "fast"}
    assert any("pytest tests/unit" in command for command in project.commands)


def test_what_a_comment_says_about_pip_names_no_package() -> None:
    texts = {
        ".github/workflows/ci.yml": "# `pip install shop` brings no library\n- run: pip install syrupy # or more\n",
        "Makefile": "test:  # pip install nothing else\n\tpip install freezegun\n",
    }
    project = read(texts)
    assert {*project.requirements, *project.wide_requirements} == {"syrupy", "freezegun"}


def test_broken_files_say_nothing_and_harm_nobody() -> None:
    texts = {"pyproject.toml": "[[[", "setup.cfg": "no section", "setup.py": "def (", "tox.ini": "[", "noxfile.py": "("}
    project = read(texts, ["tests/test_a.py"])
    assert project.name == "" and project.tests == ("tests",)


def test_testpaths_are_believed_where_they_exist() -> None:
    settings = {"pytest.ini": "[pytest]\ntestpaths = tests/unit nowhere\naddopts = -ra --cov=thing --strict-markers\n"}
    project = read(settings, ["tests/unit/test_a.py", "tests/slow/test_b.py"])
    assert project.tests == ("tests/unit",)
    assert options_without_reports(project.addopts) == ["-o", "addopts=", "--strict-markers"]


def test_options_in_a_list_stay_whole_words() -> None:
    table = '[tool.pytest]\ntestpaths = ["tests/unit", "my tests"]\naddopts = ["--color=yes", "-m=not slow"]\n'
    project = read({"pyproject.toml": table}, ["tests/unit/test_a.py", "my tests/test_b.py", "more/test_c.py"])
    assert project.tests == ("tests/unit", "my tests")
    assert options_without_reports(project.addopts) == ["-o", "addopts=", "-m=not slow"]


@pytest.mark.parametrize(
    ("addopts", "kept"),
    [
        ("", []),
        ("--doctest-modules --import-mode=importlib", []),
        ("-n auto --doctest-modules", ["-o", "addopts=", "--doctest-modules"]),
        ("--cov thing --cov-report term -p no:warnings", ["-o", "addopts=", "-p", "no:warnings"]),
        ("'unclosed", []),
    ],
)
def test_options_that_only_change_reports_are_dropped(addopts: str, kept: list[str]) -> None:
    assert options_without_reports(addopts) == kept


def test_requirement_lines() -> None:
    assert needed(["a>=1 # why", "A", "git+https://x/y", "-e .", "black", "b[c] ; python_version<'4'"], "own") == [
        "a>=1",
        "b[c] ; python_version<'4'",
    ]
    assert needed(["a<2; x", "a>=2; y", "a>3; y"]) == ["a<2; x", "a>=2; y"]
    assert without_version("thing[x]>=2,<3; python_version>'3'") == "thing[x] ; python_version>'3'"
    assert read_requirements("a.txt", {"a.txt": "-r a.txt\nb\\\n>=1\n"})[-1] == "b >=1"  # a file that names itself ends


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("ModuleNotFoundError: No module named 'yaml'", ["PyYAML"]),
        ("E   ModuleNotFoundError: No module named 'ruamel.yaml.comments'", ["ruamel.yaml"]),
        ("ModuleNotFoundError: No module named 'thing.sub'", []),  # its own
        (
            "ModuleNotFoundError: No module named '_winreg'; No module named 'json.bad'",
            [],
        ),  # no package, and Python's own
        ("E       fixture 'mocker' not found", ["pytest-mock"]),
        (
            "error: unrecognized arguments: --cov=thing --timeout=3 -nauto",
            ["pytest-cov", "pytest-timeout", "pytest-xdist"],
        ),
        ("Missing required plugins: pytest-foo, pytest-bar", ["pytest-foo", "pytest-bar"]),
        ("PytestConfigWarning: Unknown config option: asyncio_mode", ["pytest-asyncio"]),
        ("PytestUnknownMarkWarning: Unknown pytest.mark.trio - is this a typo?", ["pytest-trio"]),
        ("async def functions are not natively supported.", ["pytest-asyncio"]),
        ("No module named '../../etc'", []),
    ],
)
def test_errors_name_the_distribution_they_ask_for(said: str, asked: list[str]) -> None:
    assert requirements_of(said, {"thing"}) == asked


def test_missing_commands_are_found_but_not_missing_files() -> None:
    error = "E   FileNotFoundError: [Errno 2] No such file or directory: '{}'\n"
    started = "subprocess.py:1955: in _execute_child\n    raise child_exception_type(errno_num, err_msg)\n"
    said = started + error.format("redis-server") + started + error.format("/bin/x") + error.format("settings")
    assert commands_of(said) == ["redis-server"]


def test_ten_commands_are_proposed_and_three_chosen_with_the_tests_among_them() -> None:
    project = read({"pyproject.toml": '[project]\nname = "thing"\n[project.scripts]\nthing = "thing:main"\n'})
    proposals = propose(project)
    assert len({each.command for each in proposals}) == PROPOSALS and all(each.prints for each in proposals)
    targets = choose_targets(proposals)
    assert [each.kind for each in targets] == ["tests", "import", "script"] and len(targets) == TARGETS


def test_only_files_near_the_top_are_read() -> None:
    assert files_to_read(["setup.py", "a/b/c/requirements.txt", "tests/requirements.txt", "big.bin"]) == [
        "setup.py",
        "tests/requirements.txt",
    ]


def test_data_of_tests_chooses_no_package() -> None:
    texts = {
        "pyproject.toml": '[project]\nname = "thing"\n',
        "tests/res/test.txt": "requests\nevil-package\n",
        "tests/data/requirements.txt": "evil-fixture\n",
        "dev.txt": "words\n",
        "test-requirements.txt": "pytest\n",
        "tests/requirements.txt": "mock\n",
    }
    assert set(files_to_read(texts)) == set(texts)
    project = read(texts)
    assert {*project.requirements, *project.wide_requirements} == {"pytest", "mock"}


def test_a_file_that_a_command_installs_from_is_read_whatever_its_name() -> None:
    texts = {"tox.ini": "[testenv]\ndeps = -r{toxinidir}/test.txt\n", "test.txt": "mock>=2\n"}
    assert "mock>=2" in read(texts).requirements
    prose = texts | {"test.txt": "This file tells of the tests.\nThey are many, and slow.\n"}
    assert "mock>=2" not in read(prose).requirements


def test_a_module_asks_only_for_what_the_project_or_our_table_names() -> None:
    text = "E   ModuleNotFoundError: No module named 'helpers_of_mine'\nE  No module named 'numpy'\n"
    text += "E   No module named 'odd_name.part'\nNo module named 'yaml'\n"
    assert requirements_of(text) == ["numpy", "PyYAML"]
    assert requirements_of(text, named={"odd-name"}) == ["numpy", "odd_name", "PyYAML"]
    assert unknown_modules(text, named={"odd-name"}) == ["helpers_of_mine"]
    assert unknown_modules(text, own={"helpers_of_mine"}) == ["odd_name"]


def test_of_packages_of_which_one_does_one_is_asked_for() -> None:
    text = "pytest-qt requires either PySide6, PyQt5 or PyQt6 installed.\n"
    text += "".join(f"  {name}: No module named '{name}'\n" for name in ("PyQt5", "PyQt6", "PySide6"))
    assert requirements_of(text, named={"pyqt5", "pyqt6", "pyside6"}) == ["PyQt6"]
    assert requirements_of(text, named={"pyside6"}) == ["PySide6"]
