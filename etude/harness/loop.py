"""One rollout: sample a turn, run its calls, show what came back, until the agent is done or a limit is reached.

    prompt -> [ sample -> parse -> execute -> observe ] -> stop

Token-exact: sampled ids are kept as they came, everything else is appended behind them by the model's dialect, and so
each prompt begins with all tokens before it; where a chat template would rewrite those, a new segment begins, and so it
does where the context is full and the model has summed up its work (`summary`). What the model gets wrong is an
observation, and reaching a limit a result; only a policy, a sandbox or a tool that breaks raises (`PolicyFailure`,
`SandboxFailure`, `HarnessFailure`).

Knows a Policy and a Sandbox; no engine, no task, no reward.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from etude.core.errors import EtudeError
from etude.core.policy import (
    Assistant,
    Call,
    Context,
    ContextOverflow,
    Message,
    Policy,
    Sample,
    Sampling,
    System,
    ToolResult,
    User,
)
from etude.core.settings import AgentLimits, SummarySettings
from etude.core.terms import NO_TERMS, Terms
from etude.harness.conversation import Conversation
from etude.harness.failures import ErrorClass, HarnessFailure, PolicyFailure, SandboxLost, TurnRefused
from etude.harness.prompt import state_effort
from etude.harness.sub_agents import SubAgent, limits_left
from etude.harness.summary import (
    SummaryPlan,
    cut_results,
    estimated_tokens,
    plan_summaries,
    restart_texts,
    state_text,
)
from etude.harness.text_turns import read_text_sample
from etude.harness.tool_calls import Approve, begin_tools, execute
from etude.harness.tool_context import Backend, ToolContext
from etude.harness.tools.base import Tool, schema_of
from etude.harness.trajectory import MessageRecord, Purpose, Segment, StopCause, Trajectory
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
    sandbox: Sandbox | None,
    policy: Policy,
    *,
    dialect: Dialect | None,
    tools: Mapping[str, Tool],
    limits: AgentLimits,
    sampling: Sampling,
    system: str = "",
    history: Sequence[Message] = (),
    root: str = WORKSPACE,
    strict: bool = True,
    terms: Terms = NO_TERMS,
    summary: SummarySettings | None = None,
    on_event: Callable[[Event], None] | None = None,
    approve: Approve | None = None,
    backend: Backend | None = None,
    caller: ToolContext | None = None,
) -> Trajectory:
    """Lets a policy work on an instruction in a sandbox, or with words alone; returns all that happened.

    Without a dialect the policy answers messages with text, and the trajectory has no tokens. `history` is an
    earlier conversation, `root` the workspace in the sandbox; `approve` is asked before each call. Without `strict`,
    calls that are nearly right are run. `terms` are those of the rollout's group, `summary` says how it goes on when a
    context is full, `backend` answers for services; `caller` is the context of the agent whose sub-agent this is.
    """
    started = time.monotonic()
    common: dict[str, Any] = {"dialect": dialect, "tools": tools, "system": system, "root": root, "strict": strict}
    common |= {"terms": terms, "summary": summary, "approve": approve, "backend": backend}
    system, dialect = state_effort(system, terms.effort, dialect)
    trajectory = Trajectory(
        tokenizer=dialect.fingerprint if dialect else "",
        tools=tuple(tools),
        limits=limits,
        sampling=sampling,
        terms=terms,
    )
    if dialect is not None:
        trajectory.segments.append(Segment())
    schemas = [schema_of(tool) for tool in tools.values()]
    rollout = _Rollout(
        policy=policy,
        dialect=dialect,
        tools=tools,
        plan=plan_summaries(limits, summary or SummarySettings(), dialect, schemas),
        tool_context=ToolContext(sandbox, root, strict=strict, backend=backend),
        trajectory=trajectory,
        conversation=Conversation(trajectory, dialect, schemas),
        on_event=on_event or (lambda event: None),
        approve=approve,
    )

    async def delegate(task: str, most_turns: int) -> str:
        left = rollout.segment, rollout.conversation.size if rollout.dialect else 0
        own = common | {"limits": rollout.remaining(most_turns), "caller": rollout.tool_context}
        own["sampling"] = dataclasses.replace(sampling, seed=_turn_seed(sampling.seed, -1 - len(rollout.sub_agents)))
        own["on_event"] = lambda event: None if event.kind == "stop" else rollout.on_event(event)
        try:
            worked = await run_agent(task, sandbox, policy, **own)
        except (PolicyFailure, HarnessFailure, SandboxLost) as failure:
            if failure.trajectory is not None and failure.trajectory.turns:  # who brought it down is audited, too
                rollout.took(SubAgent(failure.trajectory, *left))
            raise
        return rollout.took(SubAgent(worked, *left))

    try:
        rollout.begin(system, history, instruction)
        if caller is None:
            rollout.tool_context.delegate = delegate
            await begin_tools(tools, rollout.tool_context)
        else:  # the list of steps is each agent's own
            rollout.tool_context.state |= {name: kept for name, kept in caller.state.items() if name != "todo"}
        try:
            trajectory.stop = await rollout.play()
        except ContextOverflow:
            trajectory.stop = "context"  # a result: left out of means, it would flatter a model with a small context
        except TurnRefused as refused:
            rollout.blame_turn(str(refused))
            trajectory.stop = "malformed"
        rollout.notify("stop", stop=trajectory.stop)
    except (PolicyFailure, HarnessFailure) as failure:
        failure.trajectory = trajectory
        raise
    except SandboxFailure as failure:
        raise SandboxLost(failure, trajectory) from failure
    finally:
        for each in rollout.sub_agents:
            each.join(trajectory)
        trajectory.seconds = time.monotonic() - started
    return trajectory


@dataclass
class _Rollout:
    policy: Policy
    dialect: Dialect | None
    tools: Mapping[str, Tool]
    plan: SummaryPlan | None  # None: the rollout has one context
    tool_context: ToolContext
    trajectory: Trajectory
    conversation: Conversation
    on_event: Callable[[Event], None]
    approve: Approve | None
    task: str = ""
    turn: int = 0  # samples so far, summaries included
    sampled: int = 0  # tokens
    earlier: int = 0  # tokens of contexts before this one, where nobody has their ids
    summaries: int = 0
    acted: int = 0  # turns in this context
    full: bool = False  # something did not fit into this context
    late: bool = False  # the last sample was ended because it took too long
    tool_seconds: float = 0.0  # that tools took, as on an idle machine; sampling and its queues are not the agent's
    sub_agents: list[SubAgent] = dataclasses.field(default_factory=list)

    def begin(self, system: str, history: Sequence[Message], instruction: str) -> None:
        self.task = to_text(to_bytes(instruction))
        before = [MessageRecord(System(to_text(to_bytes(system))))] if system else []
        before += [MessageRecord(message, segment=-1) for message in history]
        if not self.add([*before, MessageRecord(User(self.task))]):
            most = self.trajectory.limits.context_tokens
            beside = " beside a summary" if self.plan is not None else ""
            raise HarnessFailure(f"the prompt does not fit into limits.context_tokens, which is {most}{beside}")

    async def play(self) -> StopCause:
        limits = self.trajectory.limits
        unreadable = 0
        while self.turns_taken < limits.turns:
            if self.summary_due() and (stop := await self.summarise()):
                return stop
            if stop := self.exhausted() or self.open():
                return stop
            turn = await self.sample()
            self.acted += 1
            if isinstance(turn, Malformed):
                if self.late:  # an answer too long to wait for is overlong, whatever its tokens are
                    return "tokens"
                if turn.kind == "CutOff" and self.plan is not None and self.conversation.size + 2 > self.most:
                    self.full = True  # the room that a summary needs cut it
                    continue
                unreadable += 1
                if turn.kind == "CutOff" and (stop := self.exhausted()):
                    return stop  # the rollout's own limit cut it
                if unreadable == limits.malformed:
                    return "malformed"
                # No tool answers, so the result has no name; nothing of the turn was run.
                fits = self.add([MessageRecord(ToolResult("", f"error: {turn.message}"), error="InvalidArguments")])
                if not fits and self.plan is None:
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
        if self.tool_seconds >= limits.seconds:
            return "time"
        if self.sampled >= limits.sampled_tokens:
            return "tokens"
        if self.plan is not None and self.left() < 2:
            return "context"
        # A turn takes its opening token and at least one more.
        if self.dialect and self.plan is None and self.conversation.size + 2 > limits.context_tokens:
            return "context"
        return ""

    @property
    def turns_taken(self) -> int:
        """By the agent and its sub-agents."""
        return self.turn - self.summaries + sum(len(each.trajectory.turns) for each in self.sub_agents)

    def remaining(self, most_turns: int) -> AgentLimits:
        """What a sub-agent may use: the rest of the rollout, but for one turn that reads its answer."""
        rest = self.left() if self.plan is not None else None
        seconds = (self.tool_context.deadline - time.monotonic()) / self.tool_context.slowdown()
        return limits_left(self.trajectory.limits, most_turns, self.turns_taken, self.sampled, seconds, rest)

    def took(self, worked: SubAgent) -> str:
        """Counts what a sub-agent used; returns what the agent reads of it."""
        self.sub_agents.append(worked)
        self.sampled += worked.trajectory.sampled_tokens
        self.tool_context.deadline += worked.sampling_seconds
        return worked.answer

    @property
    def most(self) -> int:
        """Tokens that turns and results may fill."""
        return self.plan.most if self.plan is not None else self.trajectory.limits.context_tokens

    def left(self) -> int:
        """Tokens that the contexts of a rollout may still take together."""
        if self.dialect is None:
            taken = self.earlier + self.conversation.size
        else:
            taken = sum(len(segment.ids) - segment.copied for segment in self.trajectory.segments)
        taken += sum(each.tokens for each in self.sub_agents)
        return self.trajectory.limits.rollout_tokens - taken

    def open(self) -> StopCause:
        """Opens the turn that the policy is to continue; says so when there is no room for it."""
        if self.dialect is None:
            return ""
        room = self.append_or_fail((), (), open_turn=True) and self.conversation.size < self.most
        return "" if room else "context"

    async def sample(self, purpose: Purpose = "") -> Assistant | Malformed:
        """The next turn, recorded exactly as it came."""
        limits, asked = self.trajectory.limits, self.trajectory.sampling
        room = min(asked.max_tokens, limits.sampled_tokens - self.sampled)
        if self.plan is not None and purpose == "summary":
            room = min(room, self.plan.max_tokens)
        elif self.plan is not None:
            room = min(room, self.left())
            if self.dialect is None:
                room = min(room, max(1, self.most - self.conversation.size))
        seed, seconds = _turn_seed(asked.seed, self.turn), limits.sample_seconds
        sampling = dataclasses.replace(asked, seed=seed, max_tokens=room, seconds=seconds)
        context = Context(self.conversation.seen)
        if self.dialect is not None:
            segment = self.trajectory.segments[-1]
            most = limits.context_tokens if purpose == "summary" else self.most
            room = min(room, most - len(segment.ids))
            sampling = dataclasses.replace(sampling, max_tokens=room, stop_ids=self.dialect.stop_ids)
            context = Context(self.conversation.seen, tuple(segment.ids), segment.routed)
        self.notify("sampling")
        started = time.monotonic()
        try:
            # A policy that knows of the limit ends its answer by itself and says what there is: a score.
            async with asyncio.timeout(seconds * 1.25 + 1) as wait:
                sample = await self.policy.sample(context, sampling)
        except ContextOverflow:
            raise
        except Exception as error:
            if wait.expired():  # nobody can say whether this answer is long or its policy dead
                late = f"no sample came within {seconds:g} s, in turn {self.turn + 1}"
                raise PolicyFailure(late, retry=False) from error
            raise PolicyFailure(f"sampling failed in turn {self.turn + 1}: {type(error).__name__}: {error}") from error
        return self.take(sample, room, time.monotonic() - started, purpose)

    def take(self, sample: Sample, room: int, seconds: float, purpose: Purpose) -> Assistant | Malformed:
        if sample.stop == "abort":
            raise PolicyFailure(f"the policy aborted its sample in turn {self.turn + 1}")
        if self.dialect is not None and (fault := self.trajectory.segments[-1].fault_of(sample, room)):
            raise PolicyFailure(f"the sample of turn {self.turn + 1} cannot be used: {fault}")
        try:
            turn = self.read(sample, purpose)
        except EtudeError as error:
            raise PolicyFailure(f"the sample of turn {self.turn + 1} cannot be used: {error}") from error
        self.sampled += len(sample.ids or ())
        self.late = sample.late
        if isinstance(turn, Malformed):
            message, fault = turn.partial, turn.message
        else:
            message, fault = turn, "a summary calls no tool" if purpose == "summary" and turn.calls else ""
        kind: ErrorClass | None = "InvalidArguments" if fault else None
        self.record(MessageRecord(message, self.segment, kind, fault, sample.stop, seconds, purpose))
        self.turn += 1
        return turn

    def read(self, sample: Sample, purpose: Purpose) -> Assistant | Malformed:
        """What a sample says; its ids go to the segment as they are."""
        if self.dialect is not None:
            segment, summary = self.trajectory.segments[-1], purpose == "summary"
            segment.append_sample(sample, len(self.trajectory.entries), self.dialect, summary=summary)
            if summary and self.plan is not None and not self.plan.trained:
                segment.untrained.append(len(segment.messages) - 1)
            return self.dialect.parse_turn(sample.ids or ())
        return read_text_sample(sample)

    async def act(self, calls: tuple[Call, ...]) -> StopCause:
        """Runs the calls of a turn and appends what came back; says whether that was the end."""
        self.notify("calling", calls=calls)
        seen: list[MessageRecord] = []
        ended = False
        began, slower, helped = time.monotonic(), self.tool_context.slowdown(), len(self.sub_agents)
        self.tool_context.deadline = began + (self.trajectory.limits.seconds - self.tool_seconds) * slower
        async with aclosing(execute(calls, self.tools, self.tool_context, self.approve)) as outcomes:
            async for outcome in outcomes:
                observation = outcome.observation
                if observation.ends:
                    ended = True
                    break
                result = ToolResult(outcome.call.name, observation.text)
                record = MessageRecord(result, self.segment, observation.error, observation.note)
                seen.append(dataclasses.replace(record, seconds=outcome.seconds))
        sampling = sum(each.sampling_seconds for each in self.sub_agents[helped:])
        self.tool_seconds += max(0.0, time.monotonic() - began - sampling) / slower
        if self.plan is not None:
            seen, whole = cut_results(seen, self.most - self.conversation.size - 2, self.count_tokens), seen
            self.full = seen != whole
        fits = self.add(seen)
        # Whoever finished has finished, even where the last results no longer fit into the context.
        if ended:
            return "finish"
        return "" if fits or self.plan is not None else "context"

    def count_tokens(self, text: str) -> int:
        return len(self.dialect.encode(text)) if self.dialect is not None else estimated_tokens([User(text)])

    # Summaries

    def summary_due(self) -> bool:
        plan, size, acted = self.plan, self.conversation.size, self.acted
        due = plan is not None and ((acted > 1 and size >= plan.at) or (acted > 0 and size + 2 > plan.most))
        return due or (plan is not None and self.full)

    async def summarise(self) -> StopCause:
        """Asks for a summary in the old context and goes on from it in a new one."""
        assert self.plan is not None
        if stop := self.exhausted():
            return stop
        if not self.ask(self.plan.request):
            return "context"
        turn = await self.sample("summary")
        self.summaries += 1
        if self.late:  # as any answer that is too long to wait for
            return "tokens"
        # A summary that was cut off or broke the format counts for what could be read of it: that is its author's loss.
        words = (turn.partial if isinstance(turn, Malformed) else turn).final
        return "" if self.restart(words) else "context"

    def ask(self, request: str) -> bool:
        """Appends the request where it leaves most of the tokens before it as they are."""
        # Many templates drop the thinking of old turns behind a new user's message, and none behind a tool's result.
        forms: list[Message] = [User(request), ToolResult("", request)]
        message: Message | None = forms[0]
        if self.dialect is not None:
            number, most = len(self.trajectory.entries), self.trajectory.limits.context_tokens
            try:
                message = self.conversation.append_one_of(forms, number, most=most)
            except EtudeError as refused:
                self.blame(f"the chat template takes no request for a summary: {refused}", refused, forms)
        if message is None:
            return False
        self.record(MessageRecord(message, self.segment, purpose="request"))
        return True

    def restart(self, summary: str) -> bool:
        """Begins a new context with the system message, the task, the summary and the state."""
        entries, segments = self.trajectory.entries, self.trajectory.segments
        self.earlier += self.conversation.size if self.dialect is None else 0
        self.conversation.context = [0] if entries and isinstance(entries[0].message, System) else []
        self.acted, self.full = 0, False
        state, number = state_text(self.tools, self.tool_context), len(entries)
        for text in restart_texts(self.task, summary, state, self.summaries):
            message = User(text)
            if self.dialect is None:
                break
            segment = self.conversation.rewritten(
                [message], [number], most=self.most - 2, open_turn=False, cause="summary"
            )
            if segment is not None:
                segments.append(segment)
                break
        else:
            return False
        self.record(MessageRecord(message, self.segment, purpose="restart"))
        return True

    # Appending

    def add(self, entries: Sequence[MessageRecord]) -> bool:
        """Appends what the policy did not say. False: the tokens would not fit, and only people will see it."""
        fits = True
        if self.dialect is not None:
            numbers = range(len(self.trajectory.entries), len(self.trajectory.entries) + len(entries))
            fits = self.append_or_fail([entry.message for entry in entries], numbers, open_turn=False)
        for entry in entries:
            self.record(entry if entry.segment < 0 else dataclasses.replace(entry, segment=self.segment), seen=fits)
        self.full = self.full or not fits
        return fits

    def append_or_fail(self, messages: Sequence[Message], numbers: Sequence[int], *, open_turn: bool) -> bool:
        """`append`; a chat template that refuses what a turn led to is that turn's fault, or else ours."""
        try:
            return self.conversation.append(messages, numbers, most=self.most, open_turn=open_turn)
        except EtudeError as error:
            if self.turn == 0:  # it refuses the very prompt, and so will every other rollout
                raise
            self.blame(f"the conversation cannot go on after turn {self.turn}: {error}", error)

    def blame(self, why: str, error: EtudeError, forms: Sequence[Message] = ()) -> NoReturn:
        """Raises whose fault it is that the template refuses to go on, or to take one of these messages."""
        # Discarding what a model can bring about at will would teach it to, so that is a score.
        if any(self.conversation.takes_plain_turn(each) for each in ([[form] for form in forms] or [[]])):
            raise TurnRefused(why) from error
        raise HarnessFailure(why) from error

    def blame_turn(self, why: str) -> None:
        """Marks the last turn as one that could not be read."""
        entries = self.trajectory.entries
        last = max(number for number, entry in enumerate(entries) if isinstance(entry.message, Assistant))
        entries[last] = dataclasses.replace(entries[last], error="InvalidArguments", note=why)

    @property
    def segment(self) -> int:
        """The number of the segment; of the context where there are none."""
        return len(self.trajectory.segments) - 1 if self.dialect is not None else self.summaries

    def record(self, entry: MessageRecord, *, seen: bool = True) -> None:
        if seen:
            self.conversation.context.append(len(self.trajectory.entries))
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


def _turn_seed(seed: int, turn: int) -> int:
    """Token i of a request depends on (seed, i) alone, so every turn needs a seed of its own."""
    return random.Random(f"{seed}/{turn}").getrandbits(31)
