"""Questions on fresh knowledge, made from traces: where an agent had to look something up, a model did not know it.

    lookups      turns in which an agent read an installed library, or searched documentation
    written      a policy reads what was found there and asks for one fact of it, with wrong answers beside the true one
    checked      the answer stands in the source word for word, and the question does not give it away
    validated    a policy that sees the source and the answers, and not which is true, chooses the true one
    unknown      where a model is named: without the source it does not choose it

Every question has the day on which it was made. What traces and policies say is data: nothing of it is run.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pydantic

from etude.bench.base.fresh import Question
from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, Context, Message, Policy, Sampling, ToolResult, User
from etude.harness.trajectory_files import FACTS, load_trajectory
from etude.rollout.listing import rollout_folder
from etude.rollout.store import saved_rollouts

SHORTEST, LONGEST = 200, 6000  # characters of a source that a question is made of
WRONG = 3  # answers beside the true one
LIBRARY = re.compile(r"(?:site-packages|dist-packages|node_modules)/(@?[\w.-]+)|\blib/python3(?:\.\d+)?/([A-Za-z_]\w*)")
DOCUMENTATION = re.compile(r"docs?|documentation|web_?search|web_?fetch")  # names of tools
SAMPLING = Sampling(max_tokens=600, temperature=0)

WRITE = (
    "Below is what a programmer found in {source}. Write one question about one fact of it that somebody who knows "
    "this version by heart can answer in a few words, and that general knowledge does not answer. The answer must be a "
    "name, a value or a phrase that stands in the text word for word. Reply with one JSON object and nothing else: "
    '{{"question": "...", "answer": "...", "wrong": ["...", "...", "..."]}}. Wrong answers look as likely.\n\n{text}'
)
CHOOSE = "{source}Question: {question}\n{choices}\nReply with the letter of the right answer and nothing else."


@dataclass(frozen=True)
class Lookup:
    """Something that an agent had to look up."""

    library: str
    source: str  # where it was found, for people
    text: str


@dataclass
class Made:
    questions: list[Question] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)  # why, and how often


class _Written(pydantic.BaseModel, extra="ignore", strict=True):
    question: str = pydantic.Field(min_length=10, max_length=600)
    answer: str = pydantic.Field(min_length=1, max_length=120)
    wrong: list[str] = pydantic.Field(min_length=2, max_length=8)


def lookups(messages: Sequence[Message]) -> Iterator[Lookup]:
    """Of one trace, in order; results follow their turn in the order of its calls."""
    waiting: list[Call] = []
    for message in messages:
        if isinstance(message, Assistant):
            waiting = list(message.calls)
        elif isinstance(message, ToolResult) and waiting:
            call = waiting.pop(0)
            found = _library(call)
            if found and len(message.text) >= SHORTEST:
                yield Lookup(found[0], found[1], message.text[:LONGEST])


def lookups_below(path: Path) -> list[Lookup]:
    """Of all saved rollouts of a run or a folder, in order; a rollout that was void has none."""
    found: list[Lookup] = []
    folders = list(saved_rollouts(rollout_folder(path)))
    if not folders:
        raise EtudeError(f"{path} holds no saved rollouts: name a run, or the folder that rollouts were saved in")
    for folder in folders:
        if (folder / FACTS).is_file():
            found += lookups(load_trajectory(folder).messages)
    return found


def _library(call: Call) -> tuple[str, str] | None:
    """What a call looked into: the library and the place; nothing where it was the task's own code."""
    said = " ".join(call.arguments.values())
    if match := LIBRARY.search(said):
        return match[1] or match[2], said[:200]
    if DOCUMENTATION.fullmatch(call.name):
        return call.name, f"{call.name}: {said[:200]}"
    return None


async def make_questions(
    found: Iterable[Lookup],
    writer: Policy,
    validator: Policy,
    day: str,
    unknown_to: Policy | None = None,
    most: int = 200,
) -> Made:
    """At most `most` questions, each of another fact."""
    made, seen = Made(), set[tuple[str, str]]()
    for number, lookup in enumerate(found):
        if len(made.questions) >= most:
            break
        question, problem = await _write(lookup, writer, day)
        if question is None:
            made.dropped[problem] += 1
            continue
        if (lookup.library, question.answer) in seen:
            made.dropped["asked already"] += 1
            continue
        seen.add((lookup.library, question.answer))
        if not await _chooses(validator, question, lookup, number):
            made.dropped["not confirmed with the source"] += 1
        elif unknown_to is not None and await _chooses(unknown_to, question, None, number):
            made.dropped["known without the source"] += 1
        else:
            made.questions.append(question.model_copy(update={"validated": True}))
    return made


async def _write(lookup: Lookup, writer: Policy, day: str) -> tuple[Question | None, str]:
    asked = WRITE.format(source=lookup.source, text=lookup.text)
    said = (await writer.sample(Context((User(asked),)), SAMPLING)).text
    start, end = said.find("{"), said.rfind("}")
    try:
        written = _Written.model_validate_json(said[start : end + 1])
    except pydantic.ValidationError:
        return None, "no question in the reply"
    answer, wrong = written.answer.strip(), dict.fromkeys(each.strip() for each in written.wrong)
    wrong.pop(answer, None)
    if not answer or answer not in lookup.text:
        return None, "answer not in the source"
    if answer.lower() in written.question.lower():
        return None, "question gives the answer away"
    kept = [each for each in wrong if each][:WRONG]
    if len(kept) < 2:
        return None, "too few wrong answers"
    source = f"{lookup.library}: {lookup.source}"[:500]
    return Question(question=written.question, answer=answer, wrong=kept, source=source, date=day), ""


async def _chooses(policy: Policy, question: Question, lookup: Lookup | None, seed: int) -> bool:
    """Whether the policy chooses the true answer; the order of answers follows from `seed`."""
    answers = list(question.answers)
    random.Random(f"{seed}/{question.question}").shuffle(answers)
    letters = "ABCDEFGHIJKLMNOPQ"[: len(answers)]
    choices = "\n".join(f"{letter}. {answer}" for letter, answer in zip(letters, answers, strict=True))
    source = f"From {lookup.source}:\n\n{lookup.text}\n\n" if lookup is not None else ""
    asked = CHOOSE.format(source=source, question=question.question, choices=choices)
    said = (await policy.sample(Context((User(asked),)), SAMPLING)).text
    chosen = re.search(rf"\b([{letters}])\b", said)
    return chosen is not None and answers[letters.index(chosen[1])] == question.answer


def summary(made: Made) -> dict[str, object]:
    dates = sorted({question.date for question in made.questions})
    return {"questions": len(made.questions), "dropped": dict(made.dropped), "dates": dates}
