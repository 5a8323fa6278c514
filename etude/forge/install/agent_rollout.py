"""Somebody installs: one rollout of our harness in a sandbox with network. Rules and models act in the same way.

What an agent did is only believed once it was verified, so nothing here looks at what it says about itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from etude.core.errors import EtudeError
from etude.core.policy import Policy, Sampling
from etude.core.settings import AgentLimits
from etude.harness.failures import HarnessFailure
from etude.harness.loop import Event, run_agent
from etude.harness.prompt import system_text
from etude.harness.tools.base import Tool
from etude.harness.tools.table import build_tools
from etude.harness.trajectory import Trajectory
from etude.sandbox.base import WORKSPACE, Sandbox
from etude.tokens.dialect import Dialect

Stage = Literal["explore", "settle"]
Agents = Callable[[Stage, int], Policy]  # who acts in a stage; the number counts the tries of stage 2 from 1

ALL: Final = 400_000  # characters of a command's output: rules read all of it
NO_BOUND: Final = 1 << 30  # tokens
_TOOLS: Final = ("read", "list", "glob", "grep", "finish")
_ANSWER: Final = 4096  # most tokens of one turn


@dataclass(frozen=True)
class Installers:
    """Who installs, and what they can take in."""

    agents: Agents
    shown: int = ALL  # characters of a command's output that they see: a model has a context
    dialect: Dialect | None = None  # of a model whose tokens are sampled; None: messages are answered with text
    context_tokens: int = NO_BOUND

    async def act(
        self,
        stage: Stage,
        number: int,
        text: str,
        sandbox: Sandbox,
        tools: Mapping[str, Tool],
        seconds: float,
        note: Callable[[str], None],
        root: str = WORKSPACE,
    ) -> Trajectory:
        def on_event(event: Event) -> None:
            if event.kind == "calling":
                for call in event.calls:
                    note(" ".join(str(call.arguments.get("command", call.name)).split())[:100])

        limits = AgentLimits(
            turns=200, sampled_tokens=NO_BOUND, context_tokens=self.context_tokens, seconds=max(1.0, seconds)
        )
        try:
            return await run_agent(
                text,
                sandbox,
                self.agents(stage, number),
                dialect=self.dialect,
                tools=tools,
                limits=limits,
                sampling=Sampling(max_tokens=min(_ANSWER, max(1, self.context_tokens // 4)), temperature=0.0),
                system=system_text("You install software.", tools, "full", text_form=self.dialect is None),
                root=root,
                on_event=on_event,
            )
        except HarnessFailure as failure:  # a wrong setting, such as a context that is too short for what it is told
            raise EtudeError(f"the model cannot install: {failure}") from None

    def tools(self, seconds: float) -> dict[str, Tool]:
        run = {"use": "run", "seconds": seconds, "max_seconds": 3600.0, "max_chars": self.shown, "hide_times": False}
        return build_tools([run, *({"use": name} for name in _TOOLS)])
