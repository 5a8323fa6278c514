"""Installing a Python repository: both stages are rollouts of our harness in a sandbox with network.

Stage 1 explores and proposes commands, stage 2 installs and repairs until they work. Who acts is a `Policy`, rules by
default; what it did is only believed once it was verified.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from etude.core.errors import EtudeError
from etude.core.policy import Policy
from etude.forge.environments.environment import PREFIX
from etude.forge.install.agent_rollout import Agents, Installers, Stage
from etude.forge.install.checkout import Repo
from etude.forge.install.make_layer import REPORTS, UnverifiedEnvironment, make_environment
from etude.forge.install.pip_settings import PackageIndex, interpreter, shown_folders
from etude.forge.install.result import InstallFailed, Memory
from etude.forge.install.rules.explore import explore
from etude.forge.install.rules.install_and_repair import ANSWER, EARLIER, install_and_repair
from etude.forge.install.rules.scripted_policy import StepPolicy
from etude.forge.install.sandbox_files import last_line
from etude.forge.install.target_commands import PROPOSALS, Proposal, Propose, proposals_of
from etude.forge.install.verify import FEWEST
from etude.sandbox.base import Layer, Sandbox, SandboxLimits
from etude.sandbox.environment import ENVIRONMENT
from etude.sandbox.hosts import StoringHost

_LIMITS: Final = SandboxLimits(memory=3 << 30, disk=4 << 30, processes=512, cpu_seconds=3600)
_SHIM: Final = "/home/agent/bin"

_EXPLORE: Final = f"""\
This folder holds a repository that nobody has installed yet. Find out how it is set up, tested and used: read what it
says about itself (README, pyproject, setup files, requirements, tox, nox, continuous integration, Makefile). Then call
`propose` {PROPOSALS} times, each time with a command that should work in this folder once everything is installed, what
it should print, and where you can a regular expression for that. The first must run the test suite (kind tests). End
with `finish`."""

_INSTALL: Final = f"""\
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
        return StepPolicy(explore() if stage == "explore" else install_and_repair(attempt, int(suite_seconds)))

    return agent


@dataclass
class PythonInstaller:
    """One installation under way."""

    repo: Repo
    host: StoringHost
    index: PackageIndex
    workspace: Layer
    memory: Memory
    installers: Installers
    suite_seconds: float
    deadline: float
    tries: int
    note: Callable[[str], None]

    async def propose(self) -> list[Proposal]:
        tools = self.installers.tools(30.0) | {Propose.name: Propose()}
        async with await self.start() as sandbox:
            trajectory = await self.installers.act("explore", 1, _EXPLORE, sandbox, tools, 600.0, self.note)
        proposals = proposals_of(trajectory)
        if not proposals:
            raise InstallFailed(f"nothing was proposed: {trajectory.answer or 'the agent said nothing'}")
        return proposals

    async def attempt(self, number: int, targets: Sequence[Proposal], earlier: Sequence[str]) -> UnverifiedEnvironment:
        listed = "\n".join(f"    {each.command}\n        prints {each.prints}" for each in targets)
        why_again = "\nWhat came of earlier tries:\n" + "\n".join(earlier) if earlier else ""
        text = _INSTALL.format(targets=listed, earlier=why_again)
        # Only this repository's own downloads: whoever builds there can write into them.
        async with await self.start(self.memory.downloads()) as sandbox:
            await self.prepare(sandbox)
            await sandbox.write(EARLIER, "\n".join(earlier).encode(errors="replace"))
            tools, left = self.installers.tools(self.suite_seconds), self.deadline - time.monotonic()
            await self.installers.act("settle", number, text, sandbox, tools, left, self.note)
            self.note("making the layer")
            made = await make_environment(sandbox, self.repo, self.host.store)
        self.memory.keep_downloads(made.downloads)
        return made

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
        # Without pip: the environment would hold a copy of it that nobody asked for. The shim below installs from
        # outside.
        made = await sandbox.run([interpreter(), "-m", "venv", "--without-pip", PREFIX], timeout=120.0)
        if not made.ok:
            raise EtudeError(f"{interpreter()} cannot make a virtual environment: {last_line(made.stderr)}")
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
