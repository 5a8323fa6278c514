"""Stage 2 by rules, played against answers that a shell might give: nothing is installed."""

from __future__ import annotations

from collections.abc import Callable

from etude.forge.install.rules.install_and_repair import install_and_repair

FILES = "./pyproject.toml\n./shop/__init__.py\n./tests/test_shop.py\n"


def commands(attempt: int, says: Callable[[str, list[str]], str], project: str = "") -> list[str]:
    """What the rules run, where `says` is what a command answers, given all before it."""
    told: list[str] = []
    steps, answers = install_and_repair(attempt, 60), None
    try:
        while True:
            calls = steps.send(answers) if answers is not None else next(steps)
            answers = []
            for command in (call.arguments["command"] for call in calls):
                if command.startswith("find "):
                    answers.append(FILES)
                elif command.startswith("cat -- pyproject.toml"):
                    answers.append('[project]\nname = "shop"\nversion = "1"\n' + project)
                else:
                    answers.append(says(command, told))
                told.append(command)
    except StopIteration:
        return told


def test_tests_that_reach_into_a_newer_pytest_get_an_older_one_at_once() -> None:
    def says(command: str, told: list[str]) -> str:
        major = 7 if "pip install 'pytest<8'" in told else 8 if "pip install 'pytest<9'" in told else 9
        if command == "python -m pytest --version":
            return f"pytest {major}.0.1"
        if "--collect-only" in command and major > 8:
            return "E   ImportError: cannot import name 'notset' from '_pytest.monkeypatch' (...)\n[exit 2]"
        return ""

    told = commands(1, says)
    assert "pip install 'pytest<9'" in told and "pip install 'pytest<8'" not in told
    assert any("reach for what pytest 9" in command for command in told)


def test_what_no_pytest_has_is_not_looked_for_without_end() -> None:
    missing = "module '_pytest.nodes' has no attribute 'x'"

    def says(command: str, told: list[str]) -> str:
        below = [int(each.partition("<")[2].strip("'")) for each in told if each.startswith("pip install 'pytest<")]
        if command == "python -m pytest --version":
            return f"pytest {min(below, default=10) - 1}.1.0"
        return f"E   AttributeError: {missing}\n[exit 2]" if "--collect" in command else ""

    told = commands(1, says)
    assert [each for each in told if "'pytest<" in each and "pip" in each] == [
        "pip install 'pytest<9'",
        "pip install 'pytest<8'",
    ]


def test_tests_that_use_what_a_package_dropped_get_an_older_one() -> None:
    def says(command: str, told: list[str]) -> str:
        below = [each for each in told if each.startswith("pip install 'flexmock<")]
        minor = 12 - len(below)
        if "packages_distributions" in command:
            return f"flexmock 0.{minor}.1"
        if "--collect-only" in command and minor > 10:
            where = "/opt/env/lib/site-packages/flexmock/a.py"
            return f"E   ImportError: cannot import name 'down' from 'flexmock' ({where})\n[exit 2]"
        return ""

    told = commands(1, says)
    assert [each for each in told if each.startswith("pip install 'flexmock")] == [
        "pip install 'flexmock<0.12'",
        "pip install 'flexmock<0.11'",
    ]


def test_what_no_version_of_a_package_has_is_not_looked_for_without_end() -> None:
    def says(command: str, told: list[str]) -> str:
        below = [each for each in told if "pip install 'Toy.Box<" in each]
        if "packages_distributions" in command:
            return f"Toy.Box {9 - len(below)}.0"
        missing = "cannot import name 'x' from 'toybox.inner' (/opt/env/lib/site-packages/toybox/inner.py)"
        return f"E   ImportError: {missing}\n[exit 2]" if "--collect" in command else ""

    told = commands(1, says)
    assert sum("pip install 'Toy.Box<" in each for each in told) == 3


def test_what_pip_could_not_install_is_not_tried_again_and_again() -> None:
    project = '[project.optional-dependencies]\ntest = ["readline==6.3", "oldcov==4.4", "fine"]\n'
    broken = {"'readline==6.3'", "readline==6.3", "readline", "'oldcov==4.4'", "oldcov==4.4"}

    def says(earlier: str) -> Callable[[str, list[str]], str]:
        def answer(command: str, told: list[str]) -> str:
            if command.startswith("cat /home/agent/earlier"):
                return earlier
            if command.startswith("pip install"):
                return "[exit 1]" if broken & set(command.split()) else ""
            return ""

        return answer

    def pips(told: list[str]) -> list[str]:
        return [each for each in told if each.startswith("pip install") and "pytest" not in each]

    first = commands(1, says(""), project)
    (kept,) = [each for each in first if each.startswith("printf") and "not installed" in each]
    assert "not installed: readline" in kept and "in another version than asked for: oldcov" in kept
    assert len(pips(first)) > 3
    notes = "not installed: readline; in another version than asked for: oldcov; its tests use what fine 2 dropped"
    assert pips(commands(2, says(f"3 of 9 tests fail ({notes})"), project)) == ["pip install oldcov fine"]


def test_async_fixtures_without_a_mark_get_the_plugin_and_then_its_old_way() -> None:
    failed = "E  Failed: 'test_a' requested an async fixture 'shop', with no plugin or hook that handled it.\n1 failed"

    def says(command: str, told: list[str]) -> str:
        runs = "-m pytest -q" in command and "asyncio_mode=auto" not in command
        return f"{failed}\n[exit 1]" if runs else ""

    told = commands(2, says)
    assert "pip install pytest-asyncio" in told
    assert any(each.startswith("printf") and "asyncio_mode=auto" in each for each in told)


def test_windows_without_a_screen_are_drawn_into_memory() -> None:
    aborted = (
        "Fatal Python error: Aborted\n  File qtbot.py\nExtension modules: PySide6.QtCore, PySide6.QtGui (total: 2)"
    )

    def says(command: str, told: list[str]) -> str:
        runs = "-m pytest -q" in command and "QT_QPA_PLATFORM=offscreen" not in command
        return f"{aborted}\n[exit 134]" if runs else ""

    told = commands(2, says)
    assert any(each.startswith("printf") and '"QT_QPA_PLATFORM": "offscreen"' in each for each in told)
    assert not any(
        "QT_QPA_PLATFORM" in each for each in commands(2, lambda *_: "Fatal Python error: Aborted\n[exit 134]")
    )
