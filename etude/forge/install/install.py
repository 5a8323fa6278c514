"""Installing a repository: explore and propose, then install, mend and verify, at most five times, or discard it.

Both stages are rollouts of our harness in a sandbox with network; who acts in them is a `Policy`, rules by default.
What an agent did counts for nothing until it has been verified in fresh sandboxes without network. An installed
repository is remembered by its files, so a second call only reads, and so is one that the rules have failed at, until
they change; a killed installation leaves downloads alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from etude.core.errors import EtudeError
from etude.core.policy import Policy, Sampling
from etude.core.settings import AgentLimits
from etude.forge.environments.environment import PREFIX
from etude.forge.install.checkout import Repo
from etude.forge.install.javascript.install import install_scripts
from etude.forge.install.javascript.project_facts import is_script_project
from etude.forge.install.make_layer import REPORTS, Made, finish
from etude.forge.install.package_index import PackageIndex, interpreter, shown_folders
from etude.forge.install.result import InstallResult, Memory, Unfit
from etude.forge.install.rules.explore import explore
from etude.forge.install.rules.install_and_repair import ANSWER, EARLIER, settle
from etude.forge.install.rules.proposal import PROPOSALS, Proposal, Propose, choose_targets, proposals_of
from etude.forge.install.rules.step_policy import Scripter
from etude.forge.install.verify import FEWEST, Verified, verify
from etude.harness.loop import Event, run_agent
from etude.harness.prompt import system_text
from etude.harness.tools.base import Tool
from etude.harness.tools.table import build_tools
from etude.sandbox.base import Layer, Sandbox, SandboxLimits
from etude.sandbox.environment import ENVIRONMENT
from etude.sandbox.hosts import StoringHost
from etude.sandbox.store.layers import Store

Stage = Literal["explore", "settle"]
Agents = Callable[[Stage, int], Policy]  # who acts in a stage; the number counts the tries of stage 2 from 1

TRIES: Final = 5
_SHOWN: Final = 400_000
_LIMITS: Final = SandboxLimits(memory=3 << 30, disk=4 << 30, processes=512, cpu_seconds=3600)
_TOOLS: Final = ("read", "list", "glob", "grep", "finish")
_SHIM: Final = "/home/agent/bin"

_EXPLORE: Final = f"""\
This folder holds a repository that nobody has installed yet. Find out how it is set up, tested and used: read what it
says about itself (README, pyproject, setup files, requirements, tox, nox, continuous integration, Makefile). Then call
`propose` {PROPOSALS} times, each time with a command that should work in this folder once everything is installed, what
it should print, and where you can a regular expression for that. The first must run the test suite (kind tests). End
with `finish`."""

_SETTLE: Final = f"""\
Make these commands work in this folder:

{{targets}}

Install with `pip`, which installs into {PREFIX}; `python` is the one of that environment. Install the project from a
copy of this folder, not from the folder itself, with what its tests need. What cannot be had, mock: a small command in
{PREFIX}/bin, a module in {PREFIX}, or, for what tests look for on a port of localhost, a service: a program below
{PREFIX} that is started in every sandbox before anything else. Change nothing in the repository and leave no test
out. Only {PREFIX} is kept, and nothing that you leave running; the commands are then run in a fresh sandbox without
network, twice, and at least {FEWEST} tests and nine tenths of all must pass. Before you finish, write how the tests
are run to {ANSWER}, as JSON: {{{{"tests": [folders], "paths": [folders that imports start from], "options": [for
pytest], "env": {{{{}}}}, "services": [{{{{"name":, "argv": [absolute program, words], "port": that it listens on}}}}],
"notes": [what was mocked or changed]}}}}; or, where nothing can help, {{{{"give_up": why}}}}.
{{earlier}}"""


def rules(suite_seconds: float) -> Agents:
    """The agents that need no model."""

    def agent(stage: Stage, attempt: int) -> Policy:
        return Scripter(explore() if stage == "explore" else settle(attempt, int(suite_seconds)))

    return agent


async def install(
    repo: Repo,
    host: StoringHost,
    index: PackageIndex,
    *,
    agents: Agents | None = None,
    suite_seconds: float = 300.0,
    seconds: float = 3600.0,
    tries: int = TRIES,
    shown: int = _SHOWN,
    again: bool = False,
    note: Callable[[str], None] = lambda text: None,
) -> InstallResult:
    """Install a repository into an environment of the host's store, or say why it cannot be.

    `shown` is how many characters of a command's output an agent sees: rules read all, a model has a context. A failure
    of the rules is remembered; `again` tries all the same.

    Raises for what is nobody's fault but the machine's; a repository that resists is a result.
    """
    if not host.capabilities.isolated:
        raise EtudeError("installing runs other people's code, so it needs the local sandbox; plain isolates nothing")
    if is_script_project(repo.tree):
        if agents is not None:
            raise EtudeError("JavaScript repositories are installed by rules alone: leave --policy out")
        return await install_scripts(repo, host, suite_seconds=suite_seconds, seconds=seconds, note=note)
    started = time.monotonic()
    workspace = host.store.add(repo.tree, shows=())
    remembered = Memory(host.store, workspace)
    if (known := remembered.result()) is not None:
        return known
    by_rules, deadline = agents is None, started + seconds
    if by_rules and not again and (failed := remembered.failure(index.variables, suite_seconds)) is not None:
        return failed
    agents = agents or rules(suite_seconds)
    work = _Work(repo, host, index, workspace, agents, suite_seconds, deadline, tries, shown, note)
    result = await work.play(remembered)
    result = InstallResult(**(vars(result) | {"seconds": time.monotonic() - started}))
    if result.environment is not None:
        result.environment.save(host.store.root)
        remembered.keep(result)
    elif by_rules and result.lasting and tries >= TRIES:
        remembered.keep_failure(result, index.variables, suite_seconds)
    return result


@dataclass
class _Work:
    """One installation under way."""

    repo: Repo
    host: StoringHost
    index: PackageIndex
    workspace: Layer
    agents: Agents
    suite_seconds: float
    deadline: float
    tries: int
    shown: int
    note: Callable[[str], None]

    async def play(self, memory: Memory) -> InstallResult:
        self.note("looking at the repository")
        proposals: list[Proposal] = []
        try:
            proposals = await self.explore()
            if not (targets := choose_targets(proposals)):
                raise Unfit("none of the proposed commands runs the tests")
        except Unfit as error:
            return InstallResult(False, str(error), tuple(proposals))
        tries: list[str] = []
        lasting = False
        for attempt in range(1, self.tries + 1):
            made: Made | None = None
            try:
                if time.monotonic() > self.deadline:
                    raise Unfit("there is no time left for another try", final=True)
                made = await self.settle(attempt, targets, tries, memory)
                found = await self.verify(made, targets)
            except Unfit as error:
                said = "; ".join(made.notes) if made else ""
                tries.append(f"{error} ({said})" if said else str(error))
                # A final word is pip's or the clock's, and may be another when the machine or the index is.
                lasting = not error.final and time.monotonic() < self.deadline
                self.note(f"try {attempt} failed: {error}")
                if error.final:
                    break
                continue
            return InstallResult(
                True,
                "",
                tuple(proposals),
                found.commands,
                found.passed,
                found.failed,
                found.environment.digest,
                tries=tuple(tries),
                notes=made.notes,
                environment=found.environment,
            )
        return InstallResult(False, tries[-1], tuple(proposals), tries=tuple(tries), lasting=lasting)

    async def explore(self) -> list[Proposal]:
        tools = _tools(30.0, self.shown) | {Propose.name: Propose()}
        async with await self.start() as sandbox:
            trajectory = await self.act(_EXPLORE, sandbox, self.agents("explore", 1), tools, 600.0)
        proposals = proposals_of(trajectory)
        if not proposals:
            raise Unfit(f"nothing was proposed: {trajectory.answer or 'the agent said nothing'}")
        return proposals

    async def settle(self, attempt: int, targets: Sequence[Proposal], tries: Sequence[str], memory: Memory) -> Made:
        listed = "\n".join(f"    {each.command}\n        prints {each.prints}" for each in targets)
        earlier = "\nWhat came of earlier tries:\n" + "\n".join(tries) if tries else ""
        text = _SETTLE.format(targets=listed, earlier=earlier)
        async with await self.start(memory.downloads()) as sandbox:
            await self.prepare(sandbox)
            await sandbox.write(EARLIER, "\n".join(tries).encode(errors="replace"))
            tools = _tools(self.suite_seconds, self.shown)
            await self.act(text, sandbox, self.agents("settle", attempt), tools, self.deadline - time.monotonic())
            self.note("making the layer")
            made = await finish(sandbox, self.repo, self.host.store)
        memory.keep_downloads(made.downloads)
        return made

    async def verify(self, made: Made, targets: Sequence[Proposal]) -> Verified:
        return await verify(
            made.environment, self.workspace, targets, self.host, suite_seconds=self.suite_seconds, note=self.note
        )

    async def start(self, downloads: Layer | None = None) -> Sandbox:
        base = self.host.store.add_files({}, shows=(*shown_folders(), *self.index.shows))
        layers = [base, *([downloads] if downloads else []), self.workspace]
        env = self.index.variables | {
            "PATH": f"{_SHIM}:{PREFIX}/bin:{ENVIRONMENT['PATH']}",
            "VIRTUAL_ENV": PREFIX,
            "PIP_ROOT_USER_ACTION": "ignore",
        }
        return await self.host.start(layers, limits=_LIMITS, network=True, env=env)

    async def prepare(self, sandbox: Sandbox) -> None:
        """An empty environment, and a `pip` that installs into it and keeps account of what it took."""
        made = await sandbox.run([interpreter(), "-m", "venv", "--without-pip", PREFIX], timeout=120.0)
        if not made.ok:
            last = (made.stderr.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"])[-1]
            raise EtudeError(f"{interpreter()} cannot make a virtual environment: {last}")
        pip = f"{interpreter()} -m pip --python {PREFIX}/bin/python"
        text = f"""#!/bin/sh
mkdir -p {REPORTS}
if [ "$1" = install ]; then
    shift
    exec {pip} install --no-compile --report "{REPORTS}/$(date +%s%N).json" "$@"
fi
exec {pip} "$@"
"""
        for name in ("pip", "pip3"):
            await sandbox.write(f"{_SHIM}/{name}", text.encode(), mode=0o755)

    async def act(self, text: str, sandbox: Sandbox, policy: Policy, tools: Mapping[str, Tool], seconds: float) -> Any:
        limits = AgentLimits(turns=200, sampled_tokens=1 << 30, context_tokens=1 << 30, seconds=max(1.0, seconds))
        return await run_agent(
            text,
            sandbox,
            policy,
            dialect=None,
            tools=tools,
            limits=limits,
            sampling=Sampling(max_tokens=4096, temperature=0.0),
            system=system_text("You install software.", tools, "full", text_form=True),
            on_event=self.on_event,
        )

    def on_event(self, event: Event) -> None:
        if event.kind == "calling":
            for call in event.calls:
                self.note(" ".join(str(call.arguments.get("command", call.name)).split())[:100])


def _tools(seconds: float, shown: int) -> dict[str, Tool]:
    run = {"use": "run", "seconds": seconds, "max_seconds": 3600.0, "max_chars": shown, "hide_times": False}
    return build_tools([run, *({"use": name} for name in _TOOLS)])


def repositories(store: Store) -> Path:
    """Where the copies of repositories lie: beside the layers."""
    return store.root / "repositories"
