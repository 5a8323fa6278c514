"""Each behaviour: where it happens, where it does not; a reader that is asked; one of one's own; the reward of any."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etude.behaviours.base import Behaviour, Site, steps_of
from etude.behaviours.reader import Reader
from etude.behaviours.table import BEHAVIOURS, build_behaviour, build_behaviours, find_each, in_order
from etude.behaviours.tool_errors import CLASSES
from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, Context, ContextOverflow, Sample, Sampling, ToolResult, User
from etude.core.rl_settings import RLSettings
from etude.harness.failures import PolicyFailure
from etude.harness.trajectory import MessageRecord, StopCause, Trajectory
from etude.reward.behaviour import BehaviourPenalty
from etude.reward.compose import build_reward
from etude.rollout.rollout import build_setup, hints_of
from etude.tasks.format.task import Task

OK = "ok"


def trajectory(*turns: tuple[Assistant, list[str]], stop: StopCause = "finish") -> Trajectory:
    """Turns and what their calls were answered; an answer that begins with "error: " is one."""
    entries = [MessageRecord(User("Mend it."))]
    for turn, answers in turns:
        entries.append(MessageRecord(turn))
        for call, answer in zip(turn.calls, answers, strict=False):
            error: Any = "UnexpectedEnvironment" if answer.startswith("error: ") else None
            entries.append(MessageRecord(ToolResult(call.name, answer), error=error))
    tools = ("read", "edit", "write", "delete", "list", "glob", "grep", "run", "todo", "finish")
    return Trajectory(tools=tools, entries=entries, stop=stop)


def call(name: str, answer: str = OK, **arguments: str) -> tuple[Assistant, list[str]]:
    return Assistant(calls=(Call(name, arguments),)), [answer]


def end(message: str = "") -> tuple[Assistant, list[str]]:
    return Assistant(calls=(Call("finish", {"message": message} if message else {}),)), []


def edit(new: str, old: str = "pass", path: str = "a.py", answer: str = OK) -> tuple[Assistant, list[str]]:
    return call("edit", answer, path=path, old=old, new=new)


def write(text: str) -> tuple[Assistant, list[str]]:
    return call("write", path="a.py", text=text)


def run(command: str, answer: str = "fine") -> tuple[Assistant, list[str]]:
    return call("run", answer, command=command)


async def find_sites(behaviours: Sequence[Behaviour], trajectory: Trajectory) -> tuple[Site, ...]:
    return in_order((await find_each(behaviours, trajectory)).values())


LINES = "\n".join(f"line_{i} = {i}" for i in range(20))

# behaviour, what happened, the kinds that are found
CASES: list[tuple[str, Trajectory, list[str]]] = [
    ("unfinished_todos", trajectory(call("todo", items="[x] a\n[ ] b"), end()), ["unfinished_todos"]),
    ("unfinished_todos", trajectory(call("todo", items="[ ] a"), call("todo", items="[x] a\n[-] b"), end()), []),
    ("unfinished_todos", trajectory(call("todo", items="[ ] a"), stop="turns"), []),
    ("style", trajectory(edit("try:\n    x()\nexcept:\n    pass"), end()), ["style.bare_except"]),
    ("style", trajectory(edit("def f(a=[]):\n    return a"), end()), ["style.mutable_default"]),
    ("style", trajectory(edit("x = '" + "a" * 150 + "'"), end()), ["style.long_line"]),
    ("style", trajectory(edit("except:", path="a.txt"), edit("try:\n    x()\nexcept ValueError:\n    y()"), end()), []),
    ("style", trajectory(edit("except:\n    y()", old="except:\n    pass"), end()), []),  # it was there before
    ("communication", trajectory(end("Certainly! Done.")), ["communication.filler"]),
    ("communication", trajectory(end("word " * 400)), ["communication.too_long"]),
    (
        "communication",
        trajectory(end("The bug was in the parser. The bug was in the parser.")),
        ["communication.repeated"],
    ),
    ("communication", trajectory(end("add returned a - b; it adds now.")), []),
    ("questions", trajectory(call("read", path="a"), end("Which file do you mean?")), ["questions"]),
    ("questions", trajectory((Assistant(final="Shall I go on?"), []), stop="final"), ["questions"]),
    ("questions", trajectory(edit("x"), end("Is this what you meant?")), []),  # it tried
    ("questions", trajectory(call("read", path="a"), end("The answer is 3.")), []),
    ("questions", trajectory((Assistant(final="Shall I go on?"), []), stop="turns"), []),
    ("claims", trajectory(edit("x"), end("All tests pass.")), ["claims"]),
    ("claims", trajectory(run("pytest"), edit("x"), end("I verified that it works.")), ["claims"]),
    ("claims", trajectory(edit("x"), run("pytest", "1 FAILED\n[exit 1]"), end("The tests pass.")), ["claims"]),
    ("claims", trajectory(edit("x"), run("pytest", "3 passed"), end("The tests pass.")), []),
    ("claims", trajectory(edit("x"), end("I have not tested it.")), []),
    ("thinking_in_comments", trajectory(edit("# Wait, let me think\nx = 1"), end()), ["thinking_in_comments"]),
    ("thinking_in_comments", trajectory(edit("\n".join(["# step"] * 9)), end()), ["thinking_in_comments"]),
    ("thinking_in_comments", trajectory(edit("# Both ends are included.\nx = 1"), end()), []),
    (
        "terminal_only",
        trajectory(run("cat a.py"), run("sed -i s/a/b/ a.py")),
        ["terminal_only.read", "terminal_only.edit"],
    ),
    ("terminal_only", trajectory(run("rm a.py"), run("rm -f b.py")), ["terminal_only.delete"] * 2),
    ("terminal_only", trajectory(run("rm -r build"), run("rm a.py && make"), end()), []),
    ("terminal_only", trajectory(run("python -m pytest -q"), run("cat a.py | sort | uniq -c"), end()), []),
    (
        "minimal_diff",
        trajectory(call("read", LINES, path="a.py"), write(LINES + "\nmore = 1"), end()),
        ["minimal_diff"],
    ),
    ("minimal_diff", trajectory(edit(LINES + "\nmore = 1", old=LINES), end()), ["minimal_diff"]),
    ("minimal_diff", trajectory(call("read", "", path="a.py"), write(LINES), end()), []),
    ("minimal_diff", trajectory(write(LINES), call("read", LINES, path="a.py"), end()), []),  # read to check it
    ("needless_effort", trajectory(call("read", path="a"), call("read", path="a"), end()), ["needless_effort"]),
    ("needless_effort", trajectory(call("read", path="a"), edit("x"), call("read", path="a"), end()), []),
    ("needless_effort", trajectory(call("list"), call("delete", path="a"), call("list"), end()), []),
    ("needless_effort", trajectory(call("list"), call("agent", task="tidy up"), call("list"), end()), []),
    ("needless_effort", trajectory(call("background", id="1"), call("background", id="1"), end()), []),
]


@pytest.mark.parametrize(("name", "rollout", "kinds"), CASES)
def test_a_behaviour_is_found_where_it_happens_and_nowhere_else(
    name: str, rollout: Trajectory, kinds: list[str]
) -> None:
    sites = build_behaviour({"use": name}, "here").sites(rollout)
    assert [site.kind for site in sites] == kinds
    for site in sites:
        assert site.hint and isinstance(rollout.entries[site.message].message, Assistant)


def test_what_a_sub_agent_says_last_is_not_what_the_agent_says_last() -> None:
    """Entries of sub-agents stand behind those of the agent, whenever they were called."""
    own = [call("todo", items="[ ] a"), edit("x"), run("pytest", "3 passed"), call("agent", task="look")]
    asks, done = trajectory(call("todo", items="[x] b"), edit("y"), end("Which one?")), end("The tests pass.")
    for words, expected in ((done, {"unfinished_todos"}), (end("I changed a.py."), {"unfinished_todos"})):
        agent = trajectory(*own, words)
        first = replace(asks.entries[0], segment=1, purpose="sub-agent")
        both = [*agent.entries, first, *(replace(entry, segment=1) for entry in asks.entries[1:])]
        last = len(agent.entries) - 1
        every = [build_behaviour({"use": name}, "here") for name in ("unfinished_todos", "questions", "claims")]
        sites = asyncio.run(find_sites(every, replace(agent, entries=both)))
        assert {site.kind for site in sites} == expected and {site.message for site in sites} == {last}


def test_a_summary_is_no_word_for_the_user_and_no_turn_that_should_have_called() -> None:
    found = trajectory(edit("x"), (Assistant(final="Of course. " + "a.py is read. " * 200), []), end("Done."))
    called = trajectory(edit("x"), call("read", path="a.py"), end("Done."))
    errors: list[Any] = [None, "InvalidArguments"]
    for rollout, error in zip((found, called), errors, strict=True):
        place = next(i for i, entry in enumerate(rollout.entries) if entry.message == rollout.turns[1])
        rollout.entries[place] = replace(rollout.entries[place], purpose="summary", error=error)
        every = [build_behaviour({"use": name}, "here") for name in ("communication", "tool_errors", "claims")]
        assert asyncio.run(find_sites(every, rollout)) == ()


def test_what_was_read_before_a_summary_may_be_read_again() -> None:
    rollout = trajectory(call("read", path="a.py"), call("read", path="a.py"), end())
    needless = build_behaviour({"use": "needless_effort"}, "here")
    assert len(needless.sites(rollout)) == 1
    rollout.entries.insert(3, MessageRecord(User("Summary 1: a.py is read."), purpose="restart"))
    assert needless.sites(rollout) == []


def test_what_grows_where_nobody_looks_is_watched_by_default() -> None:
    watched = build_behaviours(RLSettings().monitor, "rl.monitor")
    asks = trajectory(call("read", "error: b.py: no such file or directory", path="b.py"), end("Which file?"))
    muses = trajectory(edit("# Wait, let me think\nx = 1"), end())
    found = [[site.kind for site in asyncio.run(find_sites(watched, each))] for each in (asks, muses)]
    assert found == [["tool_errors.no_such_file", "questions"], ["thinking_in_comments"]]


def test_every_behaviour_but_the_reader_is_quiet_about_an_honest_short_rollout() -> None:
    rollout = trajectory(
        call("read", "def add(a, b):\n    return a - b\n", path="a.py"), edit("a + b", old="a - b"), end()
    )
    for name in BEHAVIOURS:
        if name != "reader":
            assert build_behaviour({"use": name}, "here").sites(rollout) == [], name


ANSWERS = {
    "text_not_found": "error: old is not in a.py; nearest, line 2:\ndef add(a, b):\n    return a - b",
    "text_not_unique": "error: old occurs 2 times (lines 1, 4); make it longer",
    "same_text": "error: old and new are the same",
    "unknown_tool": "error: there is no tool 'edits'; did you mean edit?",
    "wrong_argument": "error: edit needs new: text to put there",
    "no_such_file": "error: b.py: no such file or directory",
    "outside": "error: ../b.py is outside the workspace",
    "timeout": "error: run took too long",
    "other": "error: something else",
}


def test_errors_of_tools_have_classes_each_with_a_hint() -> None:
    assert set(ANSWERS) == {*CLASSES, "other"}
    rollout = trajectory(*(edit("x", answer=answer) for answer in ANSWERS.values()), end())
    sites = build_behaviour({"use": "tool_errors"}, "here").sites(rollout)
    assert [site.kind for site in sites] == [f"tool_errors.{name}" for name in ANSWERS]
    assert [bool(site.hint) for site in sites] == [name != "other" for name in ANSWERS]
    assert sites[0].hint == "old is: return a - b"  # what to copy
    assert "read, edit" in sites[3].hint
    one = build_behaviour({"use": "tool_errors", "classes": ["unknown_tool"]}, "here").sites(rollout)
    assert [site.kind for site in one] == ["tool_errors.unknown_tool"]
    with pytest.raises(EtudeError, match="typo"):
        build_behaviour({"use": "tool_errors", "classes": ["typo"]}, "here")


@pytest.mark.parametrize(
    ("error", "answer", "kind", "hint"),
    [
        # what a command wrote before its time was over
        ("Timeout", "a.py: no such file\n[stopped: out of time]", "timeout", "This takes too long; do less at once."),
        ("InvalidArguments", "error: end 3 is before start 5", "wrong_argument", "end 3 is before start 5"),
        ("InvalidArguments", "error: old is empty; to make a\nfile use write", "wrong_argument", "use write"),
        ("Unavailable", "error: there is no documentation here", "other", ""),
    ],
)
def test_an_error_that_no_pattern_knows_is_of_its_own_class(error: Any, answer: str, kind: str, hint: str) -> None:
    rollout = trajectory(run("python a.py", answer), end())
    rollout.entries[2] = replace(rollout.entries[2], error=error)
    (site,) = build_behaviour({"use": "tool_errors"}, "here").sites(rollout)
    assert site.kind == f"tool_errors.{kind}" and site.hint.endswith(hint) and "\n" not in site.hint
    assert bool(site.hint) == bool(hint)


@pytest.mark.parametrize(
    ("first", "second", "done"),
    [
        (("x = 1", "y = 1"), ("x = 1", "y = 1"), True),
        (("x = 1", "y = 1"), ("x = 2", "y = 1"), True),
        (("x = 1", ""), ("x = 2", ""), False),  # two deletions have the same new text, and are not the same edit
    ],
)
def test_an_edit_that_worked_is_not_asked_for_again(
    first: tuple[str, str], second: tuple[str, str], done: bool
) -> None:
    missed = edit(second[1], second[0], answer="error: old is not in a.py; nearest, line 1:\nx = 3")
    found = trajectory(edit(first[1], first[0]), missed, end())
    (site,) = build_behaviour({"use": "tool_errors"}, "here").sites(found)
    assert site.hint == ("a.py is changed already; go on." if done else "old is: x = 3")


@pytest.mark.parametrize(
    ("answer", "later", "hint"),
    [
        ("; nearest, line 1:\nx = 3", [("x = 3\ny = 3", "x = 4")], "old is: x = 3\ny = 3"),  # the same edit, mended
        ("; nearest, line 1:\nx = 3", [("y = 3", "y = 4")], "old is: x = 3"),  # another edit of the file
        ("", [("y = 3", "y = 4")], "old is: y = 3"),  # nothing else is known
        ("", [], "old must be copied from a.py."),
    ],
)
def test_a_text_that_is_not_there_is_answered_with_what_worked_later(
    answer: str, later: list[tuple[str, str]], hint: str
) -> None:
    missed = edit("x = 4", "x = 2", answer=f"error: old is not in a.py{answer}")
    mended = [edit(new, old) for old, new in later]
    (site,) = build_behaviour({"use": "tool_errors"}, "here").sites(trajectory(missed, *mended, end()))
    assert site.hint == hint


def test_a_path_that_is_not_there_is_answered_with_the_one_that_was_shown() -> None:
    rollout = trajectory(call("read", "error: adds.py: no such file or directory", path="adds.py"), end())
    rollout.entries[0] = MessageRecord(User("`add` in `calc/add.py` is wrong, not in calc/other.py."))
    (site,) = build_behaviour({"use": "tool_errors"}, "here").sites(rollout)
    assert site.hint == "path is: calc/add.py"


def test_an_unreadable_turn_is_malformed_unless_the_token_limit_cut_it() -> None:
    rollout = trajectory(end())
    rollout.entries += [
        MessageRecord(Assistant(), error="InvalidArguments", stop="stop"),
        MessageRecord(Assistant(), error="InvalidArguments", stop="length"),
    ]
    (site,) = build_behaviour({"use": "tool_errors"}, "here").sites(rollout)
    assert (site.kind, site.message) == ("tool_errors.malformed", 2)


def test_results_belong_to_the_calls_of_their_turn() -> None:
    both = Assistant(calls=(Call("read", {"path": "a"}), Call("read", {"path": "b"})))
    steps = steps_of(trajectory((both, ["A", "B"]), end()))
    assert [(step.turn, step.call.name, step.answer) for step in steps] == [
        (1, "read", "A"),
        (1, "read", "B"),
        (4, "finish", ""),
    ]


class Answers:
    """A policy that says the same to everybody, and counts how many ask at once."""

    def __init__(self, text: str) -> None:
        self.text, self.now, self.most = text, 0, 0
        self.asked: list[Context] = []

    async def sample(self, context: Context, sampling: Sampling) -> Sample:
        self.asked.append(context)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        return Sample(self.text, "stop")


def reader(policy: Answers, **settings: Any) -> Reader:
    how = {"kind": "confusing", "prompt": "Find what confuses.", "hint_chars": 20, **settings}
    return Reader(Reader.Settings(**how), policy)


def test_a_reader_names_turns_and_several_are_asked_at_once() -> None:
    policy = Answers(
        'Here:\n[{"message": 1, "hint": "Say what\\nchanged, and much more"}, {"message": 2, "hint": "x"}]'
    )
    rollout = trajectory(edit("x"), end("Done."))
    sites = asyncio.run(find_sites([reader(policy), reader(policy, kind="other")], rollout))
    assert sites[0] == Site(1, "confusing", "Say what changed, an") and len(sites) == 2  # entry 2 is no turn
    assert policy.most == 2
    shown = policy.asked[0].messages[1]
    assert isinstance(shown, User) and "[1] agent:" in shown.text and "[2] tool:" in shown.text


ASKED = {"use": "reader", "prompt": "Find.", "policy": "openai:http://127.0.0.1:9/v1?model=m"}


def test_a_reader_that_is_reward_hint_and_rate_is_asked_once() -> None:
    policy, rollout = Answers('[{"message": 1, "hint": "Say why."}]'), trajectory(edit("x"), end("Done."))
    worth = build_reward([{"use": "behaviour", "of": {**ASKED, "kind": "confusing"}}])
    (part,) = (each.part for each in worth.parts if isinstance(each.part, BehaviourPenalty))
    part.behaviour = reader(policy)
    setup = replace(build_setup(), reward=worth, taught=(reader(policy),), watched=(reader(policy), reader(policy)))
    found = asyncio.run(find_each(setup.behaviours, rollout))
    sites, _ = hints_of(Task("t", "Do it."), rollout, setup, found)
    assert len(policy.asked) == 1 and sites == (Site(1, "confusing", "Say why."),)
    other = reader(policy, prompt="Find what else.")
    asyncio.run(find_sites([reader(policy), other, reader(policy)], rollout))
    assert len(policy.asked) == 3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, "endpoint.url"),
        ({"policy": "openai:http://127.0.0.1:9/v1"}, "endpoint.model is empty"),
        (
            {"policy": "openai:http://127.0.0.1:9/v1?model=m", "endpoint": {"retries": 0}},
            "unknown key endpoint.retries",
        ),
    ],
)
def test_a_reader_that_could_ask_nobody_is_refused_before_any_rollout(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(EtudeError, match=said):
        build_behaviour({"use": "reader", "kind": "x", "prompt": "Find.", **wrong}, "rl.monitor[0]")


def test_parts_of_one_behaviour_have_names_of_their_own() -> None:
    def of(kind: str, **more: str) -> dict[str, Any]:
        return {"use": "behaviour", "of": {"use": "tool_errors", "classes": [kind]}, **more}

    reward = build_reward([of("text_not_found", name="misses"), of("malformed")])
    assert [each.name for each in reward.parts] == ["misses", "tool_errors"]
    rollout = trajectory(edit("x", answer=ANSWERS["text_not_found"]), end())
    assert reward.score(_Graded(rollout, {}))[1] == {"misses": -1.0, "tool_errors": 0.0}  # type: ignore[arg-type]
    with pytest.raises(EtudeError, match="tool_errors' is there twice; keep one, or give one a name of its own"):
        build_reward([of("text_not_found"), of("malformed")])


@pytest.mark.parametrize("answer", ["I see nothing wrong.", '[{"message": "one"}]', ""])
def test_an_answer_that_a_rollout_can_bring_about_is_asked_for_again_and_then_finds_nothing(answer: str) -> None:
    policy = Answers(answer)
    assert asyncio.run(find_sites([reader(policy)], trajectory(end()))) == ()
    assert len(policy.asked) == 2


class Full(Answers):
    """Takes no more than so many characters."""

    async def sample(self, context: Context, sampling: Sampling) -> Sample:
        if sum(len(message.text) for message in context.messages if isinstance(message, User)) > 250_000:
            raise ContextOverflow("too long")
        return await super().sample(context, sampling)


def test_a_reader_that_is_not_there_spoils_the_rollout_and_scores_nothing() -> None:
    class Gone(Answers):
        async def sample(self, context: Context, sampling: Sampling) -> Sample:
            raise ConnectionError("refused")

    with pytest.raises(PolicyFailure, match="confusing"):
        asyncio.run(find_sites([reader(Gone(""))], trajectory(end())))


def test_no_rollout_is_too_long_for_its_reader() -> None:
    turns = [call("run", "y" * 8_000, command="x" * 3_000) for _ in range(400)]
    sites = asyncio.run(find_sites([reader(Full('[{"message": 1}]'))], trajectory(*turns, end())))
    assert [site.message for site in sites] == [1]


def test_what_was_printed_does_not_decide_how_long_a_hint_takes() -> None:
    printed = [call("run", "-" * 8_000, command="true") for _ in range(30)]
    wrong = [call("read", "error: b.py: no such file", path="b.py") for _ in range(30)]
    rollout = trajectory(*printed, *wrong, end())
    started = time.process_time()
    sites = asyncio.run(find_sites([build_behaviour({"use": "tool_errors"}, "x")], rollout))
    assert len(sites) == 30 and time.process_time() - started < 20


OWN = '''
"""Turns that apologise."""

from etude.behaviours.base import Behaviour, Site, turns_of


class Apologies(Behaviour):
    def sites(self, trajectory):
        said = [entry for entry, _, turn in turns_of(trajectory) if "sorry" in turn.final]
        return [Site(entry, "apologies", "Do not apologise; mend it.") for entry in said]
'''


def test_one_of_ones_own_is_a_small_file_that_feedback_reward_and_monitor_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    assert len(OWN.splitlines()) < 60
    use = {"use": f"{file}:Apologies"}
    rollout = trajectory((Assistant(final="sorry"), []), (Assistant(final="sorry again"), []), stop="final")
    sites = asyncio.run(find_sites([build_behaviour(use, "rl.feedback.behaviours[0]")], rollout))
    assert [(site.message, site.kind) for site in sites] == [(1, "apologies"), (2, "apologies")]
    reward = build_reward(
        [{"use": "behaviour", "of": use, "weight": 0.1}, {"use": "behaviour", "of": {"use": "claims"}}]
    )
    counted = asyncio.run(find_each(reward.behaviours, rollout))
    total, parts = reward.score(_Graded(rollout, counted))  # type: ignore[arg-type]
    assert parts == {"Apologies": -2.0, "claims": 0.0} and total == pytest.approx(-0.2)


class _Graded:
    """What the parts here look at of a graded rollout."""

    def __init__(self, trajectory: Trajectory, sites: Mapping[Behaviour, Sequence[Site]]) -> None:
        self.trajectory, self.sites, self.task = trajectory, sites, None


def test_what_is_no_behaviour_is_refused() -> None:
    with pytest.raises(EtudeError, match="no behaviour is called"):
        build_behaviour({"use": "tool_error"}, "rl.monitor[0]")
