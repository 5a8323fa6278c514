"""Installing a repository: propose commands, try at most five times to make them work, or discard it.

One way for all languages. What a try made counts for nothing until it has been verified in fresh sandboxes
without network. An installed repository is remembered by its files, so a second call only reads, and so is one that
the rules for Python have failed at, until they change; a killed installation leaves downloads alone.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from etude.core.errors import EtudeError
from etude.forge.install.agent_rollout import Agents, Installers
from etude.forge.install.checkout import Repo
from etude.forge.install.javascript.installer import JavaScriptInstaller
from etude.forge.install.javascript.project_facts import is_script_project
from etude.forge.install.make_layer import UnverifiedEnvironment
from etude.forge.install.pip_settings import PackageIndex
from etude.forge.install.python_installer import PythonInstaller, rules
from etude.forge.install.result import InstallFailed, InstallResult, Memory
from etude.forge.install.target_commands import Proposal, choose_targets
from etude.forge.install.verify import verify
from etude.sandbox.base import Layer
from etude.sandbox.hosts import StoringHost
from etude.sandbox.store.layers import Store
from etude.tasks.javascript.parsing import require_parser

TRIES: Final = 5
SAME: Final = 3  # tries in a row with the same words, after which no other is made: each takes minutes
# What failing tests say where files are missing that a checkout has and an archive often leaves out.
_MISSING: Final = re.compile(
    r"FileNotFoundError|No such file or directory|No module named 'tests?\b|no tests|nothing was proposed"
    r"|only 0 tests(?!.*::)|cannot find|does not exist|NotADirectoryError"
)
_CHECKOUT: Final = (
    "the source archive of {name} may leave out files that its tests need: clone its repository and give the folder in "
    "place of the name"
)
# A name that a module of the standard library had once, and a module that it had.
_OLD_PYTHON: Final = re.compile(
    r"cannot import name '\w+' from '[\w.]+' \(\S*/lib/python3\.\d+/(?!site-packages/)[^)]*\)"
    rf"|module '(?:{'|'.join(sorted(sys.stdlib_module_names))})' has no attribute"
    r"|No module named '(?:asynchat|asyncore|binhex|distutils|formatter|imp|parser|smtpd|symbol)'"
)
# What SWIG writes beside the module that it compiles: the one is in the archive, the other is not.
_NOT_COMPILED: Final = re.compile(r"cannot import name '_(\w+)' from partially initialized module '(?:[\w.]+\.)?\1'")
# A file or a port that such a command should have made is missing, too, and no archive has left it out.
_MOCKED: Final = re.compile(r"mocked commands that only succeed: ")
_LEAVE_OUT: Final = (
    "tests that nothing here can satisfy can be left out in a folder of your own, by the repository's settings of "
    "pytest (addopts with --deselect or --ignore)"
)
# What a refusal says and what to do then, the first that fits.
_ADVICE: Final = (
    (re.compile(r"give more time"), ""),  # it says so itself
    (
        _OLD_PYTHON,
        f"it, or what it uses, was written for an older Python than {sys.version_info.major}.{sys.version_info.minor}, "
        "whose standard library has this name no more: give a newer version (NAME==VERSION, or a checkout)",
    ),
    (
        _NOT_COMPILED,
        "its own compiled module is missing, which pip does not build: build it in a folder as the project says, and "
        "give that folder",
    ),
    (
        re.compile(r"pip cannot install it"),
        "pip's last words are the cause: what its build needs has to be on this machine, or give another version "
        "(NAME==VERSION) or a folder in which it builds",
    ),
    (
        _MOCKED,
        "its tests run the commands that are named last, which this machine does not have: what stands in for them "
        f"only succeeds. A model that installs (--policy) may bring them; {_LEAVE_OUT}",
    ),
    (
        re.compile(r"tests? (?:fail|pass)|no tests"),
        "look at what the named tests need. A service or program that is not here can be brought by a model that "
        f"installs (--policy); {_LEAVE_OUT}",
    ),
    (re.compile(r""), "a model that installs (--policy) may find another way; `--again` tries once more"),
)
Note = Callable[[str], None]


class Installer(Protocol):
    """How repositories of one language are installed. `InstallFailed` says why something led to nothing."""

    @property
    def tries(self) -> int: ...

    async def propose(self) -> list[Proposal]:
        """Commands that should work once the repository is installed."""
        ...

    async def attempt(self, number: int, targets: Sequence[Proposal], earlier: Sequence[str]) -> UnverifiedEnvironment:
        """An environment in which they may work; `earlier` says why tries before this one came to nothing."""
        ...


async def install(
    repo: Repo,
    host: StoringHost,
    index: PackageIndex,
    *,
    agents: Agents | Installers | None = None,
    suite_seconds: float = 300.0,
    seconds: float = 3600.0,
    tries: int = TRIES,
    again: bool = False,
    note: Note = lambda text: None,
) -> InstallResult:
    """Install a repository into an environment of the host's store, or say why it cannot be.

    `agents` act in place of the rules. A failure of the rules is remembered; `again` tries all the same.

    Raises for what is nobody's fault but the machine's; a repository that resists is a result.
    """
    if not host.capabilities.isolated:
        raise EtudeError("installing runs other people's code, so it needs the local sandbox; plain isolates nothing")
    scripts = is_script_project(repo.tree)
    if scripts:
        require_parser()
    started = time.monotonic()
    deadline = started + seconds
    workspace = host.store.add(repo.tree, shows=())
    memory = Memory(host.store, workspace)
    if (known := memory.result()) is not None:
        return known
    by_rules = agents is None and not scripts
    if by_rules and not again and (failed := memory.failure(index.variables, suite_seconds)) is not None:
        return failed
    acting = agents if isinstance(agents, Installers) else Installers(agents or rules(suite_seconds))
    installer: Installer = (
        # The rules for npm are no agent: its own resolver does what they would.
        JavaScriptInstaller(repo, host, note, acting if agents else None, deadline)
        if scripts
        else PythonInstaller(repo, host, index, workspace, memory, acting, suite_seconds, deadline, tries, note)
    )
    result = await _try_in_turn(installer, host, workspace, suite_seconds, deadline, note, by_rules)
    if not result.ok:
        result = replace(result, reason=with_advice(result.reason, repo, by_rules))
    result = replace(result, seconds=time.monotonic() - started)
    if result.environment is not None:
        result.environment.save(host.store.root)
        memory.keep(result)
    elif by_rules and result.lasting and tries >= TRIES:
        memory.keep_failure(result, index.variables, suite_seconds)
    return result


def with_advice(reason: str, repo: Repo, by_rules: bool = True) -> str:
    """Why a repository could not be installed, and what to do about it; somebody else than the rules knows better."""
    advice = next(text for pattern, text in _ADVICE if pattern.search(reason)) if by_rules else ""
    known = any(pattern.search(reason) for pattern in (_OLD_PYTHON, _NOT_COMPILED, _MOCKED))
    if repo.origin == "package" and _MISSING.search(reason) and not known:
        advice = _CHECKOUT.format(name=repo.name)
    return f"{reason}; {advice}" if advice else reason


async def _try_in_turn(
    installer: Installer,
    host: StoringHost,
    workspace: Layer,
    suite_seconds: float,
    deadline: float,
    note: Note,
    by_rules: bool,
) -> InstallResult:
    """`by_rules`: whoever acts does the same again, so that tries which end alike are not repeated."""
    note("looking at the repository")
    proposals: list[Proposal] = []
    try:
        proposals = await installer.propose()
        if not (targets := choose_targets(proposals)):
            raise InstallFailed("none of the proposed commands runs the tests")
    except InstallFailed as error:
        return InstallResult(False, str(error), tuple(proposals))
    tries: list[str] = []
    reasons: list[str] = []
    lasting = False
    for number in range(1, installer.tries + 1):
        notes: tuple[str, ...] = ()
        try:
            if time.monotonic() > deadline:
                raise InstallFailed("there is no time left for another try", final=True)
            made = await installer.attempt(number, targets, tries)
            notes = made.notes
            found = await verify(made.environment, workspace, targets, host, suite_seconds=suite_seconds, note=note)
        except InstallFailed as error:
            tries.append(f"{error} ({'; '.join(notes)})" if notes else str(error))
            reasons.append(str(error))
            # A final word is pip's or the clock's, and may be another when the machine or the index is.
            lasting = not error.final and time.monotonic() < deadline
            note(f"try {number} failed: {error}")
            if error.final:
                break
            # Wider requirements changed nothing, and older versions of pytest help where pytest is in the words.
            if (
                by_rules
                and SAME <= number < installer.tries
                and len(set(reasons[-SAME:])) == 1
                and "pytest" not in reasons[-1]
            ):
                tries[-1] += f" (the same in {SAME} tries: {installer.tries - number} more would not differ)"
                break
            continue
        result = InstallResult(True, "", tuple(proposals), found.commands, found.passed, found.failed)
        made_of = found.environment
        notes = (*notes, *found.notes)
        return replace(result, digest=made_of.digest, tries=tuple(tries), notes=notes, environment=made_of)
    return InstallResult(False, tries[-1], tuple(proposals), tries=tuple(tries), lasting=lasting)


def repositories(store: Store) -> Path:
    """Where the copies of repositories lie: beside the layers."""
    return store.root / "repositories"
