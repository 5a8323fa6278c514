"""What each tool does, and which class each of its errors has."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.core.policy import Call
from etude.core.settings import HarnessSettings
from etude.harness.failures import HarnessFailure, ToolError
from etude.harness.tool_calls import execute
from etude.harness.tool_context import ToolContext
from etude.harness.tools.base import Argument, Observation, Tool
from etude.harness.tools.glob import _parts, matches
from etude.harness.tools.grep import translate
from etude.harness.tools.table import build_tools
from etude.harness.truncate import first_lines, shorten
from etude.sandbox.base import SandboxFailure

SOURCE = "def add(a, b):\n    return a - b\n\n\ndef twice(a):\n    return add(a, a)\n"


class Bench:
    """Calls tools one at a time, as the loop would."""

    def __init__(self, sandbox: Any) -> None:
        self.sandbox = sandbox
        self.context = ToolContext(sandbox, str(sandbox.root))
        self.tools = build_tools(HarnessSettings().tools)

    def put(self, path: str, content: str | bytes) -> None:
        target = self.sandbox.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())

    def get(self, path: str) -> bytes:
        return (self.sandbox.root / path).read_bytes()

    def set(self, use: str, **settings: Any) -> None:
        self.tools |= build_tools([{"use": use, **settings}])

    def all(self, *calls: Call, approve: Any = None) -> list[Observation]:
        async def play() -> list[Observation]:
            return [o.observation async for o in execute(calls, self.tools, self.context, approve)]

        return asyncio.run(play())

    def __call__(self, name: str, **arguments: str) -> str:
        [seen] = self.all(Call(name, arguments))
        assert seen.error is None, seen
        return seen.text

    def refused(self, name: str, **arguments: str) -> tuple[str | None, str]:
        [seen] = self.all(Call(name, arguments))
        assert seen.error is not None, seen
        return seen.error, seen.text


@pytest.fixture
def bench(sandbox: Any) -> Bench:
    made = Bench(sandbox)
    made.put("calc.py", SOURCE)
    return made


# read


def test_read_shows_a_file_without_its_last_line_end(bench: Bench) -> None:
    assert bench("read", path="calc.py") == SOURCE.rstrip("\n")


def test_read_takes_absolute_paths_inside_the_workspace(bench: Bench) -> None:
    assert bench("read", path=f"{bench.sandbox.root}/sub/../calc.py") == SOURCE.rstrip("\n")


def test_read_shows_a_range_of_lines(bench: Bench) -> None:
    assert bench("read", path="calc.py", start="5", end="6") == "def twice(a):\n    return add(a, a)"
    assert bench("read", path="calc.py", start="6", end="99") == "    return add(a, a)"


def test_read_says_where_to_go_on_after_its_limit(bench: Bench) -> None:
    bench.set("read", max_lines=2)
    assert bench("read", path="calc.py").split("\n")[-1] == "[4 more lines: start 3]"
    bench.set("read", max_chars=20)
    assert bench("read", path="calc.py") == "def add(a, b):\n[5 more lines: start 2]"
    bench.set("read", max_chars=5)
    assert bench("read", path="calc.py", start="1", end="1") == "def a[line cut]"


def test_read_numbers_lines_when_asked(bench: Bench) -> None:
    bench.set("read", numbers=True)
    assert bench("read", path="calc.py", start="5").startswith("5|def twice(a):\n6|")


def test_read_keeps_bytes_that_are_not_text(bench: Bench) -> None:
    bench.put("latin.txt", b"caf\xe9\n")
    assert bench("read", path="latin.txt") == "caf\udce9"


def test_read_tells_an_empty_file_from_a_missing_one(bench: Bench) -> None:
    bench.put("empty.py", "")
    assert bench("read", path="empty.py") == "[empty]"
    assert bench.refused("read", path="gone.py") == (
        "UnexpectedEnvironment",
        "error: gone.py: no such file or directory",
    )


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "a/../../x", "/"])
def test_file_tools_stay_in_the_workspace(bench: Bench, path: str) -> None:
    for name, rest in (("read", {}), ("write", {"text": "x"}), ("edit", {"old": "a", "new": "b"}), ("list", {})):
        error, text = bench.refused(name, path=path, **rest)
        assert error == "InvalidArguments" and "outside the workspace" in text


def test_read_refuses_folders_binaries_and_giants(bench: Bench) -> None:
    bench.put("blob", b"\x00\x01")
    bench.set("read", max_bytes=100)
    bench.put("giant", b"x" * 101)
    assert bench.refused("read", path=".")[0] == "UnexpectedEnvironment"
    assert bench.refused("read", path="blob") == ("UnexpectedEnvironment", "error: blob is a binary file")
    assert bench.refused("read", path="giant") == ("UnexpectedEnvironment", "error: giant is larger than 100 bytes")


def test_read_refuses_ranges_that_make_no_sense(bench: Bench) -> None:
    assert bench.refused("read", path="calc.py", start="3", end="2")[0] == "InvalidArguments"
    assert bench.refused("read", path="calc.py", start="0")[1] == "error: start is 0, below 1"
    assert bench.refused("read", path="calc.py", start="7") == (
        "UnexpectedEnvironment",
        "error: calc.py has 6 lines",
    )


@pytest.mark.parametrize("value", ["two", "1.5", "", "١", "1_0", "9" * 5000, "--1"])
def test_whole_numbers_are_plain_digits(bench: Bench, value: str) -> None:
    error, text = bench.refused("read", path="calc.py", start=value)
    assert error == "InvalidArguments" and text.endswith("not a whole number") and len(text) < 100


# edit


def test_edit_replaces_the_one_place(bench: Bench) -> None:
    assert bench("edit", path="calc.py", old="a - b", new="a + b") == "ok"
    assert bench.get("calc.py").decode() == SOURCE.replace("a - b", "a + b")


def test_edit_says_how_often_a_text_occurs(bench: Bench) -> None:
    error, text = bench.refused("edit", path="calc.py", old="return", new="yield")
    assert (error, text) == ("UnexpectedEnvironment", "error: old occurs 2 times (lines 2, 6); make it longer")
    assert bench.get("calc.py").decode() == SOURCE


def test_edit_counts_overlapping_places(bench: Bench) -> None:
    bench.put("a.txt", "aaa")
    assert "2 times" in bench.refused("edit", path="a.txt", old="aa", new="b")[1]


def test_edit_shows_the_nearest_line_after_a_miss(bench: Bench) -> None:
    error, text = bench.refused("edit", path="calc.py", old="    return add(b, a)", new="x")
    assert error == "UnexpectedEnvironment"
    assert text == ("error: old is not in calc.py; nearest, line 6:\ndef twice(a):\n    return add(a, a)\n")


def test_edit_tells_when_only_blanks_differ(bench: Bench) -> None:
    text = bench.refused("edit", path="calc.py", old="\treturn a - b", new="x")[1]
    assert "blanks or the lines after it differ, line 2:\ndef add(a, b):\n    return a - b\n" in text


def test_edit_says_nothing_of_lines_that_are_not_alike(bench: Bench) -> None:
    assert bench.refused("edit", path="calc.py", old="zzz qqq", new="x")[1] == "error: old is not in calc.py"
    assert bench.refused("edit", path="calc.py", old=" \n\n\n\n ", new="x")[1] == "error: old is not in calc.py"


def test_edit_keeps_line_ends_of_the_file(bench: Bench) -> None:
    bench.put("dos.py", b"one\r\ntwo\r\nthree\r\n")
    assert bench("edit", path="dos.py", old="one\ntwo", new="1\n2") == "ok"
    assert bench.get("dos.py") == b"1\r\n2\r\nthree\r\n"


def test_edit_refuses_what_changes_nothing(bench: Bench) -> None:
    assert bench.refused("edit", path="calc.py", old="", new="x")[0] == "InvalidArguments"
    assert bench.refused("edit", path="calc.py", old="a", new="a")[0] == "InvalidArguments"
    assert bench.refused("edit", path="gone.py", old="a", new="b")[0] == "UnexpectedEnvironment"


def test_edit_of_a_hostile_file_answers_soon(bench: Bench) -> None:
    bench.put("hostile.txt", ("ab" * 2000 + "\n") * 500)
    started = time.process_time()
    bench.refused("edit", path="hostile.txt", old="ba" * 30_000, new="x")
    assert time.process_time() - started < 2


# write


def test_write_makes_folders_and_ends_the_last_line(bench: Bench) -> None:
    assert bench("write", path="new/deep/a.py", text="x = 1") == "ok"
    assert bench.get("new/deep/a.py") == b"x = 1\n"
    bench.set("write", end_line=False, max_chars=6)
    bench("write", path="raw", text="x\udcff")
    assert bench.get("raw") == b"x\xff"
    assert bench.refused("write", path="raw", text="1234567")[0] == "InvalidArguments"


def test_write_cannot_replace_a_folder(bench: Bench) -> None:
    bench.put("pkg/a.py", "")
    assert bench.refused("write", path="pkg", text="x")[0] == "UnexpectedEnvironment"


# list and glob


@pytest.fixture
def tree(bench: Bench) -> Bench:
    for path in (
        "src/a.py",
        "src/deep/b.py",
        "src/deep/er/c.txt",
        "tests/test_a.py",
        ".git/x",
        "src/__pycache__/z.pyc",
    ):
        bench.put(path, "hello\n")
    (bench.sandbox.root / "empty").mkdir()
    return bench


def test_list_shows_files_sorted_and_leaves_caches_out(tree: Bench) -> None:
    assert tree("list").split("\n") == ["calc.py", "empty/", "src/a.py", "src/deep/", "tests/test_a.py"]
    assert tree("list", path="src/deep").split("\n") == ["src/deep/b.py", "src/deep/er/c.txt"]
    tree.set("list", max_entries=2, depth=1)
    assert tree("list").split("\n") == ["calc.py", "empty/", "[2 more]"]
    assert tree("list", path="empty") == "[nothing]"


def test_list_refuses_what_is_no_folder(tree: Bench) -> None:
    assert tree.refused("list", path="calc.py")[1] == "error: calc.py is a file, not a folder"
    assert tree.refused("list", path="gone")[0] == "UnexpectedEnvironment"
    assert tree.refused("list", path="a\0b") == ("InvalidArguments", "error: a path cannot hold a NUL byte")


def test_list_survives_odd_names(bench: Bench) -> None:
    bench.put("-rf", "")
    bench.put("two\nlines", "")
    bench.put(b"\xff".decode("utf-8", "surrogateescape"), "")
    assert bench("list") == "-rf\ncalc.py\ntwo\nlines\n\udcff"


def test_glob_finds_names_at_any_depth_and_paths_exactly(tree: Bench) -> None:
    assert tree("glob", pattern="*.py").split("\n") == ["calc.py", "src/a.py", "src/deep/b.py", "tests/test_a.py"]
    assert tree("glob", pattern="src/*.py") == "src/a.py"
    assert tree("glob", pattern="src/**/*.py").split("\n") == ["src/a.py", "src/deep/b.py"]
    assert tree("glob", pattern="**").count("\n") == 4
    assert tree("glob", pattern="*.txt", path="src/deep") == "src/deep/er/c.txt"
    assert tree("glob", pattern="*.md") == "[nothing]"
    assert tree.refused("glob", pattern="")[0] == "InvalidArguments"


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("**/b", "b", True),
        ("**/b", "a/x/b", True),
        ("a/**/b", "a/b", True),
        ("a/**/**/b", "a/c/d/b", True),
        ("a/**", "a/b/c", True),
        ("a/**", "a", False),
        ("a/*", "a/b/c", False),
        ("[ab]?", "x/a1", True),
        ("./a/b", "a/b", True),
        ("a/B", "a/b", False),
    ],
)
def test_glob_patterns(pattern: str, path: str, expected: bool) -> None:
    assert matches(_parts(pattern), path.split("/")) is expected


def test_no_glob_pattern_takes_long() -> None:
    started = time.process_time()
    assert not matches(_parts("/".join(["**"] * 60 + ["*a" * 60 + "b"])), ["a" * 250] * 60)
    assert time.process_time() - started < 2


# grep


def test_grep_shows_lines_with_path_and_number(tree: Bench) -> None:
    tree.put("src/z.py", "return 12\n" + "x" * 300 + "7\n")
    assert tree("grep", pattern=r"return \d+").split("\n") == ["src/z.py:1:return 12"]
    assert (
        tree("grep", pattern="return", path="calc.py") == "calc.py:2:    return a - b\ncalc.py:6:    return add(a, a)"
    )
    assert tree("grep", pattern="hello", files="*.txt") == "src/deep/er/c.txt:1:hello"
    assert tree("grep", pattern="hello").split("\n")[0] == "src/a.py:1:hello"
    assert tree("grep", pattern="x7$").endswith("x...")
    assert tree("grep", pattern="nowhere") == "[nothing]"
    tree.set("grep", max_lines=1)
    assert tree("grep", pattern="hello") == "src/a.py:1:hello\n[3 more]"


def test_grep_errors_have_their_classes(tree: Bench) -> None:
    error, text = tree.refused("grep", pattern="(open")
    assert error == "InvalidArguments" and "not a regular expression: Unmatched (" in text
    assert tree.refused("grep", pattern="x", path="gone")[0] == "UnexpectedEnvironment"
    assert tree.refused("grep", pattern="")[0] == "InvalidArguments"


def test_grep_treats_the_pattern_as_a_pattern_only(tree: Bench) -> None:
    for pattern in ("--help", "-r", "$(touch hacked)", "`touch hacked`", "'; touch hacked; '"):
        assert tree("grep", pattern=pattern) == "[nothing]"
    tree("grep", pattern="x", files="$(touch hacked)")
    assert not (tree.sandbox.root / "hacked").exists()


def test_grep_stops_a_catastrophic_pattern(bench: Bench) -> None:
    bench.put("long.txt", "a" * 20_011 + "b\n")
    bench.set("grep", seconds=0.3)
    error, _ = bench.refused("grep", pattern=r"^(a+)\1+b$")
    assert error == "Timeout"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"\d+", "[0-9]+"),
        (r"[\d.]+\D", "[0-9.]+[^0-9]"),
        (r"[]\d]", "[]0-9]"),
        (r"[^]\d]\d", "[^]0-9][0-9]"),
        (r"\\d", r"\\d"),
        (r"\bx\w", r"\bx\w"),
        ("a\\", "a\\"),
    ],
)
def test_grep_knows_digits(pattern: str, expected: str) -> None:
    assert translate(pattern) == expected


# run


def test_run_shows_both_streams_in_order_and_the_exit_code(bench: Bench) -> None:
    assert bench("run", command="echo one; echo two >&2; echo three") == "one\ntwo\nthree"
    assert bench("run", command="echo no; exit 3") == "no\n[exit 3]"
    assert bench("run", command="true") == "[exit 0]"
    assert bench("run", command="kill -9 $$") == "[ended by signal 9]"


def test_run_takes_the_command_whole(bench: Bench) -> None:
    assert bench("run", command="cat <<'X'\n$HOME \"'\\\nX\nexit 0") == "$HOME \"'\\"
    assert "unexpected" in bench("run", command="echo 'open")
    assert bench("run", command="[[ a == a ]] && echo bash") == "bash"


def test_run_carries_the_folder_and_nothing_else(bench: Bench) -> None:
    bench.put("sub/deep/x", "")
    assert bench("run", command="cd sub && x=1 && export y=2") == "[exit 0]"
    assert bench("run", command="ls; echo [$x$y]") == "deep\n[]"
    assert bench("run", command="cd deep; exit 4") == "[exit 4]"
    assert bench("run", command="basename $PWD") == "deep"
    assert bench("run", command="cd ../..; rm -r sub") == "[exit 0]"
    bench.context.directory = str(bench.sandbox.root / "sub")
    gone = bench("run", command="basename $PWD")
    assert "sub: No such file or directory" in gone and gone.endswith("workspace")
    assert bench("read", path="calc.py")  # other tools start from the workspace


def test_run_environment_is_quiet(bench: Bench) -> None:
    assert bench("run", command="echo $PAGER $TZ $LC_ALL $PYTHONHASHSEED $PYTHONDONTWRITEBYTECODE") == (
        "cat UTC C.UTF-8 0 1"
    )


def test_run_stops_at_its_time_limit(bench: Bench) -> None:
    bench.set("run", seconds=0.3)
    started = time.monotonic()
    assert bench.refused("run", command="sleep 60") == ("Timeout", "[stopped: out of time]")
    bench.set("run", max_seconds=0.3)
    assert bench.refused("run", command="sleep 60", seconds="500")[0] == "Timeout"
    assert time.monotonic() - started < 30


def test_run_has_no_more_time_than_the_rollout(bench: Bench) -> None:
    bench.context.deadline = time.monotonic() + 0.3
    assert bench.refused("run", command="sleep 60")[0] == "Timeout"


def test_run_cuts_long_output_in_the_middle(bench: Bench) -> None:
    bench.set("run", max_chars=40)
    assert bench("run", command="seq 1 1000") == "1\n2\n3\n4\n5\n6\n7\n8\n9\n[987 lines left out]\n997\n998\n999\n1000"


def test_run_leaves_out_how_long_tests_took(bench: Bench) -> None:
    lines = [
        "Ran 3 tests in 0.002s",
        "==== 2 passed, 1 failed in 1.23s ====",
        "1 passed in 75.20s (0:01:15)",
        "ready in 5s",
    ]
    quoted = " ".join(f"'{line}'" for line in lines)
    assert bench("run", command=f"printf '%s\\n' {quoted}").split("\n") == [
        "Ran 3 tests",
        "==== 2 passed, 1 failed ====",
        "1 passed",
        "ready in 5s",
    ]
    bench.set("run", hide_times=False)
    assert bench("run", command="echo 'Ran 1 test in 0.1s'") == "Ran 1 test in 0.1s"


def test_run_falls_back_to_sh_and_says_when_there_is_no_shell(bench: Bench) -> None:
    bench.set("run", shell="no-such-shell")
    assert bench("run", command="cd / && echo hi; exit 2") == "hi\n[exit 2]"
    assert bench.context.directory == "/"
    assert bench("run", command="nonsense-command").endswith("[exit 127]")
    assert bench("run", command="echo 'open").endswith("[exit 2]")


def test_run_refuses_what_no_command_line_can_hold(bench: Bench) -> None:
    assert bench.refused("run", command="a\0b")[0] == "InvalidArguments"
    assert bench.refused("run", command="x" * 200_000)[0] == "InvalidArguments"


# todo and finish


def test_todo_counts_and_keeps_the_list(bench: Bench) -> None:
    assert bench("todo", items="- [x] read\n[~] mend\n\n[ ] test\n* [-] dream") == "1 open, 1 begun, 1 done, 1 dropped"
    assert bench.context.state["todo"][1] == ("begun", "mend")
    assert bench("todo", items="") == "none"
    assert bench.refused("todo", items="just do it")[0] == "InvalidArguments"
    bench.set("todo", max_items=1)
    assert bench.refused("todo", items="[ ] a\n[ ] b")[0] == "InvalidArguments"


def test_finish_ends_and_leaves_the_rest_undone(bench: Bench) -> None:
    calls = [Call("list"), Call("finish", {"message": "done"}), Call("write", {"path": "late", "text": "x"})]
    assert [seen.ends for seen in bench.all(*calls)] == [False, True]
    assert not (bench.sandbox.root / "late").exists()


# calls in general


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("reed", {}, "there is no tool 'reed'; did you mean read?"),
        ("Bash", {}, "there is no tool 'Bash'; there are read, edit, write, list, glob, grep, run, todo, finish"),
        ("read", {}, "read needs path: file"),
        ("read", {"path": "a", "strat": "1"}, "read takes path, start, end, not 'strat'; did you mean start?"),
        (
            "finish",
            {"x\n\x1b" * 99: ""},
            "finish takes message, not 'x\\n\\x1bx\\n\\x1bx\\n\\x1bx\\n\\x1bx\\n\\x1bx...",
        ),
        ("", {}, "there is no tool ''; there are read"),
    ],
)
def test_wrong_calls_are_explained(bench: Bench, name: str, arguments: dict[str, str], told: str) -> None:
    error, text = bench.refused(name, **arguments)
    assert error == "InvalidArguments" and text.startswith(f"error: {told}")


class Probe(Tool):
    """Does what a test says."""

    name = "probe"
    description = "does what a test says"
    arguments = (Argument("loud", "or not", "flag", required=False),)
    reads_only = True

    def __init__(self, then: Any) -> None:
        super().__init__(None)
        self.then = then

    async def call(self, arguments: Any, context: ToolContext) -> Observation:
        if isinstance(self.then, Exception):
            raise self.then
        return await self.then(arguments)


def test_error_classes_that_only_a_service_or_a_person_causes(bench: Bench) -> None:
    bench.tools["probe"] = Probe(ToolError("ProviderError", "the index is down"))
    assert bench.refused("probe") == ("ProviderError", "error: the index is down")
    bench.tools["probe"] = Probe(TimeoutError())
    assert bench.refused("probe") == ("Timeout", "error: probe took too long")

    async def no(call: Call) -> bool:
        return call.name != "write"

    seen = bench.all(Call("write", {"path": "x", "text": "x"}), Call("list"), approve=no)
    assert [one.error for one in seen] == ["UserAborted", None]
    assert not (bench.sandbox.root / "x").exists()


def test_anything_else_that_a_tool_raises_is_a_bug_of_the_harness_and_no_way_out(bench: Bench) -> None:
    bench.tools["probe"] = Probe(KeyError("path"))
    assert bench.refused("probe") == ("HarnessBug", "error: probe failed")

    async def broken(call: Call) -> bool:
        raise KeyError("terminal")

    with pytest.raises(HarnessFailure, match="nobody could be asked: KeyError: 'terminal'"):
        bench.all(Call("probe"), approve=broken)


@pytest.mark.parametrize("name", ["read", "write", "list", "grep", "run"])
def test_a_broken_sandbox_is_no_observation(bench: Bench, name: str) -> None:
    bench.sandbox.failure = SandboxFailure("died", "the sandbox died")
    given = {
        "read": {"path": "x"},
        "write": {"path": "x", "text": ""},
        "grep": {"pattern": "x"},
        "run": {"command": ":"},
    }
    with pytest.raises(SandboxFailure):
        bench(name, **given.get(name, {}))


def test_flags_are_true_or_false(bench: Bench) -> None:
    async def answer(arguments: Any) -> Observation:
        return Observation(repr(arguments))

    bench.tools["probe"] = Probe(answer)
    assert bench("probe", loud=" TRUE\n") == "{'loud': True}"
    assert bench("probe") == "{}"
    assert bench.refused("probe", loud="yes")[1] == "error: loud is 'yes', not true or false"


def test_calls_that_only_read_run_at_the_same_time(bench: Bench) -> None:
    running = 0
    most = 0
    gate = asyncio.Event()

    async def wait(arguments: Any) -> Observation:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            gate.set()
        await asyncio.wait_for(gate.wait(), 60)
        return Observation(str(arguments))

    bench.tools["probe"] = Probe(wait)
    flags = ["true", "false", "true"]
    seen = bench.all(*(Call("probe", {"loud": flag}) for flag in flags))
    assert most == 3
    assert [one.text for one in seen] == [f"{{'loud': {flag.title()}}}" for flag in flags]


def test_calls_that_write_run_in_their_order(bench: Bench) -> None:
    calls = [Call("write", {"path": "log", "text": "1"}), Call("read", {"path": "log"})]
    calls += [Call("edit", {"path": "log", "old": "1", "new": "2"}), Call("read", {"path": "log"})]
    assert [seen.text for seen in bench.all(*calls)] == ["ok", "1", "ok", "2"]


def test_a_failure_stops_the_calls_beside_it(bench: Bench) -> None:
    ended = []

    async def forever(arguments: Any) -> Observation:
        if arguments["loud"]:
            await asyncio.sleep(0)
            raise SandboxFailure("died", "boom")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)
        raise AssertionError

    bench.tools["probe"] = Probe(forever)
    with pytest.raises(SandboxFailure, match="boom"):
        bench.all(Call("probe", {"loud": "false"}), Call("probe", {"loud": "true"}))
    assert ended == [True]


# the table


def test_tools_are_built_from_a_recipe() -> None:
    tools = build_tools([{"use": "read", "max_lines": 3}, {"use": "finish"}])
    assert list(tools) == ["read", "finish"] and tools["read"].settings.max_lines == 3


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ([{}], r"harness.tools\[0\] must say which tool it is"),
        ([{"use": "raed"}], "no tool is called 'raed'; did you mean read"),
        (
            [{"use": "read", "max_line": 3}],
            "unknown key harness.tools.0..max_line; did you mean harness.tools.0..max_lines",
        ),
        ([{"use": "read", "max_lines": 0}], "greater than or equal to 1"),
        ([{"use": "read"}, {"use": "read"}], r"harness.tools\[1\]: two tools are called 'read'"),
    ],
)
def test_mistakes_in_a_recipe_are_named(wanted: Any, told: str) -> None:
    with pytest.raises(EtudeError, match=told):
        build_tools(wanted)


def test_a_file_that_holds_no_tool_is_refused(tmp_path: Any) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import pydantic\nfrom etude.harness.tools.base import Tool\n"
        "class Plain:\n    class Settings(pydantic.BaseModel): pass\n    def __init__(self, settings): pass\n"
        "class Nameless(Tool): pass\n"
    )
    with pytest.raises(EtudeError, match="is not a tool"):
        build_tools([{"use": f"{file}:Plain"}])
    with pytest.raises(EtudeError, match="lacks its name"):
        build_tools([{"use": f"{file}:Nameless"}])


# cutting


def test_shorten_keeps_head_and_tail() -> None:
    assert shorten("abc", 3) == "abc"
    assert shorten("a\nb\nc\nd\ne\nf", 6) == "a\n[4 lines left out]\nf"
    assert shorten("x" * 100, 10) == "xxxxx[90 characters left out]xxxxx"
    assert shorten("ab\n" + "x" * 50 + "\ncd", 12) == "ab\n[1 line left out]\ncd"
    assert shorten("abc", 1) == "[2 characters left out]c"
    assert first_lines(["a", "b"], 1, True) == "a\n[1 more]"
    assert first_lines(["a"], 1, False) == "a\n[many more]"
