"""What a rollout leaves behind: messages for people, and token sequences to learn from.

A `Segment` is one append-only token sequence that keeps, for each token, its origin, its log-probability and the
version that sampled it, in step with the ids and spans that a dialect renders. One segment is one training sequence.
A trajectory without ids (a policy that speaks text alone) can be graded, never trained on.

Knows no sandbox, no tool and no file: `loop` fills it, `trajectory_files` saves it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, takewhile
from typing import Literal, NamedTuple

import numpy as np

from etude.core.errors import EtudeError
from etude.core.policy import (
    Assistant,
    Experts,
    Message,
    Part,
    Sample,
    Sampling,
    StopReason,
    System,
    ToolResult,
    Version,
    routes_of,
)
from etude.core.settings import AgentLimits
from etude.core.terms import NO_TERMS, Terms
from etude.harness.failures import ErrorClass
from etude.tokens.dialect import Dialect, ToolSchema
from etude.tokens.render import Rendered
from etude.tokens.tokenizer import to_bytes

Origin = Literal["environment", "sampled", "scripted"]
ORIGINS: tuple[Origin, ...] = ("environment", "sampled", "scripted")  # the place is the saved code: append only
_CODES = {origin: code for code, origin in enumerate(ORIGINS)}
PARTS: tuple[Part, ...] = ("prompt", "thinking", "final", "call", "output", "summary")  # likewise
Cause = Literal["start", "summary", "sub-agent", "branch", "rewrite"]
Purpose = Literal[
    "",
    "request",  # asks for a summary
    "summary",  # the turn that answers it: sampled like others, its calls are not run
    "restart",  # the first words of the context that goes on from it
    "sub-agent",  # the first words of a sub-agent's context; all behind them is its work, up to the next one's
]
Appended = Literal[
    "done",
    "full",  # the whole would be longer than it may be
    "rewrite",  # the dialect would change what is there: it takes a new segment
]
StopCause = Literal[
    "finish",  # a tool ended the rollout
    "final",  # a turn without calls
    "turns",
    "tokens",
    "context",
    "time",  # the limits
    "malformed",  # too many unreadable turns in a row
    "",  # not ended: a failure cut it short
]

NO_VERSION = Version(-1, -1)  # stands beside tokens that no weights sampled
BYTES_A_TOKEN = 4  # the estimate of effort where there are no ids


class Parent(NamedTuple):
    """Where a segment left another one."""

    segment: int
    offset: int


@dataclass
class Segment:
    """One append-only token sequence; entry t of every list is about token t."""

    cause: Cause = "start"
    parent: Parent | None = None
    copied: int = 0  # leading tokens that another segment holds already: context here, never trained on twice
    untrained: list[int] = field(default_factory=list)  # messages of it whose sampled tokens are context only
    rendered: Rendered = field(default_factory=Rendered)
    messages: list[int] = field(default_factory=list)  # a span's message -> its entry in the trajectory
    origins: list[Origin] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)  # 0 where nothing was sampled
    versions: list[Version] = field(default_factory=list)
    experts: list[Experts] = field(default_factory=list)  # pieces, in order; the tokens behind them have none yet

    @property
    def routed(self) -> int:
        """Leading tokens whose experts are known."""
        return sum(map(len, self.experts))

    @property
    def ids(self) -> list[int]:
        return self.rendered.ids

    def append(
        self,
        messages: Sequence[Message],
        entries: Sequence[int],
        dialect: Dialect,
        *,
        most: int,
        open_turn: bool,
        tools: Sequence[ToolSchema] = (),
    ) -> Appended:
        """Appends what no policy sampled; where that cannot be, nothing happens and the answer says why.

        `entries` are the numbers of these messages in the trajectory.
        """
        before = self.rendered.mark()
        if not dialect.extend(self.rendered, messages, open_turn=open_turn, tools=tools):
            return "rewrite"
        if len(self.rendered.ids) > most:
            # All or nothing: half of a message would be a prompt that nobody meant.
            self.rendered.rewind(before)
            return "full"
        self.messages.extend(entries)
        self._fill("environment")
        return "done"

    def fault_of(self, sample: Sample, room: int) -> str:
        """What is wrong with a sample that is to be appended, in a few words: a policy must keep its promises exactly.

        Empty: nothing is. `room` is how many tokens were asked for.
        """
        ids = sample.ids
        if ids is None:
            raise EtudeError(
                "the policy returns no token ids: run it without a tokenizer, its trajectories are text alone"
            )
        if not ids:
            return "it has no tokens"
        if len(ids) > room:
            return f"it has {len(ids)} tokens where at most {room} were asked for"
        if min(ids) < 0:
            return "it has a negative token id"
        if sample.logprobs is not None and len(sample.logprobs) != len(ids):
            return f"it has {len(ids)} tokens and {len(sample.logprobs)} log-probabilities"
        routed = len(self.ids) - self.routed + len(ids) - 1  # tokens whose experts nobody has whole yet
        if sample.experts is not None and len(sample.experts) != routed:
            return f"it tells the experts of {len(sample.experts)} tokens where {routed} were asked for"
        if sample.versions is not None and len(sample.versions) != len(ids):
            return f"it has {len(ids)} tokens and {len(sample.versions)} versions"
        if sample.logprobs is not None and not all(math.isfinite(value) and value <= 1e-3 for value in sample.logprobs):
            return "a log-probability is not one"
        return ""

    def append_sample(self, sample: Sample, entry: int, dialect: Dialect, *, summary: bool = False) -> None:
        """Appends a turn exactly as it came. With log-probabilities it is sampled, without them scripted."""
        if sample.ids is None:
            raise ValueError("a segment holds token ids, and this sample has none")
        before = len(self.rendered.spans)
        dialect.append_sampled(self.rendered, sample.ids)
        if summary:  # its words are what the next context begins with; its thinking stays thinking
            new = self.rendered.spans[before:]
            self.rendered.spans[before:] = [s._replace(part="summary") if s.part == "final" else s for s in new]
        self.messages.append(entry)
        if sample.logprobs is None:
            self._fill("scripted")
        else:
            self.logprobs.extend(np.asarray(sample.logprobs, np.float32).tolist())  # the precision that is saved
            self.versions.extend(sample.versions or (NO_VERSION,) * len(sample.ids))
            self.origins.extend(["sampled"] * len(sample.ids))
            if sample.experts is not None:
                self.experts.append(sample.experts)

    def _fill(self, origin: Origin) -> None:
        missing = len(self.rendered.ids) - len(self.origins)
        self.origins.extend([origin] * missing)
        self.logprobs.extend([0.0] * missing)
        self.versions.extend([NO_VERSION] * missing)

    def trained(self) -> np.ndarray:
        """Which tokens may be learnt from: sampled here, and not context only."""
        mask = np.array([origin == "sampled" for origin in self.origins], bool)
        mask[: self.copied] = False
        for span in self.rendered.spans:
            if span.message in self.untrained:
                mask[span.start : span.end] = False
        return mask

    def arrays(self) -> dict[str, np.ndarray]:
        """The per-token lists as arrays (`spans` has one row a span), as they are saved and as a learner wants them."""
        experts = {}
        if self.experts:
            experts["experts"] = routes_of(np.concatenate(self.experts), len(self.rendered.ids))
        return experts | {
            "ids": np.array(self.rendered.ids, np.int32),
            "origin": np.fromiter(map(_CODES.__getitem__, self.origins), np.uint8, len(self.origins)),
            "logprob": np.array(self.logprobs, np.float32),
            # From one flat iterator: an array of pairs takes numpy several times as long.
            "version": np.fromiter(chain.from_iterable(self.versions), np.int32, 2 * len(self.versions)).reshape(-1, 2),
            "spans": np.array(
                [(s.message, PARTS.index(s.part), s.start, s.end, s.own) for s in self.rendered.spans], np.int32
            ).reshape(-1, 5),
        }


@dataclass(frozen=True)
class MessageRecord:
    """One message of the rollout and what is known about it beside its text."""

    message: Message
    segment: int = 0  # where it was said first; -1 when it came from before this rollout
    error: ErrorClass | None = None  # of a tool's result, or of a turn that could not be read
    note: str = ""  # what was wrong with an unreadable turn, for people
    stop: StopReason | None = None  # of a turn: why the policy stopped
    seconds: float = 0.0  # spent sampling the turn or running the tool; never part of any text
    purpose: Purpose = ""  # of what the harness says about summaries, and of the turn that is one


@dataclass(frozen=True)
class Effort:
    """What the answer took: the six inputs of the effort penalty."""

    thinking_tokens: int
    call_tokens: int
    output_tokens: int
    final_tokens: int
    calls: int
    turns: int
    exact: bool = True  # False: there were no ids, and tokens are bytes divided by four
    summary_tokens: int = 0


@dataclass(frozen=True)
class Trainable:
    """Whether a trajectory may be learnt from, and if not, why. True or false where a condition is asked for."""

    why_not: str = ""

    def __bool__(self) -> bool:
        return not self.why_not


@dataclass
class Trajectory:
    """One rollout."""

    task: str = ""
    policy: str = ""
    tokenizer: str = ""  # fingerprint of the tokenizer behind the ids; empty without ids
    tools: tuple[str, ...] = ()
    limits: AgentLimits = field(default_factory=AgentLimits)
    sampling: Sampling = field(default_factory=Sampling)
    terms: Terms = NO_TERMS  # of its group
    entries: list[MessageRecord] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)  # none without ids
    stop: StopCause = ""
    seconds: float = 0.0

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(entry.message for entry in self.entries)

    @property
    def turns(self) -> list[Assistant]:
        """What the agent said in this rollout, turn by turn, but for its summaries; sub-agents not included."""
        own = takewhile(lambda entry: entry.purpose != "sub-agent", self.entries)
        return _turns(own)

    @property
    def summaries(self) -> int:
        return sum(entry.purpose == "summary" for entry in self.entries)

    @property
    def conversations(self) -> list[tuple[Message, ...]]:
        """What the policy saw and said, one conversation for each context that a summary or a sub-agent began."""
        found: list[list[Message]] = [[]]
        for entry in self.entries:
            if entry.purpose == "sub-agent":
                found.append([])
            if entry.purpose == "restart":
                found.append([message for message in found[0][:1] if isinstance(message, System)])
            found[-1].append(entry.message)
        return [tuple(messages) for messages in found]

    @property
    def answer(self) -> str:
        """The last words: the message of the last turn, or else the one that it finished with."""
        last = self.turns[-1] if self.turns else Assistant()
        return last.final or (last.calls[-1].arguments.get("message", "") if last.calls else "")

    @property
    def last_words(self) -> str:
        """All that the last turn said: its message, and the one that it finished with."""
        last = self.turns[-1] if self.turns else Assistant()
        finished = [call.arguments.get("message", "") for call in last.calls if call.name == "finish"]
        return "\n".join([last.final, *finished]).strip()

    @property
    def versions(self) -> list[Version]:
        """The weights that sampled any of it, oldest first."""
        found = {version for segment in self.segments for version in segment.versions}
        return sorted(found - {NO_VERSION})

    @property
    def sampled_tokens(self) -> int:
        """Tokens that the policy wrote, scripted ones included."""
        return sum(origin != "environment" for s in self.segments for origin in s.origins[s.copied :])

    @property
    def trainable(self) -> Trainable:
        if not self.segments:
            return Trainable("the policy returned no token ids")
        # Log-probabilities of a cut distribution are not those that the learner computes.
        if self.sampling.top_p < 1 or self.sampling.top_k > 0 or self.sampling.temperature <= 0:
            return Trainable("it was not sampled from the whole distribution (temperature above 0, top_p 1, no top_k)")
        sampled = 0
        for segment in self.segments:
            facts = zip(segment.origins, segment.logprobs, segment.versions, strict=True)
            for origin, logprob, version in list(facts)[segment.copied :]:
                if origin == "scripted":
                    return Trainable("a part of it is scripted: it has no log-probabilities")
                if origin == "sampled" and version == NO_VERSION:
                    return Trainable("the policy did not say which version sampled it")
                if origin == "sampled" and not math.isfinite(logprob):
                    return Trainable("a log-probability is not a finite number")
                sampled += origin == "sampled"
        return Trainable() if sampled else Trainable("nothing in it was sampled")

    @property
    def effort(self) -> Effort:
        tokens = self._counted() if self.segments else self._estimated()
        read = [e for e in self.entries if e.segment >= 0 and e.error is None]  # calls of unreadable turns never ran
        return Effort(
            thinking_tokens=tokens["thinking"],
            call_tokens=tokens["call"],
            output_tokens=tokens["output"],
            final_tokens=tokens["final"],
            calls=sum(len(e.message.calls) for e in read if isinstance(e.message, Assistant)),
            turns=len(_turns(self.entries)),
            exact=bool(self.segments),
            summary_tokens=tokens["summary"],
        )

    def _counted(self) -> dict[Part, int]:
        tokens: dict[Part, int] = dict.fromkeys(PARTS, 0)
        for number, segment in enumerate(self.segments):
            for span in segment.rendered.spans:
                entry = segment.messages[span.message] if span.message < len(segment.messages) else None
                if entry is not None and self.entries[entry].segment == number:  # said here, not carried along
                    tokens[span.part] += span.end - span.start
        return tokens

    def _estimated(self) -> dict[Part, int]:
        texts: dict[Part, list[str]] = {part: [] for part in PARTS}
        for entry in (entry for entry in self.entries if entry.segment >= 0):
            message = entry.message
            if isinstance(message, Assistant):
                texts["thinking"].append(message.thinking)
                texts["summary" if entry.purpose == "summary" else "final"].append(message.final)
                for call in message.calls:
                    texts["call"] += [call.name, *call.arguments, *call.arguments.values()]
            elif isinstance(message, ToolResult):
                texts["output"].append(message.text)
        size = {part: sum(len(to_bytes(text)) for text in found) for part, found in texts.items()}
        return {part: -(-total // BYTES_A_TOKEN) for part, total in size.items()}


def _turns(entries: Iterable[MessageRecord]) -> list[Assistant]:
    """What the policy said in them, but for summaries and what came from before the rollout."""
    return [
        e.message for e in entries if isinstance(e.message, Assistant) and e.segment >= 0 and e.purpose != "summary"
    ]
