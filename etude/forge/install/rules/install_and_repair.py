"""Stage 2 by rules: install the project and what its tests need, run them, and mend what their words ask for.

Works with the `run` tool alone, as an agent would: `pip` installs into the environment, `python` runs in it. How the
suite is to be run goes into the answer file (`ANSWER`), as for every agent. The first try only collects the tests,
for they run twice in verification anyway; the second runs them and listens, unless verification said that a service
is missing for which there is a stand-in. Later ones reach wider: what people develop with and every extra, then no
pins and an older pytest.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from etude.core.policy import Call
from etude.forge.environments.environment import PREFIX
from etude.forge.install.project.facts import Project
from etude.forge.install.project.pytest_options import options_without_reports
from etude.forge.install.project.requirements import canonical, name_of, without_version
from etude.forge.install.rules.explore import look
from etude.forge.install.rules.missing_packages import (
    commands_of,
    last_error,
    requirements_of,
    unknown_modules,
)
from etude.forge.install.rules.scripted_policy import Steps, exit_code, output, run
from etude.forge.install.rules.service_stand_ins import UNNAMED, stand_ins_of

ANSWER = f"{PREFIX}/suite.json"  # {"tests": [], "paths": [], "options": [], "env": {}, "services": [], "notes": []}
EARLIER = "/home/agent/earlier.txt"  # what came of earlier tries
_SOURCE = "/home/agent/source"
_PIP_SECONDS = 600
_COLLECT_SECONDS = 120
_ROUNDS = 8  # of asking the tests what they miss
_OLDER_TOOLS = ("setuptools<81", "setuptools<72", "setuptools<58")  # each removed what older setup files use
_PASSED = re.compile(r"\b(\d+) passed")
_FAILED = re.compile(r"\b(\d+) (?:failed|errors?)\b")
_REMOVED = re.compile(r"^E\s.*\bPytestRemovedIn(\d+)Warning", re.M)
# Tests of before pytest-asyncio asked for a mark: a plain fixture that is a coroutine is nobody's any more.
_UNMARKED = re.compile(r"requested an async fixture '\w+', with no plugin or hook that handled it")
# Qt aborts where it finds no screen, and pytest has captured why: what is left names the bindings that were loaded.
_NO_SCREEN = re.compile(
    r"Fatal Python error: Aborted[\s\S]*\b(?:PySide|PyQt)\d|no Qt platform plugin could be initialized"
)
_OFFSCREEN = ("QT_QPA_PLATFORM", "offscreen")  # of its plugins the one that draws into memory
_MISSED = "not installed:"  # notes, which later tries read
_OTHER_VERSION = "in another version than asked for:"
_OLD_PYTEST = 8  # the oldest that is left for an older one before the last try
# Tests that reach into pytest's own modules, which change with each major version.
_REACHED = re.compile(
    r"^E\s.*(?:cannot import name '\w+' from '_pytest\b|module '_pytest[\w.]*' has no attribute)", re.M
)
# Tests that are older than a package they use: they import what a later version of it dropped.
_DROPPED = re.compile(r"cannot import name '\w+' from '([A-Za-z]\w*)[\w.]*' \(\S*/site-packages/")
_MOST_OLDER = 3  # versions back, of one package
_WARNING = re.compile(r"^E\s+(?:\w+\.)*((?:Pending)?DeprecationWarning|FutureWarning):", re.M)
# Module of a plugin -> options and variables. With CI set, Hypothesis repeats itself and forgives slowness.
_STEADIED: Mapping[str, tuple[list[str], dict[str, str]]] = {
    "hypothesis": ([], {"CI": "true"}),
    "pytest_benchmark": (["--benchmark-disable"], {}),
    "pytest_randomly": (["-p", "no:randomly"], {}),
    "pytest_random_order": (["-p", "no:random_order"], {}),
}
Asking = Generator[Sequence[Call], list[str], str]


@dataclass
class _Settled:
    """What this try has decided so far."""

    options: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    services: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tried: set[str] = field(default_factory=set)  # what was asked for, had or not: distributions, "service redis"
    earlier: str = ""  # what came of earlier tries


def install_and_repair(attempt: int, suite_seconds: int) -> Steps:
    project = yield from look()
    wide, unpinned = attempt > 2, attempt > 3
    settled = _Settled(options=options_without_reports(project.addopts), env=dict(project.variables))
    if why := (yield from _install_project(project, settled, wide)):
        yield [run(_answer({"give_up": why}))]
        return why
    # Where nothing is named for testing, what is named for developing has to do.
    for_tests = [*project.requirements, *(project.wide_requirements if wide or not project.requirements else ())]
    runners = [each for each in for_tests if name_of(each) == "pytest"]
    if unpinned:
        runners = ["pytest<8" if attempt == 4 else "pytest<7"]
    elif all(";" in each for each in runners):  # none, or only under conditions that may not hold
        runners.append("pytest")
    (earlier,) = yield [run(f"cat {EARLIER}")]
    settled.earlier = output(earlier)
    yield from _install(runners, settled)
    rest = [each for each in for_tests if name_of(each) != "pytest"]
    yield from _install([without_version(each) for each in rest] if unpinned else rest, settled)
    yield from _stand_in(settled.earlier, settled)
    # Here nothing serves, as the network is the host's: those tests would fail again, and some take their time.
    yield from _mend(project, settled, suite_seconds, runs=attempt > 2 or (attempt == 2 and not settled.services))
    yield from _steady(settled)
    facts = {"options": settled.options, "env": settled.env, "services": settled.services, "notes": settled.notes}
    yield [run(_answer({"tests": project.tests, "paths": project.roots, **facts}))]
    return "; ".join(settled.notes) or "installed"


def _install_project(project: Project, settled: _Settled, wide: bool) -> Asking:
    """With its extras for tests; then without; then with older build tools. Returns why it cannot be installed."""
    if not project.is_packaged:
        settled.notes.append("it is not packaged: only what its tests import is installed")
        return ""
    version = project.version or "0.0.1"  # where it is read from git, which is not here
    pretended = " ".join(
        f"{name}={shlex.quote(version)}"
        for name in ("SETUPTOOLS_SCM_PRETEND_VERSION", "PBR_VERSION", "PDM_BUILD_SCM_VERSION")
    )
    yield [run(f"mkdir -p {_SOURCE} && cp -R . {_SOURCE}/{_folder(project)}")]
    source = f"{_SOURCE}/{_folder(project)}"
    extras = ",".join([*project.extras, *(project.wide_extras if wide else ())])
    said = text = ""
    # With the extras first: one that cannot be built must not fail the project itself.
    for spec in dict.fromkeys([f"{source}[{extras}]" if extras else source, source]):
        (text,) = yield [run(f"{pretended} pip install {shlex.quote(spec)}", _PIP_SECONDS)]
        if exit_code(text) == 0:
            return ""
        said = last_error(output(text))
    # Only where the error is about the build tools: each try may take ten minutes.
    for older in _OLDER_TOOLS if re.search(r"setuptools|pkg_resources|distutils|setup\.py", text) else ():
        (text,) = yield [
            run(
                f"echo {shlex.quote(older)} > ~/older.txt && "
                f"PIP_CONSTRAINT=$HOME/older.txt {pretended} pip install {shlex.quote(source)}",
                _PIP_SECONDS,
            )
        ]
        if exit_code(text) == 0:
            settled.notes.append(f"built with {older}")
            return ""
    return f"pip cannot install it: {said}"


def _install(requirements: Sequence[str], settled: _Settled) -> Asking:
    """Together; where they do not fit together, one by one and in the end without their versions. Gives the missing."""
    asked_for = [each for each in requirements if each]
    # What pip could not install in an earlier try it cannot in this one: to find that out again takes minutes.
    hopeless = [each for each in asked_for if _was_said(_MISSED, each, settled)]
    for each in hopeless:
        settled.tried.add(canonical(name_of(each) or each))
    asked_for = [
        without_version(each) if _was_said(_OTHER_VERSION, each, settled) else each
        for each in asked_for
        if each not in hopeless
    ]
    settled.tried.update(canonical(name_of(each) or each) for each in asked_for)
    if not asked_for:
        return ""
    # All at once first, so that pip finds versions that fit together.
    (text,) = yield [run(_pip(asked_for), _PIP_SECONDS)]
    if exit_code(text) == 0:
        return ""
    missing: list[str] = []
    others: list[str] = []
    for each in asked_for:
        (text,) = yield [run(_pip([each]), _PIP_SECONDS)]
        # A pin may be for another Python than ours.
        if exit_code(text) != 0 and without_version(each) != each:
            (text,) = yield [run(_pip([without_version(each)]), _PIP_SECONDS)]
            others += [each] if exit_code(text) == 0 else []
        if exit_code(text) != 0:
            missing.append(each)
    if missing:
        settled.notes.append(f"{_MISSED} {', '.join(name_of(each) or each for each in missing)}")
    if others:
        settled.notes.append(f"{_OTHER_VERSION} {', '.join(map(name_of, others))}")
    return ", ".join(missing)


def _was_said(what: str, requirement: str, settled: _Settled) -> bool:
    """Whether a note of an earlier try names it so."""
    name = name_of(requirement)
    said = rf"{re.escape(what)} [\w., -]*?(?<![\w.-]){re.escape(name)}(?![\w.-])"
    return bool(name and re.search(said, settled.earlier))


def _mend(project: Project, settled: _Settled, suite_seconds: int, runs: bool) -> Asking:
    """Collect until nothing is missing, then perhaps run, and install what either asks for."""
    where = " ".join(map(shlex.quote, project.tests))
    # A missing module of the project itself is a broken layout, and no package on the index helps.
    own = {*project.modules, project.name, "tests", "test", "conftest", *(_top(path) for path in project.test_files)}
    collecting, silenced, mocked, loud = True, False, False, ""
    for _ in range(_ROUNDS):
        options = " ".join(map(shlex.quote, settled.options))
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in settled.env.items())
        how = "--collect-only -q" if collecting else "-q --tb=short -p no:cacheprovider"
        seconds = _COLLECT_SECONDS if collecting else suite_seconds
        command = f"{variables} python -m pytest {how} {options} {where}"
        (text,) = yield [run(command, seconds)]
        if not collecting:
            # The traceback of a refused connection need not name host and port; locals do.
            if not loud and UNNAMED.search(text):
                (loud,) = yield [run(f"{command} --showlocals --maxfail=20", seconds)]
            yield from _stand_in(output(text) + output(loud), settled)
        required = requirements_of(output(text), own, project.named)
        asked = [each for each in required if canonical(name_of(each)) not in settled.tried]
        for module in unknown_modules(output(text), own, project.named):
            said = f"tests import {module}, which no file of the project asks for: it is not installed"
            settled.notes += [said] if said not in settled.notes else []
        # One cause at a time: after a repair the tests are asked again, as the next error may be gone with it.
        if asked:
            yield from _install(asked, settled)
        elif (removed := _REMOVED.search(text)) and removed[0] not in settled.tried:
            settled.tried.add(removed[0])
            yield from _older_pytest(int(removed[1]), settled)
        elif _REACHED.search(text) and (major := (yield from _major_of_pytest())) >= _OLD_PYTEST:
            yield from _install([f"pytest<{major}"], settled)
            settled.notes.append(f"its tests reach for what pytest {major} does not have: an older one is installed")
        elif (dropped := _DROPPED.search(text)) and (yield from _older_package(dropped[1], own, settled)):
            pass
        elif not collecting and _UNMARKED.search(text) and _UNMARKED.pattern not in settled.tried:
            settled.tried.add(_UNMARKED.pattern)
            settled.options += ["-o", "asyncio_mode=auto"]
            settled.notes.append(
                "its async fixtures have no mark: pytest-asyncio takes all of them (asyncio_mode=auto)"
            )
        elif _NO_SCREEN.search(text) and _OFFSCREEN[0] not in settled.env:
            settled.env[_OFFSCREEN[0]] = _OFFSCREEN[1]
            settled.notes.append("its tests open windows, and there is no screen: Qt draws them into memory")
        # Warnings only where more than a tenth is red: a suite that is green enough stays as it is.
        elif not collecting and not silenced and _is_too_red(text) and (warnings := _turned_into_errors(text)):
            silenced = True
            for name in warnings:
                settled.options += ["-W", f"ignore::{name}"]
            settled.notes.append(f"warnings that its settings turn into errors are ignored: {', '.join(warnings)}")
        elif not collecting and not mocked and _is_too_red(text) and (commands := commands_of(text)):
            mocked = True
            for name in commands:
                shim = f"{PREFIX}/bin/{name}"
                # An empty command that succeeds; noted, as tests that read its output will still fail.
                yield [run(f"test -e {shim} || (printf '#!/bin/sh\\nexit 0\\n' > {shim} && chmod 755 {shim})")]
            settled.notes.append(f"mocked commands that only succeed: {', '.join(commands)}")
        elif collecting and runs:
            collecting = False
        else:
            return ""
    return ""


def _stand_in(text: str, settled: _Settled) -> Asking:
    """Who was not there is replaced by a package that serves in its place, where there is one."""
    for asked in stand_ins_of(text):
        name, requirements = asked.stand_in.name, asked.stand_in.requirements
        if f"service {name}" in settled.tried:
            continue
        settled.tried.add(f"service {name}")
        if (yield from _install(requirements, settled)):
            continue
        settled.services.append(asked.service)
        # The repository's own settings win.
        settled.env |= {key: value for key, value in asked.env.items() if key not in settled.env}
        settled.notes.append(f"{name} is a stand-in: {name_of(requirements[0])}, on port {asked.port}")
    return ""


def _older_pytest(removed_in: int, settled: _Settled) -> Asking:
    """The tests use what pytest removes in this version: go below it, or ignore the warning where it is yet to come."""
    if 0 < (yield from _major_of_pytest()) < removed_in:
        settled.options += ["-W", f"ignore::pytest.PytestRemovedIn{removed_in}Warning"]
        settled.notes.append(f"warnings of what pytest {removed_in} will remove are ignored")
    else:
        yield from _install([f"pytest<{removed_in}"], settled)
        settled.notes.append(f"its tests use what pytest {removed_in} removed: an older one is installed")
    return ""


def _older_package(module: str, own: set[str], settled: _Settled) -> Asking:
    """The version before the one that is installed; nothing where there is none to go back to."""
    if module in own or sum(each.startswith(f"older {module} ") for each in settled.tried) >= _MOST_OLDER:
        return ""
    code = (
        "import importlib.metadata as m, sys; "
        "name = m.packages_distributions()[sys.argv[1]][0]; print(name, m.version(name))"
    )
    (text,) = yield [run(f"python -c {shlex.quote(code)} {module}")]
    found = re.match(r"([A-Za-z0-9][\w.-]*) (\d+)\.(\d+)", output(text))
    if found is None:
        return ""
    name, major, minor = found[1], int(found[2]), int(found[3])
    # Before 1.0 a minor version is what a major one is later.
    below = f"{name}<{major}" if major else f"{name}<0.{minor}"
    if f"older {module} {below}" in settled.tried or not (major or minor):
        return ""
    settled.tried.add(f"older {module} {below}")
    if (yield from _install([below], settled)):
        return ""
    settled.notes.append(f"its tests use what {name} {major}.{minor} dropped: an older one is installed")
    return below


def _major_of_pytest() -> Generator[Sequence[Call], list[str], int]:
    (text,) = yield [run("python -m pytest --version")]
    found = re.search(r"pytest (\d+)", text)
    return int(found[1]) if found else 0


def _steady(settled: _Settled) -> Asking:
    """Plugins that measure or that draw at random are set to be quick and to do the same each time."""
    code = "import importlib.util as u, sys; print(*[name for name in sys.argv[1:] if u.find_spec(name)])"
    (text,) = yield [run(f"python -c {shlex.quote(code)} {' '.join(_STEADIED)}")]
    there = output(text).split()
    for name, (options, env) in _STEADIED.items():
        if name in there:
            settled.options += [] if set(options) <= set(settled.options) else options
            settled.env |= {key: value for key, value in env.items() if key not in settled.env}
    return ""


def _turned_into_errors(text: str) -> list[str]:
    return sorted(set(_WARNING.findall(text)))


def _is_too_red(text: str) -> bool:
    summary = text.strip().splitlines()[-2:]
    passed = sum(int(number) for line in summary for number in _PASSED.findall(line))
    failed = sum(int(number) for line in summary for number in _FAILED.findall(line))
    # The same share that verification asks for.
    return failed > 0.1 * (passed + failed)


def _answer(facts: Mapping[str, Any]) -> str:
    return f"printf %s {shlex.quote(json.dumps(facts))} > {ANSWER}"


def _pip(requirements: Sequence[str]) -> str:
    return f"pip install {' '.join(map(shlex.quote, requirements))}"


def _folder(project: Project) -> str:
    """The copy that is built keeps the project's name: a build may look at it."""
    return re.sub(r"[^\w.-]", "-", project.name) or "project"


def _top(path: str) -> str:
    return path.split("/")[0].removesuffix(".py")
