"""What a blind view shows, in order for rules: commands, file accesses, code that was run, sources that were changed.

Paths are relative to the workspace, or absolute, or begin with `~`; a pattern stays a pattern. Decides nothing.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice

from etude.audit.blind_view import BlindView
from etude.audit.bounds import MOST_ACTIONS, MOST_VARIABLES, Budget, readable
from etude.audit.python_actions import (
    FileAction,
    How,
    actions_of,
    file_actions,
    looks_like_path,
    name_of,
    parse,
    shapes,
    texts_by_name,
)
from etude.audit.shell_commands import SHELLS, Command, found_by, read_commands
from etude.audit.wanted_results import Case, wanted_results

LONGEST = 4_000  # characters of a word that variables are put into: each could double it
ROOTS = ("/workspace", "/app")  # where a workspace lies in a sandbox
TEST_PATH = re.compile(r"(^|/)(tests?|testing|__tests__|spec)/|(^|/)(test_[^/]*|[^/]*_test|conftest)\.py$")
PYTHON = re.compile(r"python[\d.]*$|pypy[\d.]*$")
_VIEWER = re.compile(  # programs that show what is in the files they are given
    r"cat|tac|head|tail|less|more|nl|strings|xxd|od|hexdump|awk|sort|uniq|cut|wc|diff|cmp|comm|paste|tr|rev|file|stat|zcat"
    r"|gunzip|bat|jq|base64|source|\.|sqlite3|objdump|nm|readelf|[efzr]?grep|rg|ag|sed|perl|unzip|tar|zipinfo|7z|readlink"
    r"|md5sum|sha256sum|vim?|nano|ed"
)
# Programs that do the same to every file they are given.
_TO_ALL: dict[str, How] = {
    **dict.fromkeys(("rm", "unlink", "shred", "rmdir", "truncate"), "delete"),
    **dict.fromkeys(("ls", "tree", "du", "test", "[", "exa"), "list"),
    "touch": "write",
}
_LAYOUT = {"src", "lib", "source", "sources", "python", "packages"}  # folders that packages lie in
_SYSTEM = {"usr", "bin", "etc", "opt", "var", "tmp", "home", "root", "proc", "dev"}
_PATTERN_FIRST = {"grep", "egrep", "fgrep", "rg", "ag", "zgrep", "sed", "awk", "perl", "jq", "tr"}


@dataclass(frozen=True)
class Access:
    """A file that was touched by a tool, a command or code in a command."""

    turn: int
    how: How
    path: str
    by: str = ""  # the tool or program
    text: str = ""  # what was written, as far as it is known; of a link, what it leads to
    output: str = ""  # what the call gave back


@dataclass(frozen=True)
class CommandRun:
    """A simple command."""

    turn: int
    command: Command
    output: str = ""  # of the whole call
    folder: str = ""  # where it ran; nothing is the workspace


@dataclass(frozen=True)
class Script:
    """Python code that a command ran."""

    turn: int
    code: str
    tree: ast.Module | None
    output: str = ""


@dataclass(frozen=True)
class Source:
    """A Python file that the agent made or changed, as far as its text is known."""

    path: str
    before: str
    after: str

    @cached_property
    def tree(self) -> ast.Module | None:
        return parse(self.after)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All of its nodes; none where it is not Python."""
        return list(ast.walk(self.tree)) if self.tree is not None else []

    def new(self, node: ast.AST) -> bool:
        """Whether nothing equal to it was there before."""
        return id(node) in self._fresh

    @cached_property
    def fresh(self) -> list[ast.AST]:
        """The nodes that are new."""
        return [node for node in self.nodes if id(node) in self._fresh]

    @cached_property
    def bindings(self) -> list[ast.AST]:
        """All nodes that give something a name: imports, assignments, loops."""
        kinds = (ast.Import, ast.ImportFrom, ast.Assign, ast.For)
        return [node for node in self.nodes if isinstance(node, kinds)]

    @cached_property
    def _fresh(self) -> set[int]:
        if self.tree is None:
            return set()
        lines = _lines(self.after)
        try:
            known, same = _known(self.before), _statements(self.before)
            # Most of a file is as it was, word for word, and need not be looked into.
            changed = [node for node in self.tree.body if _text(node, lines) not in same]
            found = {at for node in changed for at, shape in shapes(node).items() if shape not in known}
            return found | {id(self.tree)} if found else found
        except RecursionError:
            return {id(node) for node in self.nodes}

    @cached_property
    def actions(self) -> list[FileAction]:
        """What its new code would do to files and programs."""
        known = texts_by_name(self.tree) if self.tree is not None else {}
        return [action for node in self.fresh for action in actions_of(node, known)]

    @cached_property
    def called(self) -> set[str]:
        """Dotted names that its new code calls."""
        return {name_of(node.func) for node in self.fresh if isinstance(node, ast.Call)}

    def straight(self, functions: Sequence[str]) -> list[ast.stmt]:
        """Statements that always run: of the module, and of those functions, without what stands under a condition."""
        found = list(self.tree.body) if self.tree is not None else []
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in functions:
                found += node.body
        return found

    @cached_property
    def added(self) -> list[str]:
        """Lines that were not there before, in order."""
        old = set(self.before.splitlines())
        return [line for line in self.after.splitlines() if line not in old]


class Evidence:
    """Everything that rules look at."""

    def __init__(self, view: BlindView) -> None:
        self.budget = Budget()
        self.view = view = readable(view, self.budget)
        self.commands: list[CommandRun] = []
        self.accesses: list[Access] = []
        self.scripts: list[Script] = []
        self.written: dict[str, str] = {}  # path -> text as the agent left it, as far as it is known
        self.made: dict[str, int] = {}  # path -> the turn in which the agent itself made it
        self._folder, folders = "", dict[int, str]()  # each agent's own
        self._variables: dict[str, str] = {}
        for number, turn in enumerate(view.turns):
            self._folder = folders.get(turn.agent, "")
            for call in turn.calls:
                self._take(number, call.name, dict(call.arguments), call.result, call.failed)
            folders[turn.agent] = self._folder
        for path, text in view.changed.items():
            if text is not None:
                self.written[path] = text
            self.made.setdefault(path, 0)

    # What rules ask

    @cached_property
    def sources(self) -> list[Source]:
        """Changed Python files that are not tests, or that the task is about."""
        return [source for source in self.python_files if not is_test(source.path) or source.path in self.modules]

    @cached_property
    def python_files(self) -> list[Source]:
        """Changed Python files of the workspace."""
        found = []
        view = self.view
        gone = [path for path, text in view.changed.items() if text is None and path.endswith(".py")]
        for path, text in self.written.items():
            if path.endswith(".py") and not path.startswith(("/", "~")):
                # What lies in a new file may have lain in one that is gone.
                places = [path] if path in view.names else gone
                before = "\n".join(view.workspace.get(each, "") for each in places)
                if text != before:
                    found.append(Source(path, before, text))
        return found

    @cached_property
    def touched(self) -> dict[str, str]:
        """Files of the workspace that were there before and are not what they were: path -> how."""
        found = {path: "deleted" if text is None else "changed" for path, text in self.view.changed.items()}
        found |= dict.fromkeys(self.view.left_behind, "changed or deleted")
        return {path: how for path, how in found.items() if path in self.view.names}

    @cached_property
    def package(self) -> str:
        """The package that the task is about; nothing where its name could be any folder's."""
        parts = self.modules[0].split("/") if self.modules else [""]
        named = next((part for part in parts if part not in _LAYOUT), "").removesuffix(".py")
        return "" if named in _SYSTEM else named

    @cached_property
    def modules(self) -> list[str]:
        """Files with something deleted."""
        return list(dict.fromkeys(symbol.partition(":")[0] for symbol in self.view.deleted))

    @cached_property
    def functions(self) -> list[str]:
        """Names that were deleted, without their classes."""
        return [symbol.partition(":")[2].rpartition(".")[2] for symbol in self.view.deleted]

    @cached_property
    def cases(self) -> dict[str, list[Case]]:
        """Function -> what assertions in the workspace's tests want of it."""
        return wanted_results(self.view.workspace, self.functions)

    @cached_property
    def words(self) -> list[tuple[int, str]]:
        """What the agent said in words: thoughts, messages, the summary it finished with."""
        found: list[tuple[int, str]] = []
        for number, turn in enumerate(self.view.turns):
            found += [(number, text) for text in (turn.thinking, turn.said) if text]
            found += [(number, call.arguments.get("message", "")) for call in turn.calls if call.name == "finish"]
        return found

    @cached_property
    def ran_tests(self) -> bool:
        return any(is_test_run(run.command) for run in self.commands) or any(
            re.search(r"unittest|pytest", action.path)
            for script in self.scripts
            if script.tree is not None
            for action in file_actions(script.tree)
            if action.how == "run"
        )

    def reads(self) -> Iterator[Access]:
        """Accesses that look into a file which the agent did not make itself."""
        for access in self.accesses:
            if access.how in ("read", "named") and not self.is_own(access.path, access.turn):
                yield access

    def is_own(self, path: str, turn: int) -> bool:
        """Whether the agent itself had made this file, or the folder it lies in, by then."""
        # A file that was there keeps its origin, whatever the agent wrote into it.
        if path in self.view.names:
            return False
        return any(made <= turn and (path == own or path.startswith(f"{own}/")) for own, made in self.made.items())

    # Reading the calls

    def _take(self, turn: int, tool: str, given: dict[str, str], result: str, failed: bool) -> None:
        path = self._place(posixpath.join(ROOTS[0], given.get("path", ".")))  # tools know no `cd`
        if tool in ("run", "background"):
            folder = self._folder
            self._run(turn, given.get("command", ""), result)
            self._folder = self._folder if tool == "run" else folder
        elif tool in ("read", "delete"):
            how: How = "read" if tool == "read" else "delete"
            self.accesses.append(Access(turn, how, path, tool, output=result))
        elif tool in ("list", "glob"):
            pattern = given.get("pattern", "")
            self.accesses.append(Access(turn, "list", f"{path}/{pattern}".rstrip("/"), tool, output=result))
        elif tool == "grep":
            self.accesses.append(Access(turn, "list", path, tool, output=result))
        elif tool == "write" and not failed:
            self._wrote(turn, path, given.get("text", ""), tool)
        elif tool == "edit" and not failed:
            before = self.written.get(path, self.view.workspace.get(path, ""))
            old, new = given.get("old", ""), given.get("new", "")
            self._wrote(turn, path, before.replace(old, new, 1) if old in before else before + new, tool)

    def _wrote(self, turn: int, path: str, text: str, by: str, output: str = "", more: bool = False) -> None:
        self.accesses.append(Access(turn, "write", path, by, text, output))
        self.made.setdefault(path, turn)
        before = self.written.get(path, self.view.workspace.get(path, "")) if more else ""
        self.written[path] = before + text

    def _run(self, turn: int, text: str, output: str, depth: int = 0) -> None:
        commands = read_commands(text)
        for command in commands[: self.budget.take_commands(turn, len(commands))]:
            self._bind(command)
            self.commands.append(CommandRun(turn, command, output, self._folder))
            for how, path, said in self._files(command):
                if how == "write":
                    self._wrote(turn, path, said, command.program, output, more=">>" in command.source)
                else:
                    self.accesses.append(Access(turn, how, path, command.program, said, output))
            if depth < 3 and (script := self._shell_script(command)):
                folder = self._folder
                self._run(turn, script, output, depth + 1)
                self._folder = folder
            code = self._code(command)
            # Code can run commands that run code: three levels are more than anybody writes by hand.
            if code and depth < 3:
                self._script(turn, code, output, depth)

    def _script(self, turn: int, code: str, output: str, depth: int) -> None:
        if not self.budget.take_script(turn, code):
            return
        tree = parse(code)
        self.scripts.append(Script(turn, code, tree, output))
        for action in islice(file_actions(tree) if tree is not None else _named(code), MOST_ACTIONS):
            if action.how == "run":
                self._run(turn, action.path, output, depth + 1)
            elif action.how == "write":
                self._wrote(turn, self._place(action.path), action.other, "python", output)
            else:
                self.accesses.append(Access(turn, action.how, self._place(action.path), "python", action.other, output))

    def _bind(self, command: Command) -> None:
        """Puts the values of variables into a command's words, as far as they were seen."""
        if command.program == "for" and len(command.words) > 3:
            self._variables[command.words[1]] = " ".join(command.words[3:])
        if not command.words or command.program == "export":
            self._variables |= command.variables
            self._variables = dict(list(self._variables.items())[-MOST_VARIABLES:])

        def value(text: str) -> str:
            for name, known in self._variables.items():
                if "$" in text and len(text) < LONGEST:
                    text = re.sub(rf"\$\{{?{re.escape(name)}\b\}}?", known.replace("\\", r"\\"), text)
            return text

        if self._variables and command.program != "for":
            command.words = [value(word) for word in command.words]
            command.reads = [value(word) for word in command.reads]
            command.writes = [value(word) for word in command.writes]
        if command.program == "cd" and command.operands:
            self._folder = self._place(command.operands[0])
            self._folder = "" if self._folder == "." else self._folder

    def _place(self, path: str) -> str:
        """A path as rules want it."""
        path = re.sub(r"^(\$HOME|\$\{HOME\}|/home/[a-z]+|/root)(?=/|$)", "~", path.strip())
        if path.startswith(("~", "$", "`")):
            return path
        whole = posixpath.normpath(posixpath.join("/workspace", self._folder, path)) if path else "/workspace"
        for root in ROOTS:
            if whole == root:
                return "."
            if whole.startswith(root + "/"):
                return whole[len(root) + 1 :]
        return whole

    def _code(self, command: Command) -> str:
        if not PYTHON.match(command.program):
            return ""
        if "-c" in command.arguments:
            return "".join(command.arguments[command.arguments.index("-c") + 1 :][:1])
        if command.operands and command.operands[0] != "-":
            return self.written.get(self._place(command.operands[0]), "") if "-m" not in command.arguments else ""
        return command.text

    def _shell_script(self, command: Command) -> str:
        """The text of a script that the agent wrote itself, where the command runs one."""
        by_shell = command.program in SHELLS and "-c" not in command.arguments
        path = self._place("".join(command.operands[:1] if by_shell else command.words[:1]))
        text = self.written.get(path, "") if path not in self.view.names else ""
        return text if by_shell or re.match(r"#!.*sh\b", text) else ""

    def _files(self, command: Command) -> Iterator[tuple[How, str, str]]:
        """What a command does to which files, and the text where it is known."""
        program = command.program
        operands = [self._place(word) for word in command.operands]
        said = command.text or (" ".join(command.operands) if program in ("echo", "printf") else "")
        if program == "printf":
            said = said.replace("\\n", "\n")
        for path in command.writes:
            if path != "/dev/null":
                yield "write", self._place(path), said
        for path in command.reads:
            yield "read", self._place(path), ""
        if program in ("sed", "perl") and any(re.match(r"-[a-zA-Z]*i|--in-place", word) for word in command.arguments):
            for path in operands[1:]:
                yield "write", path, " ".join(command.operands[:1])
        elif _VIEWER.fullmatch(program):
            skip = 1 if program in _PATTERN_FIRST and not command.has("-e", "-f", "--regexp", "--file") else 0
            for path in operands[skip:]:
                yield "read", path, ""
            if program == "tar":
                for path in operands[:1]:
                    yield "read", path, ""
        elif program == "tee":
            for path in operands:
                yield "write", path, " ".join(word for before in command.piped for word in before.operands)
        elif program in ("cp", "mv", "install", "rsync") and len(operands) > 1:
            target = operands[-1]
            for path in operands[:-1]:
                yield "read", path, ""
                if program == "mv":
                    yield "delete", path, ""
                into = f"{target}/{posixpath.basename(path)}" if target.endswith("/") or "." not in target else target
                known = self.written.get(path, self.view.workspace.get(path, ""))
                yield "write", into if into != target and program != "mv" else target, known
        elif program == "ln" and operands:
            there = command.operands[0]
            yield "link", operands[-1], self._place(there) if there.startswith(("/", "~")) else there
        elif program in _TO_ALL:
            for path in operands:
                yield _TO_ALL[program], path, ""
        elif program in ("chmod", "chown"):
            for path in operands[1:]:
                yield "mode", path, command.operands[0]
        elif PYTHON.match(program) and "-c" in command.arguments:
            for word in command.arguments[command.arguments.index("-c") + 2 :]:
                if looks_like_path(word):
                    yield "named", self._place(word), ""
        elif program == "find":
            yield "list", self._place(found_by(command)), ""
        elif program == "dd":
            for word in command.arguments:
                key, _, path = word.partition("=")
                if key in ("if", "of"):
                    yield "read" if key == "if" else "write", self._place(path), ""


def is_test(path: str) -> bool:
    return TEST_PATH.search(path) is not None


def is_test_run(command: Command) -> bool:
    """Whether a command runs tests."""
    words = " ".join(command.words)
    return bool(re.search(r"\b(pytest|py\.test|unittest|nosetests|tox|nox|doctest)\b", words)) or bool(
        re.search(r"\bmake\b.*\b(test|check)|(^|/)(run_?)?(tests?|check)\.sh\b|\btest_\w+\.py\b", words)
        and not _VIEWER.fullmatch(command.program)
    )


def _named(code: str) -> Iterator[FileAction]:
    """Paths in code that is not Python, or not whole."""
    for path in re.findall(r"['\"]([^'\"\s]*/[^'\"\s]*)['\"]", code):
        yield FileAction("named", path)


@lru_cache(maxsize=64)
def _statements(code: str) -> frozenset[str]:
    """The statements at the top of a module, as they are written."""
    tree, lines = parse(code), _lines(code)
    return frozenset(_text(node, lines) for node in tree.body) if tree is not None else frozenset()


def _lines(code: str) -> list[str]:
    """As the parser counts them: a form feed ends none."""
    return code.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _text(node: ast.stmt, lines: list[str]) -> str:
    return "\n".join(lines[node.lineno - 1 : node.end_lineno])


@lru_cache(maxsize=64)  # rollouts of a task begin with the same files
def _known(code: str) -> frozenset[int]:
    tree = parse(code)
    return frozenset(shapes(tree).values()) if tree is not None else frozenset()
