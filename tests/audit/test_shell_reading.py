"""Shell text and Python code, read as what they do."""

from __future__ import annotations

import random

import pytest

from etude.audit.python_actions import file_actions, parse, shapes
from etude.audit.shell_commands import Command, read_commands


def programs(text: str) -> list[list[str]]:
    return [command.words for command in read_commands(text)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ls -la; pwd", [["ls", "-la"], ["pwd"]]),
        ("a && b || c | d", [["a"], ["b"], ["c"], ["d"]]),
        ("cat 'a b' \"c d\" e\\ f", [["cat", "a b", "c d", "e f"]]),
        ("A=1 timeout 20 python -m unittest 2>&1 | tail -5", [["python", "-m", "unittest"], ["tail", "-5"]]),
        ("bash -c 'git log -p'", [["bash", "-c", "git log -p"], ["git", "log", "-p"]]),
        ("cat $(git ls-files)", [["git", "ls-files"], ["cat", "$(git ls-files)"]]),
        ("if [ -f x ]; then cat x; fi # cat y", [["[", "-f", "x", "]"], ["cat", "x"]]),
        ("sudo nohup env A=1 rm x", [["rm", "x"]]),
        ("find . -name '*.pyc' -exec strings {} \\;", [["find", ".", "-name", "*.pyc", "-exec", "strings", "{}", ";"]]),
    ],
)
def test_simple_commands_are_found_wherever_they_stand(text: str, words: list[list[str]]) -> None:
    assert programs(text)[: len(words)] == words


def test_here_documents_redirections_and_background_belong_to_their_command() -> None:
    first, second, third = read_commands("cat > a.py <<'EOF'\nx = '$y'\nEOF\nnohup ./serve >log 2>&1 &\nwc -l < a.py")
    assert (first.words, first.writes, first.text) == (["cat"], ["a.py"], "x = '$y'\n")
    assert second.background and second.detached and second.writes == ["log"]
    assert (third.words, third.reads) == (["wc", "-l"], ["a.py"])


def test_what_find_would_name_is_a_pattern() -> None:
    found = read_commands("find src -name '*.pyc' | xargs strings")
    assert found[-1].words == ["strings", "src/**/*.pyc"]


def test_options_are_seen_joined_and_with_values() -> None:
    command = Command(["gdb", "-qp", "1", "--pid=3"])
    assert command.has("-p") and command.has("--pid") and not command.has("-x", "--core")


def test_any_text_can_be_read() -> None:
    rng = random.Random(1)
    pieces = [*"'\"`$(){}|&;<>\\ \n#=", "<<EOF\n", "EOF", "$(", "cat ", "a", "~/x", "2>&1", "for x in y; do"]
    for _ in range(3000):
        read_commands("".join(rng.choice(pieces) for _ in range(rng.randint(0, 40))))
    read_commands("$(" * 5000)
    read_commands("bash -c " * 3000)


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("open('a/b.txt').read()", ("read", "a/b.txt")),
        ("open('a/b.txt', mode='w')", ("write", "a/b.txt")),
        ("pathlib.Path('/x/y').write_text('z')", ("write", "/x/y")),
        ("(pathlib.Path('/x') / 'y').unlink()", ("delete", "/x/y")),
        ("os.symlink('/etc/passwd', 'here')", ("link", "here")),
        ("for p in pids: open(f'/proc/{p}/mem')", ("read", "/proc/*/mem")),
        ("glob.glob('.git/objects/*')", ("list", ".git/objects/*")),
        ("subprocess.run(['git', 'log', '-p'])", ("run", "git log -p")),
        ("os.system('cat /tests/a')", ("run", "cat /tests/a")),
        ("shutil.copy('/a/b', 'c')", ("read", "/a/b")),
        ("kept = pathlib.Path.home() / '.cache' / 'x'\nkept.write_text('z')", ("write", "~/.cache/x")),
        ("top = '/x'\nopen(f'{top}/y')", ("read", "/x/y")),
    ],
)
def test_code_is_read_as_what_it_does_to_files(code: str, wanted: tuple[str, str]) -> None:
    tree = parse(code)
    assert tree is not None
    assert wanted in [(action.how, action.path) for action in file_actions(tree)]


def test_a_name_that_stands_for_two_texts_stands_for_none_and_long_texts_are_not_put_together() -> None:
    longer = "".join(f"a{n + 1} = a{n} + a{n}\n" for n in range(200))
    for code in ("p = 'a/b'\np = 'c/d'\nopen(p)", f"a0 = 'x/y'\n{longer}open(a200)"):
        tree = parse(code)
        assert tree is not None
        assert "read" not in [action.how for action in file_actions(tree)]


def test_equal_code_has_one_shape_wherever_it_stands() -> None:
    one, other = parse("f(a + 1)\n"), parse("if x:\n    y = f(a + 1)\n    g(a + 2)\n")
    assert one is not None and other is not None
    call = one.body[0].value  # type: ignore[attr-defined]
    assert shapes(one)[id(call)] in shapes(other).values()
    assert shapes(one)[id(one)] not in shapes(other).values()
