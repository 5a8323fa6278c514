"""The first words: short, and only what was asked for."""

from __future__ import annotations

from etude.core.policy import Assistant, Call
from etude.core.settings import HarnessSettings
from etude.harness.prompt import system_text, task_text
from etude.harness.text_turns import read_turn
from etude.harness.tools.table import TOOLS, build_tools


def test_the_specification_of_tools_is_as_long_as_asked_for() -> None:
    tools = build_tools([{"use": "read"}, {"use": "finish"}])
    assert system_text("", tools, "none") == ""
    assert system_text("Mend.", tools, "none") == "Mend."
    assert system_text("Mend.", tools) == "Mend.\nread path [start] [end]\nfinish [message]"
    assert system_text("", tools, "full") == (
        "read: show a file or a range of its lines\n  path: file\n  [start] (integer): first line, from 1\n"
        "  [end] (integer): last line\nfinish: end the work\n  [message]: what was done, for the user"
    )
    assert system_text("Mend.", {}) == "Mend."


def test_the_usual_tools_are_told_in_few_words() -> None:
    short = system_text("", build_tools(HarnessSettings().tools))
    assert len(short.split()) < 32 and len(short) < 250


def test_the_default_settings_name_tools_that_exist() -> None:
    usual = ["read", "edit", "write", "list", "glob", "grep", "run", "todo", "finish"]
    assert list(build_tools(HarnessSettings().tools)) == usual
    assert list(build_tools([{"use": name} for name in TOOLS])) == list(TOOLS)


def test_policies_of_text_are_told_how_to_write_a_call() -> None:
    text = system_text("", {}, text_form=True)
    example = text[text.index("<tool_call>") : text.index("</tool_call>") + len("</tool_call>")]
    assert read_turn(example) == Assistant(calls=(Call("NAME", {"ARGUMENT": "TEXT"}),))


def test_recent_files_come_before_the_task() -> None:
    assert task_text(" Mend it.\n") == "Mend it."
    recent = {"a.py": "x = 1\n", "b.py": "y" * 100}
    assert task_text("Mend it.", recent, max_chars=10) == (
        "a.py:\nx = 1\n\nb.py:\nyyyyy[90 characters left out]yyyyy\n\nMend it."
    )
