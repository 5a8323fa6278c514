"""Self-summary: when a context is full the model sums up its work, and goes on from that in a new context.

    ... turns | request -> summary (sampled, trained) |  =>  | system, task + summary + state | turns ...

The request is a short message behind all that is there, so the prefix of the old segment is computed once. The words
of the summary turn are carried, its thinking is not. Here are the texts, the division of a context, and the cuts that
keep request and summary within it; `loop` asks, samples and begins the new segment. Knows no sandbox and no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Message, ToolResult, User
from etude.core.settings import AgentLimits, SummarySettings
from etude.harness.text_turns import write_turn
from etude.harness.tool_context import ToolContext
from etude.harness.tools.base import Tool
from etude.harness.trajectory import BYTES_A_TOKEN, MessageRecord
from etude.harness.truncate import shorten
from etude.tokens.dialect import Dialect, ToolSchema
from etude.tokens.render import Rendered
from etude.tokens.tokenizer import to_bytes

REQUEST = "Summarise the work so far."
# The baseline: what is asked of a model that was not trained to summarise. Long, because nothing else tells it what
# the next context will need.
LONG_REQUEST = """The conversation is about to be cut off here to save space. Write down everything that is needed to go
on with the task from your words alone: the next context will hold the user's request and what you write now, and
nothing else of what was said or seen so far. Call no tool. Do not go on with the work in this answer. Think first if
it helps; your thinking is thrown away. Then write these sections, each with its heading, and leave none out:

1. Request. What the user asked for, in detail, with every constraint, name, path, format and number that was given.
2. Understanding. How the code concerned works: modules, functions, data, and how they depend on each other.
3. Files read. Each path with the facts in it that matter: signatures, constants, line numbers, conventions.
4. Files changed. Each path with what was changed and why, precisely enough that it need not be read again.
5. Commands. Each command that was run, with the part of its output that matters.
6. Errors. Each error that came up, its cause, and how it was mended or why it is still there.
7. Decisions. What was decided, what was rejected, and the reasons.
8. Tests. Which ones exist, which were run, which pass, which fail and with what message.
9. Open questions. What is not known yet and how it could be found out.
10. Work left. What remains to be done, in order, each step with the path and the function that it concerns.
11. Current step. What was being done at this moment, with the exact text being edited where there is one.
12. Next action. The very next tool call that should be made, with its arguments.

Be complete rather than short. Quote code exactly where its text will be needed again."""
REQUESTS: Mapping[str, str] = {"trained": REQUEST, "prompted": LONG_REQUEST}

SHARE = {"trained": 8, "prompted": 4}  # of a context, one part in so many, is the longest summary where nothing is set
CLOSING = 2  # tokens that may have to close a turn that was cut off


@dataclass(frozen=True)
class SummaryPlan:
    """How the tokens of one context are divided."""

    request: str
    max_tokens: int  # of a summary turn, its thinking included
    most: int  # turns and results end here: what is behind it belongs to request and summary
    # From here on a summary is asked for before the next turn. Whole results of a context's first turn get a turn to be
    # used before that: else each context would read the same again, and none come further.
    at: int
    trained: bool


def plan_summaries(
    limits: AgentLimits, settings: SummarySettings, dialect: Dialect | None, tools: Sequence[ToolSchema] = ()
) -> SummaryPlan | None:
    """The division of a context; None where a rollout has one context and no more."""
    if not _summarises(limits, settings):
        return None
    request = settings.request or REQUESTS[settings.use]
    return _divided(limits, settings, request, _request_tokens(request, dialect, tools))


def check_summaries(limits: AgentLimits, settings: SummarySettings, where: str) -> None:
    """Refuses before anything starts what no tokenizer could make room for, however short it makes the request."""
    if _summarises(limits, settings):
        _divided(limits, settings, "", 0, where)


def _summarises(limits: AgentLimits, settings: SummarySettings) -> bool:
    return settings.use != "off" and limits.rollout_tokens > limits.context_tokens


def _divided(
    limits: AgentLimits, settings: SummarySettings, request: str, request_tokens: int, where: str = "harness.limits"
) -> SummaryPlan:
    max_tokens = settings.max_tokens or max(1, limits.context_tokens // SHARE[settings.use])
    most = limits.context_tokens - max_tokens - request_tokens - CLOSING
    at = settings.at or most * 4 // 5
    if most < 2 or at > most:
        late = f", and harness.summary.at = {at} is behind that" if most >= 2 else ""
        raise EtudeError(
            f"{where}.context_tokens is {limits.context_tokens}: a summary of up to {max_tokens} tokens "
            f"(harness.summary.max_tokens) and its request leave {max(0, most)} for the work{late}; "
            "raise the first or lower the others"
        )
    return SummaryPlan(request, max_tokens, most, at, settings.use == "trained")


def is_request(message: Message) -> bool:
    """Whether a message asks for a summary: for policies that follow a script."""
    return isinstance(message, User | ToolResult) and message.text in REQUESTS.values()


def restart_text(task: str, summary: str, state: str, number: int) -> str:
    """The user's message of a new context: the task, the summary and what the harness knows itself."""
    parts = [task, f"Summary {number}:\n{summary}" if summary else f"Summary {number}: none was written."]
    return "\n\n".join([*parts, *([state] if state else [])])


def restart_texts(task: str, summary: str, state: str, number: int) -> list[str]:
    """The same, ever shorter, for contexts that the whole does not fit into: first the state is cut, then the rest."""
    cuts = [(summary, state), (summary, shorten(state, 400)), (summary, ""), (shorten(summary, 400), ""), ("", "")]
    return [restart_text(task, *cut, number) for cut in dict.fromkeys(cuts)]


def state_text(tools: Mapping[str, Tool], context: ToolContext) -> str:
    """What tools remember and the model should know again: its list of steps, the folder that commands run in."""
    found = [text for tool in tools.values() if (text := tool.remembered(context))]
    if context.directory != context.root:
        found.append(f"Folder: {context.relative(context.directory)}")
    return "\n".join(found)


def estimated_tokens(messages: Sequence[Message]) -> int:
    """The size of a context where nobody has its ids."""
    texts = [write_turn(message) if isinstance(message, Assistant) else message.text for message in messages]
    return sum(-(-len(to_bytes(text)) // BYTES_A_TOKEN) for text in texts)


def cut_results(
    records: Sequence[MessageRecord], room: int, count: Callable[[str], int], overhead: int = 8
) -> list[MessageRecord]:
    """Results whose texts together take about `room` tokens at most; long ones are cut in their middle.

    All are cut to the same length, so a short result beside a long one stays whole. `overhead` is what the dialect
    writes around each.
    """
    texts = [record.message.text for record in records if isinstance(record.message, ToolResult)]
    room -= overhead * len(texts)
    if not texts or sum(map(count, texts)) <= room:
        return list(records)
    low, high = 0, max(map(len, texts))  # characters that fit, and that do not
    while high - low > max(8, low // 16):
        middle = (low + high) // 2
        fits = sum(count(shorten(text, middle)) for text in texts) <= room
        low, high = (middle, high) if fits else (low, middle)
    return [_cut(record, low) for record in records]


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many leading ids two sequences share."""
    pairs = zip(first, second, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _cut(record: MessageRecord, most: int) -> MessageRecord:
    message = record.message
    if not isinstance(message, ToolResult):
        return record
    text = shorten(message.text, most)
    # What says how much was left out is longer than a word such as "ok".
    return replace(record, message=ToolResult(message.name, text)) if len(text) < len(message.text) else record


def _request_tokens(request: str, dialect: Dialect | None, tools: Sequence[ToolSchema]) -> int:
    """What a request takes behind a turn, up to the opened turn that answers it."""
    if dialect is None:
        return estimated_tokens([User(request)])
    taken = 0
    for asked in (User(request), ToolResult("", request)):
        rendered = Rendered()
        try:
            dialect.extend(rendered, [User("a"), Assistant(final="b")], open_turn=False, tools=tools)
            before = len(rendered.ids)
            if dialect.extend(rendered, [asked], open_turn=True, tools=tools):
                taken = max(taken, len(rendered.ids) - before)
        except EtudeError:  # a form that this template does not take: the other one is used
            continue
    return taken or len(dialect.encode(request)) + 64
