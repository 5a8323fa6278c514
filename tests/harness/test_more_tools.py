"""Tools that a recipe may add: delete, lints, background; tools that an environment does not have; inexact calls."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from etude.core.policy import Call
from etude.core.settings import HarnessSettings
from etude.harness import loop
from etude.harness.tool_calls import begin_tools, execute
from etude.harness.tool_context import ToolContext
from etude.harness.tools.base import Observation
from etude.harness.tools.python_problems import problems
from etude.harness.tools.table import build_tools
from etude.sandbox.hosts import StoringHost

Sandboxes = tuple[asyncio.AbstractEventLoop, StoringHost]


async def one(context: ToolContext, tools: Any, name: str, **arguments: str) -> Observation:
    [outcome] = [outcome async for outcome in execute([Call(name, arguments)], tools, context)]
    return outcome.observation


def call(sandbox: Any, specs: Any, name: str, **arguments: str) -> Observation:
    return asyncio.run(one(ToolContext(sandbox, str(sandbox.root)), build_tools(specs), name, **arguments))


# delete


def test_delete_takes_a_file_away_and_leaves_what_a_link_points_to(sandbox: Any) -> None:
    (sandbox.root / "a.py").write_text("a")
    (sandbox.root / "-r").write_text("a")
    (sandbox.root / "link").symlink_to("a.py")
    for path in ("link", "-r"):
        assert call(sandbox, [{"use": "delete"}], "delete", path=path) == Observation("ok")
    assert [path.name for path in sandbox.root.iterdir()] == ["a.py"]
    call(sandbox, [{"use": "delete"}], "delete", path="a.py")
    gone = call(sandbox, [{"use": "delete"}], "delete", path="a.py")
    assert gone == Observation("error: a.py: no such file or directory", "UnexpectedEnvironment")


def test_delete_takes_folders_only_where_the_recipe_says_so(sandbox: Any) -> None:
    (sandbox.root / "sub").mkdir()
    assert call(sandbox, [{"use": "delete"}], "delete", path="sub").error == "UnexpectedEnvironment"
    assert call(sandbox, [{"use": "delete", "folders": True}], "delete", path="sub").error is None
    assert call(sandbox, [{"use": "delete", "folders": True}], "delete", path=".").error == "InvalidArguments"
    assert call(sandbox, [{"use": "delete"}], "delete", path="../x").error == "InvalidArguments"
    assert sandbox.root.is_dir() and not (sandbox.root / "sub").exists()


# lints


def test_lints_shows_only_what_is_new_wherever_it_has_moved(sandbox: Any) -> None:
    (sandbox.root / "a.py").write_text("import os\n\n\ndef f(x):\n    return y\n")
    (sandbox.root / "sub").mkdir()
    tools, context = build_tools([{"use": "lints"}]), ToolContext(sandbox, str(sandbox.root))

    async def play() -> list[str]:
        await begin_tools(tools, context)
        seen = [await one(context, tools, "lints")]
        (sandbox.root / "a.py").write_text("import sys\n\nimport os\n\n\ndef f(x):\n    return y + y\n")
        (sandbox.root / "sub" / "b.py").write_text("def g(:\n")
        seen += [await one(context, tools, "lints"), await one(context, tools, "lints", path="sub")]
        assert all(observation.error is None for observation in seen)
        return [observation.text for observation in seen]

    first, all_new, below = asyncio.run(play())
    assert first == "no new problems"
    # `os is imported` and `y is not defined` were there, on other lines.
    assert all_new == "a.py:1: sys is imported and not used\nsub/b.py:1: syntax error: invalid syntax"
    assert below == "sub/b.py:1: syntax error: invalid syntax"


def test_lints_takes_the_recipes_own_linter_and_says_where_there_is_none(sandbox: Any) -> None:
    (sandbox.root / "a.py").write_text("x\n")
    own = [{"use": "lints", "command": ["grep", "-Hn", "x", "a.py"]}]
    assert call(sandbox, own, "lints") == Observation("a.py:1: x")
    none = call(sandbox, [{"use": "lints", "python": "no-such-python"}], "lints")
    assert none == Observation("error: there is no linter here: no-such-python", "Unavailable")


@pytest.mark.parametrize(
    "written", ["{" * 5000 + "}", '{"file": 1, "line": 2, "text": "x"}', '{"a": 1}', '{"file": "a", "line": "b"}']
)
def test_an_interpreter_of_the_agents_is_no_bug_of_ours(sandbox: Any, written: str) -> None:
    tools, context = build_tools([{"use": "lints", "python": "./mine"}]), ToolContext(sandbox, str(sandbox.root))
    program = sandbox.root / "mine"

    async def play() -> Observation:
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        await begin_tools(tools, context)
        program.write_text(f"#!/bin/sh\necho '{written}'\n")
        return await one(context, tools, "lints")

    assert asyncio.run(play()).error == "UnexpectedEnvironment"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f(a, *b, c=1, **d):\n    e: int = a\n    return [x for x in (b, c, d, e)]\n", []),
        ("class A:\n    b = 1\n    c = b\n\n    def d(self) -> 'A':\n        return A()\n", []),
        ("from a import *\nprint(anything)\n", []),
        ("import os.path\nimport a as b\n", [(1, "os is imported and not used"), (2, "b is imported and not used")]),
        ("import a\n__all__ = ['a']\n", []),
        ("from typing import List\nx: 'List[int]' = []\n", []),
        ("from __future__ import annotations\ntry:\n    import b\nexcept ImportError as error:\n    b = error\n", []),
        ("def f():\n    global g\n    g = 1\nprint(g, __name__, __file__)\n", []),
        ("with open('x') as f, f as (g, h):\n    print(g, h)\n(y := 1)\nprint(y)\n", []),
        ("def f():\n    return lambda: q\n", [(2, "q is not defined")]),
        ("x = [\n", [(1, "syntax error: '[' was never closed")]),
        ("x = 1\0", None),
    ],
)
def test_the_linter_knows_what_python_defines(text: str, found: Any) -> None:
    seen = list(problems(text, "a.py"))
    assert seen == found if found is not None else len(seen) == 1


def test_the_linter_finds_nothing_in_our_own_files() -> None:
    for file in sorted(Path(loop.__file__).parent.rglob("*.py")):
        assert list(problems(file.read_text(), str(file))) == []


# background


def test_a_command_in_the_background_is_read_and_stopped_and_dies_with_its_sandbox(sandboxes: Sandboxes) -> None:
    events, host = sandboxes
    tools = build_tools([{"use": "background", "max_running": 2}, {"use": "run"}])

    async def play() -> list[Observation]:
        layer = host.store.add_files({"a.txt": b"a\n"}, at="/workspace")
        async with await host.start([layer]) as sandbox:
            context = ToolContext(sandbox)
            calls = [
                {"command": "cat a.txt; echo b >&2; exit 3", "seconds": "20"},
                {"command": "echo on; mkfifo p; exec cat p"},
                {"command": "sleep 1000"},
                {"command": "sleep 1000"},
                {"id": "9"},
                {},
                {"id": "3", "stop": "true"},
            ]
            seen = [await one(context, tools, "background", **arguments) for arguments in calls]
            await one(context, tools, "run", command="while ! [ -p p ]; do :; done; echo done > p")
            seen.append(await one(context, tools, "background", id="2", seconds="20"))
            seen.append(await one(context, tools, "background", command="sleep 1000"))
            assert tools["background"].remembered(context) == "Running in the background: 4"
            process = context.state["background"][3]
        assert not process.running
        return seen

    first, _, _, crowded, unknown, neither, stopped, read, fourth = events.run_until_complete(play())
    assert first == Observation("a\nb\n[1: exit 3]")
    assert crowded.error == unknown.error == neither.error == "InvalidArguments"
    assert "stop one" in crowded.text and "3 were started" in unknown.text
    assert stopped == Observation("[3: stopped]")
    assert read.text.endswith("done\n[2: exit 0]")
    assert fourth == Observation("[4: running]")


# availability and strictness


def test_a_tool_that_other_environments_have_is_unavailable_and_not_a_wrong_call(sandbox: Any) -> None:
    seen = call(sandbox, [{"use": "read"}, {"use": "finish"}], "grep", pattern="x")
    assert seen == Observation("error: there is no tool 'grep' here; there are read, finish", "Unavailable")
    assert call(sandbox, [{"use": "read"}], "grab", pattern="x").error == "InvalidArguments"


def test_calls_that_are_nearly_right_run_where_an_environment_is_not_strict(sandbox: Any) -> None:
    (sandbox.root / "a.py").write_text("x = 1\n")
    tools = build_tools(HarnessSettings().tools)
    for strict, error in ((True, "InvalidArguments"), (False, None)):
        context = ToolContext(sandbox, str(sandbox.root), strict=strict)
        for name, arguments in (("reed", {"path": "a.py"}), ("read", {"paths": "a.py", "why": "to see"})):
            seen = asyncio.run(one(context, tools, name, **arguments))
            assert seen.error == error
            assert strict or seen.text == "x = 1"


def test_services_answer_in_a_thread_and_read_a_short_query() -> None:
    asked: list[tuple[str, int, bool]] = []

    class Backend:
        def ask(self, service: str, query: str) -> str:
            asked.append((service, len(query), threading.current_thread() is threading.main_thread()))
            return "ok"

    [tool] = build_tools([{"use": "service"}]).values()
    context = ToolContext(None, backend=Backend())
    assert asyncio.run(tool.call({"name": "logs", "query": "e " * 9000}, context)).text == "ok"
    assert asked == [("logs", 500, False)]  # the event loop is all rollouts'
