"""Questions on fresh knowledge: made from traces, read back, and answered by likelihood."""

from __future__ import annotations

import asyncio
import json
import math
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from etude.bench.base.fresh import Question, measure_fresh, read_questions, write_questions
from etude.bench.base.fresh_questions import lookups, lookups_below, make_questions
from etude.bench.base.model_under_test import ModelUnderTest
from etude.cli.main import app
from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, Context, Message, Sample, Sampling, System, ToolResult, User
from etude.harness.trajectory import MessageRecord, Trajectory
from etude.harness.trajectory_files import save_trajectory
from etude.model.packed_forward import Packed

SOURCE = "def connect(host, timeout=7.25):\n    # since 3.1 the pool is called LaneKeeper\n" + "    pass\n" * 40
TRACE: list[Message] = [
    System("s"),
    User("mend it"),
    Assistant(
        calls=(
            Call("read", {"path": "mine/app.py"}),
            Call("read", {"path": "/usr/lib/x/site-packages/lanes/pool.py"}),
        )
    ),
    ToolResult("read", "x = 1\n" * 100),
    ToolResult("read", SOURCE),
    Assistant(calls=(Call("docs", {"query": "timeouts"}), Call("read", {"path": "a/node_modules/short/i.js"}))),
    ToolResult("docs", SOURCE.upper()),
    ToolResult("read", "too short"),
]


def test_only_libraries_and_documentation_are_lookups() -> None:
    found = list(lookups(TRACE))
    assert [each.library for each in found] == ["lanes", "docs"]
    assert found[0].text == SOURCE and "pool.py" in found[0].source


class Writer:
    """Asks what it was told to, whatever it reads."""

    def __init__(self, *replies: str) -> None:
        self.replies = list(replies)

    async def sample(self, context: Context, sampling: Sampling) -> Sample:
        return Sample(self.replies.pop(0), "stop")


class Reader:
    """Chooses the answer that the source beside the question holds; without one, always the first."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def sample(self, context: Context, sampling: Sampling) -> Sample:
        (message,) = context.messages
        assert isinstance(message, User)
        self.asked.append(message.text)
        source, _, rest = message.text.rpartition("Question: ")
        choices = re.findall(r"^([A-Q])\. (.*)$", rest, re.M)
        held = [letter for letter, answer in choices if answer in source]
        return Sample(f"{held[0] if held else choices[0][0]}.", "stop")


GOOD: dict[str, Any] = {
    "question": "What is the pool called since 3.1?",
    "answer": "LaneKeeper",
    "wrong": ["PoolBox", "Lanes", "Way"],
}


def test_questions_are_grounded_validated_dated_and_asked_once() -> None:
    found = [next(lookups(TRACE))] * 5
    invented = GOOD | {"answer": "Highway"}
    told = GOOD | {"question": "Since when is it called LaneKeeper?"}
    writer = Writer(json.dumps(GOOD), f"Sure: {json.dumps(GOOD)}", json.dumps(invented), json.dumps(told), "I cannot")
    reader = Reader()
    made = asyncio.run(make_questions(found, writer, reader, "2026-11-16"))
    assert [(each.answer, each.date, each.validated) for each in made.questions] == [("LaneKeeper", "2026-11-16", True)]
    reasons = (
        "asked already",
        "answer not in the source",
        "question gives the answer away",
        "no question in the reply",
    )
    assert made.dropped == dict.fromkeys(reasons, 1)
    assert len(reader.asked) == 1 and SOURCE in reader.asked[0]  # the validator has the source


def test_what_a_model_knows_without_the_source_is_dropped() -> None:
    class Knows(Reader):
        async def sample(self, context: Context, sampling: Sampling) -> Sample:
            (message,) = context.messages
            assert isinstance(message, User) and SOURCE not in message.text
            return Sample(str(re.findall(r"^([A-Q])\. LaneKeeper$", message.text, re.M)[0]), "stop")

    made = asyncio.run(
        make_questions(lookups(TRACE[:5]), Writer(json.dumps(GOOD)), Reader(), "2026-11-16", unknown_to=Knows())
    )
    assert not made.questions and made.dropped == {"known without the source": 1}


class Endpoint(BaseHTTPRequestHandler):
    """A hosted model that writes the good question, and reads the source when it is to choose."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked = body["messages"][-1]["content"]
        source, _, rest = asked.rpartition("Question: ")
        choices = [
            (letter, answer) for letter, answer in re.findall(r"^([A-Q])\. (.*)$", rest, re.M) if answer in source
        ]
        said = choices[0][0] if choices else json.dumps(GOOD)
        message = {"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        reply = json.dumps({"choices": [message], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: object) -> None:
        pass


def test_the_command_makes_a_file_from_saved_rollouts_and_a_hosted_model(tmp_path: Path) -> None:
    folder = tmp_path / "rollouts" / "one"
    save_trajectory(Trajectory(entries=[MessageRecord(message) for message in TRACE[:5]]), folder)
    (folder / "outcome.json").write_text("{}")
    file = tmp_path / "q.jsonl"
    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        policy = f"openai:http://127.0.0.1:{server.server_address[1]}/v1?model=m"
        words = ["bench", "fresh", str(tmp_path / "rollouts"), "--policy", policy, "--save", str(file), "--json"]
        done = CliRunner().invoke(app, words)
        server.shutdown()
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["questions"] == 1
    (question,) = read_questions(file)
    assert question.answer == "LaneKeeper" and question.validated and "site-packages/lanes" in question.source
    refused = CliRunner().invoke(app, [*words[:4], "reference", *words[5:]])
    assert refused.exit_code == 2 and "cannot write questions" in refused.output


def test_a_folder_above_the_rollouts_is_told_from_rollouts_without_lookups(tmp_path: Path) -> None:
    folder = tmp_path / "saved" / "one"
    save_trajectory(Trajectory(entries=[]), folder)
    (folder / "outcome.json").write_text("{}")
    assert lookups_below(tmp_path / "saved") == []
    with pytest.raises(EtudeError, match="holds no saved rollouts"):
        lookups_below(tmp_path)


def test_questions_come_back_as_written_and_bad_lines_are_named(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    two = [Question(**GOOD, source="lanes", date=day) for day in ("2026-10-01", "2026-11-02")]
    file.write_text(write_questions(two))
    assert read_questions(file) == two and read_questions(file, "2026-10-15") == two[1:]
    with pytest.raises(EtudeError, match="none from 2027-01-01 on"):
        read_questions(file, "2027-01-01")
    file.write_text(file.read_text() + '{"question": 3}\n')
    with pytest.raises(EtudeError, match=r"line 3 of .* is no question"):
        read_questions(file)
    file.write_text(json.dumps(GOOD | {"source": "x", "date": "2026-13-40"}))
    with pytest.raises(EtudeError, match=r"line 1 of .* has no date"):
        read_questions(file)
    with pytest.raises(EtudeError, match="etude bench fresh"):
        read_questions(tmp_path / "none.jsonl")


def test_the_answer_is_the_likeliest_byte_for_byte(make_tested: Callable[..., ModelUnderTest]) -> None:
    tested = make_tested()
    question = Question(question="q", answer="blue", wrong=["red", "a long answer"], source="s", date="2026-11-16")

    def score(answer: str) -> float:
        """By one plain forward over the whole text, in float64."""
        start, whole = (
            tested.text.encode("Question: q\nAnswer:"),
            tested.text.encode(f"Question: q\nAnswer: {answer}\n"),
        )
        logits = tested.decoder.logits(Packed(tested.decoder, [np.array(whole)]).hidden()[0]).detach().double()
        table = logits.log_softmax(-1)
        shared = next((i for i, (a, b) in enumerate(zip(start, whole, strict=False)) if a != b), len(start))
        total = sum(float(table[place - 1, whole[place]]) for place in range(shared, len(whole)))
        return total / (len(answer.encode()) + 1)

    scores = [score(answer) for answer in question.answers]
    found = measure_fresh(tested, [question])
    odds = [math.exp(each - max(scores)) for each in scores]
    assert found.probability == pytest.approx(odds[0] / sum(odds), rel=1e-4)
    assert found.accuracy == float(scores[0] > max(scores[1:])) and found.chance == pytest.approx(1 / 3)
    # The true answer moved to the place of the likeliest makes it right.
    best = question.answers[scores.index(max(scores))]
    others = [answer for answer in question.answers if answer != best]
    assert measure_fresh(tested, [question.model_copy(update={"answer": best, "wrong": others})]).accuracy == 1.0
