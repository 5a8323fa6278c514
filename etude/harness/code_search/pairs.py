"""What word vectors are trained on: a sentence, and the code that it is about.

Two sources. Docstrings: the first sentence, and the function without it. Traces of agents: what was asked, and the
files that the agent then edited, as it had read them. Python is parsed here, so the sources are the trainer's own,
never an agent's workspace.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from etude.core.policy import Assistant, ToolResult, User
from etude.harness.code_search.chunks import chunks_of
from etude.harness.code_search.words import split_words
from etude.harness.trajectory import Trajectory

SENTENCE = re.compile(r".+?(?:[.!?](?=\s)|\n\s*\n|\Z)", re.S)
SHORTEST = 5  # words of a sentence that says anything
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Pair:
    """A question and the code that answers it."""

    question: str
    code: str
    path: str = ""


def docstring_pairs(path: str, text: str) -> Iterator[Pair]:
    """One for each function of a Python file whose docstring begins with a whole sentence."""
    tree = _parsed(text)
    lines = without_docstrings(text).split("\n")
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, Function) and (docstring := ast.get_docstring(node)):
            sentence = SENTENCE.match(docstring)
            question = " ".join(sentence[0].split()) if sentence else ""
            if len(question.split()) >= SHORTEST:
                yield Pair(question, "\n".join(lines[node.lineno - 1 : node.end_lineno]), path)


def without_docstrings(text: str) -> str:
    """The same lines with every docstring blank; text that is no Python stays as it is."""
    tree, lines = _parsed(text), text.split("\n")
    for node in ast.walk(tree) if tree is not None else ():
        if not isinstance(node, Function | ast.ClassDef | ast.Module):
            continue
        if not node.body or ast.get_docstring(node, clean=False) is None:
            continue
        first = node.body[0]
        for number in range(first.lineno - 1, first.end_lineno or first.lineno):
            # `def f(): "text"` keeps what stands before it.
            lines[number] = lines[number][: first.col_offset] if number == first.lineno - 1 else ""
    return "\n".join(lines)


def trace_pairs(trajectories: Iterable[Trajectory]) -> Iterator[Pair]:
    """What the task said, and each question to `search`, with the files that were read and then edited."""
    for trajectory in trajectories:
        questions, read, edited = [], {}, []
        waiting: list[tuple[str, str]] = []
        for entry in trajectory.entries:
            message = entry.message
            if isinstance(message, User):
                questions.append(message.text)
            elif isinstance(message, Assistant):
                questions += [call.arguments.get("question", "") for call in message.calls if call.name == "search"]
                waiting = [(call.name, call.arguments.get("path", "")) for call in message.calls]
            elif isinstance(message, ToolResult) and waiting:
                name, path = waiting.pop(0)
                if name == "read" and entry.error is None:
                    read[path] = message.text
                elif name in ("edit", "write") and entry.error is None:
                    edited.append(path)
        for path in dict.fromkeys(edited):
            if path in read:
                yield from (Pair(question, read[path], path) for question in questions if question)


def bags_of(pair: Pair) -> tuple[Counter[str], Counter[str]]:
    """Words of the question, and of the code as the index sees such a piece."""
    return Counter(split_words(pair.question)), sum((chunk.words for chunk in chunks_of("", pair.code)), Counter())


def _parsed(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
