"""One rollout: sample a turn, run its calls, show what came back, until the agent is done or a limit is reached.

    prompt -> [ sample -> parse -> execute -> observe ] -> stop

Token-exact: sampled ids are kept as they came, everything else is appended behind them by the model's dialect, and so
each prompt begins with all tokens before it; where a chat template would rewrite those, a new segment begins. What the
model gets wrong is an observation, and reaching a limit a result; only a policy, a sandbox or a tool that breaks
raises (`PolicyFailure`, `SandboxFailure`, `HarnessFailure`).

Knows a Policy and a Sandbox; no engine, no task, no reward.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, Context, Message, Policy, Sample, Sampling, System, ToolResult, User
from etude.core.settings import AgentLimits
from etude.harness.failures import HarnessFailure, PolicyFailure, SandboxLost
from etude.harness.text_turns import read_turn
from etude.harness.tool_calls import Approve, execute
from etude.harness.tool_context import ToolContext
from etude.harness.tools.base import Tool, schema_of
from etude.harness.trajectory import MessageRecord, Parent, Segment, StopCause, Trajectory
from etude.sandbox.base import WORKSPACE, Sandbox, SandboxFailure
from etude.tokens.dialect import Dialect
from etude.tokens.parse import Malformed
from etude.tokens.tokenizer import to_bytes, to_text


@dataclass(frozen=True)
class Event:
    """Something happened: for whoever shows a rollout while it runs."""

    kind: Literal["message", "sampling", "calling", "stop"]
    turn: int  # turns completed before
    entry: MessageRecord | None = None  # of a message: a prompt, a turn, or a tool's result
    calls: tuple[Call, ...] = ()  # about to run
    stop: StopCause = ""


async def run_agent(
    instruction: str,
    sandbox: Sandbox,
    policy: Policy,
    *,
    dialect: Dialect | None,
    tools: Mapping[str, Tool],
    limits: AgentLimits,
    sampling: Sampling,
    system: str = "",
    history: Sequence[Message] = (),
    root: str = WORKSPACE,
    on_event: Callable[[Event], None] | None = None,
    approve: Approve | None = None,
) -> Trajectory:
    """Lets a policy work on an instruction in a sandbox; returns all that happened.

    Without a dialect the policy answers messages with text, and the trajectory has no tokens. `history` is an
    earlier conversation, `root` the workspace in the sandbox; `approve` is asked before each call.
    """
    started = time.monotonic()
    trajectory = Trajectory(
        tokenizer=dialect.fingerprint if dialect else "", tools=tuple(tools), limits=limits, sampling=sampling
    )
    if dialect is not None:
        trajectory.segments.append(Segment())
    rollout = _Rollout(
        policy=policy,
        dialect=dialect,
        tools=tools,
        tool_context=ToolContext(sandbox, root, deadline=started + limits.seconds),
        trajectory=trajectory,
        on_event=on_event or (lambda event: None),
        approve=approve,
    )
    try:
        rollout.begin(system, history, instruction)
        trajectory.stop = await rollout.play()
        rollout.notify("stop", stop=trajectory.stop)
    except (PolicyFailure, HarnessFailure) as failure:
        failure.trajectory = trajectory
        raise
    except SandboxFailure as failure:
        raise SandboxLost(failure, trajectory) from failure
    finally:
        trajectory.seconds = time.monotonic() - started
    return trajectory


@dataclass
class _Rollout:
    policy: Policy
    dialect: Dialect | None
    tools: Mapping[str, Tool]
    tool_context: ToolContext
    trajectory: Trajectory
    on_event: Callable[[Event], None]
    approve: Approve | None
    turn: int = 0
    sampled: int = 0  # tokens

    def __post_init__(self) -> None:
        self.schemas = [schema_of(tool) for tool in self.tools.values()]

    def begin(self, system: str, history: Sequence[Message], instruction: str) -> None:
        before = [MessageRecord(System(to_text(to_bytes(system))))] if system else []
        before += [MessageRecord(message, segment=-1) for message in history]
        if not self.add([*before, MessageRecord(User(to_text(to_bytes(instruction))))]):
            most = self.trajectory.limits.context_tokens
            raise HarnessFailure(f"the prompt does not fit into limits.context_tokens, which is {most}")

    async def play(self) -> StopCause:
        limits = self.trajectory.limits
        unreadable = 0
        while self.turn < limits.turns:
            if stop := self.exhausted() or self.open():
                return stop
            turn = await self.sample()
            if isinstance(turn, Malformed):
                unreadable += 1
                if turn.kind == "CutOff" and (stop := self.exhausted()):
                    return stop  # the rollout's own limit cut it
                if unreadable == limits.malformed:
                    return "malformed"
                # No tool answers, so the result has no name; nothing of the turn was run.
                if not self.add([MessageRecord(ToolResult("", f"error: {turn.message}"), error="InvalidArguments")]):
                    return "context"
                continue
            unreadable = 0
            if not turn.calls:
                return "final"
            if stop := await self.act(turn.calls):
                return stop
        return "turns"

    def exhausted(self) -> StopCause:
        """The limit that leaves no room for another turn, if any."""
        limits = self.trajectory.limits
        if time.monotonic() >= self.tool_context.deadline:
            return "time"
        if self.sampled >= limits.sampled_tokens:
            return "tokens"
        # A turn takes its opening token and at least one more.
        if self.dialect and len(self.trajectory.segments[-1].ids) + 2 > limits.context_tokens:
            return "context"
        return ""

    def open(self) -> StopCause:
        """Opens the turn that the policy is to continue; says so when there is no room for it."""
        if self.dialect is None:
            return ""
        room = (
            self.append_or_fail((), (), open_turn=True)
            and len(self.trajectory.segments[-1].ids) < self.trajectory.limits.context_tokens
        )
        return "" if room else "context"

    async def sample(self) -> Assistant | Malformed:
        """The next turn, recorded exactly as it came."""
        limits, asked = self.trajectory.limits, self.trajectory.sampling
        room = min(asked.max_tokens, limits.sampled_tokens - self.sampled)
        sampling = dataclasses.replace(asked, seed=_turn_seed(asked.seed, self.turn), max_tokens=room)
        context = Context(self.trajectory.messages)
        if self.dialect is not None:
            segment = self.trajectory.segments[-1]
            room = min(room, limits.context_tokens - len(segment.ids))
            sampling = dataclasses.replace(sampling, max_tokens=room, stop_ids=self.dialect.stop_ids)
            context = Context(self.trajectory.messages, tuple(segment.ids), segment.routed)
        self.notify("sampling")
        started = time.monotonic()
        try:
            async with asyncio.timeout(limits.sample_seconds) as wait:
                sample = await self.policy.sample(context, sampling)
        except Exception as error:
            if wait.expired():
                late = f"no sample came within {limits.sample_seconds:g} s, in turn {self.turn + 1}"
                raise PolicyFailure(late) from error
            raise PolicyFailure(f"sampling failed in turn {self.turn + 1}: {type(error).__name__}: {error}") from error
        return self.take(sample, room, time.monotonic() - started)

    def take(self, sample: Sample, room: int, seconds: float) -> Assistant | Malformed:
        if sample.stop == "abort":
            raise PolicyFailure(f"the policy aborted its sample in turn {self.turn + 1}")
        if self.dialect is not None and (fault := _fault(sample, room, self.trajectory.segments[-1])):
            raise PolicyFailure(f"the sample of turn {self.turn + 1} cannot be used: {fault}")
        try:
            turn = self.read(sample)
        except EtudeError as error:
            raise PolicyFailure(f"the sample of turn {self.turn + 1} cannot be used: {error}") from error
        self.sampled += len(sample.ids or ())
        if isinstance(turn, Malformed):
            entry = MessageRecord(turn.partial, self.segment, "InvalidArguments", turn.message, sample.stop, seconds)
        else:
            entry = MessageRecord(turn, self.segment, stop=sample.stop, seconds=seconds)
        self.record(entry)
        self.turn += 1
        return turn

    def read(self, sample: Sample) -> Assistant | Malformed:
        """What a sample says; its ids go to the segment as they are."""
        if self.dialect is not None:
            self.trajectory.segments[-1].append_sample(sample, len(self.trajectory.entries), self.dialect)
            return self.dialect.parse_turn(sample.ids or ())
        text = to_text(to_bytes(sample.text))
        cut = Malformed("CutOff", "the turn was cut off before its end")
        turn = cut if sample.stop == "length" else read_turn(text)
        # Where text is all there is, the next prompt must show it as it was.
        return dataclasses.replace(turn, partial=Assistant(final=text)) if isinstance(turn, Malformed) else turn

    async def act(self, calls: tuple[Call, ...]) -> StopCause:
        """Runs the calls of a turn and appends what came back; says whether that was the end."""
        self.notify("calling", calls=calls)
        seen: list[MessageRecord] = []
        ended = False
        try:
            async with aclosing(execute(calls, self.tools, self.tool_context, self.approve)) as outcomes:
                async for outcome in outcomes:
                    if outcome.observation.ends:
                        ended = True
                        break
                    result = ToolResult(outcome.call.name, outcome.observation.text)
                    seen.append(MessageRecord(result, self.segment, outcome.observation.error, seconds=outcome.seconds))
        except HarnessFailure as failure:
            # For people who read the trajectory; the model never sees it.
            bug = MessageRecord(ToolResult(failure.tool, ""), self.segment, "HarnessBug", str(failure))
            self.trajectory.entries.extend([*seen, bug])
            raise
        fits = self.add(seen)
        # Whoever finished has finished, even where the last results no longer fit into the context.
        if ended:
            return "finish"
        return "" if fits else "context"

    def add(self, entries: Sequence[MessageRecord]) -> bool:
        """Appends what the policy did not say. False: the tokens would not fit, and only people will see it."""
        fits = True
        if self.dialect is not None:
            numbers = range(len(self.trajectory.entries), len(self.trajectory.entries) + len(entries))
            fits = self.append_or_fail([entry.message for entry in entries], numbers, open_turn=False)
        for entry in entries:
            self.record(entry if entry.segment < 0 else dataclasses.replace(entry, segment=self.segment))
        return fits

    def append_or_fail(self, messages: Sequence[Message], numbers: Sequence[int], *, open_turn: bool) -> bool:
        """`append`; a chat template that refuses what a turn led to fails this rollout, and not all that run."""
        try:
            return self.append(messages, numbers, open_turn=open_turn)
        except EtudeError as error:
            if self.turn == 0:  # it refuses the very prompt, and so will every other rollout
                raise
            raise HarnessFailure(f"the conversation cannot go on after turn {self.turn}: {error}") from error

    def append(self, messages: Sequence[Message], numbers: Sequence[int], *, open_turn: bool) -> bool:
        """Appends to the segment, or to a new one that takes its place. False: the tokens would not fit."""
        assert self.dialect is not None
        segments = self.trajectory.segments
        most, tools = self.trajectory.limits.context_tokens, self.schemas
        done = segments[-1].append(messages, numbers, self.dialect, most=most, open_turn=open_turn, tools=tools)
        if done != "rewrite":
            return done == "done"
        # The whole conversation again, as the template has it now: context for what is sampled from here on.
        segment = Segment("rewrite", Parent(len(segments) - 1, len(segments[-1].ids)))
        before = self.trajectory.messages
        whole, numbers = [*before, *messages], range(len(before) + len(messages))
        done = segment.append(whole, numbers, self.dialect, most=most, open_turn=open_turn, tools=tools)
        if done != "done":
            return False
        new = (span.start for span in segment.rendered.spans if span.message >= len(before))
        segment.copied = next(new, len(segment.ids))
        segments.append(segment)
        return True

    @property
    def segment(self) -> int:
        return max(0, len(self.trajectory.segments) - 1)

    def record(self, entry: MessageRecord) -> None:
        self.trajectory.entries.append(entry)
        self.notify("message", entry=entry)

    def notify(
        self,
        kind: Literal["message", "sampling", "calling", "stop"],
        entry: MessageRecord | None = None,
        calls: tuple[Call, ...] = (),
        stop: StopCause = "",
    ) -> None:
        self.on_event(Event(kind, self.turn, entry, calls, stop))


def _fault(sample: Sample, room: int, segment: Segment) -> str:
    """What is wrong with the token side of a sample, if anything: a policy must keep its promises exactly."""
    ids = sample.ids
    if ids is None:
        raise EtudeError("the policy returns no token ids: run it without a tokenizer, its trajectories are text alone")
    if not ids:
        return "it has no tokens"
    if len(ids) > room:
        return f"it has {len(ids)} tokens where at most {room} were asked for"
    if min(ids) < 0:
        return "it has a negative token id"
    if sample.logprobs is not None and len(sample.logprobs) != len(ids):
        return f"it has {len(ids)} tokens and {len(sample.logprobs)} log-probabilities"
    routed = len(segment.ids) - segment.routed + len(ids) - 1  # tokens whose experts nobody has whole yet
    if sample.experts is not None and len(sample.experts) != routed:
        return f"it tells the experts of {len(sample.experts)} tokens where {routed} were asked for"
    if sample.versions is not None and len(sample.versions) != len(ids):
        return f"it has {len(ids)} tokens and {len(sample.versions)} versions"
    if sample.logprobs is not None and not all(math.isfinite(value) and value <= 1e-3 for value in sample.logprobs):
        return "a log-probability is not one"
    return ""


def _turn_seed(seed: int, turn: int) -> int:
    """Token i of a request depends on (seed, i) alone, so every turn needs a seed of its own."""
    return random.Random(f"{seed}/{turn}").getrandbits(31)
