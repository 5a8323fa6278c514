"""Shell text as the simple commands in it: words, redirections, here-documents, and commands inside of commands.

An approximation for reading, not for running: variables stay as they are written, `$(...)` and backquotes are commands
of their own, and whatever cannot be read ends the reading. Nothing is ever expanded or executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from etude.audit.bounds import MOST_OF_A_CALL, MOST_SOURCE

DEEPEST = 6  # commands inside of commands
LONGEST = 200_000  # characters of one command that are read
SHELLS = {"sh", "bash", "dash", "zsh", "ksh"}
# Words that stand before a command without being one.
_PREFIXES = {"sudo", "nohup", "setsid", "time", "command", "exec", "builtin", "stdbuf", "nice", "ionice", "unbuffer"}
_KEYWORDS = {"if", "then", "else", "elif", "fi", "do", "done", "while", "until", "!", "{", "}", "case", "esac"}
_END = re.compile(r"\n|;|&&|\|\||[()]|&(?!>)")  # of a command
_REDIRECTION = re.compile(r"(\d*|&)(<<<|<<-?|>>|>\||>&|<&|>|<)")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")


@dataclass
class Command:
    """One simple command."""

    words: list[str] = field(default_factory=list)  # without quotes; the program first
    variables: dict[str, str] = field(default_factory=dict)  # set for it, or by it where there is no program
    reads: list[str] = field(default_factory=list)  # < file
    writes: list[str] = field(default_factory=list)  # > file
    text: str = ""  # here-document or here-string
    background: bool = False
    detached: bool = False  # nohup, setsid
    piped: list[Command] = field(default_factory=list)  # those before it in its pipe
    source: str = ""  # the whole line it is from

    @property
    def program(self) -> str:
        return self.words[0].rpartition("/")[2] if self.words else ""

    @property
    def arguments(self) -> list[str]:
        return self.words[1:]

    @property
    def operands(self) -> list[str]:
        """Arguments that are not options."""
        return [word for word in self.arguments if not word.startswith("-") or word == "-"]

    def has(self, *options: str) -> bool:
        """Whether one of these options is given, long ones with a value too, short ones joined too."""
        for word in self.arguments:
            for option in options:
                if word == option or (option.startswith("--") and word.startswith(option + "=")):
                    return True
                # `-xvf` holds -f; a long word with one dash is read so as well, which can only find too much.
                if len(option) == 2 and re.fullmatch(r"-[A-Za-z]+", word) and option[1] in word[1:]:
                    return True
        return False


def read_commands(text: str, depth: int = 0) -> list[Command]:
    """All simple commands of a shell text, those inside of others included, roughly in order."""
    if depth > DEEPEST:
        return []
    found: list[Command] = []
    try:
        source = text[:MOST_SOURCE]
        # One more than is read: whoever reads them learns that there are more.
        for command in islice(_Reader(text[:LONGEST], depth, found).commands(), MOST_OF_A_CALL + 1):
            command.source = source
            found.append(command)
            found.extend(_inner(command, depth))
            if len(found) > MOST_OF_A_CALL:
                break
    # What cannot be read ends the reading; what was found until then counts.
    except (IndexError, RecursionError):
        pass
    return found


def _inner(command: Command, depth: int) -> Iterator[Command]:
    """Commands that a command is given to run."""
    program, arguments = command.program, command.arguments
    if program in SHELLS:
        if "-c" in arguments:
            yield from read_commands(" ".join(arguments[arguments.index("-c") + 1 :][:1]), depth + 1)
        elif command.text:
            yield from read_commands(command.text, depth + 1)
    elif program == "eval":
        yield from read_commands(" ".join(arguments), depth + 1)
    elif program == "xargs":
        rest = arguments
        while rest and rest[0].startswith("-"):
            rest = rest[2:] if rest[0] in ("-I", "-n", "-P", "-d", "-L") else rest[1:]
        given = [found_by(before) for before in command.piped if before.program == "find"]
        yield Command([*rest, *given], piped=command.piped, source=command.source)
    elif program == "find":
        for flag in ("-exec", "-execdir", "-ok"):
            if flag in arguments:
                at = arguments.index(flag) + 1
                inner = [word for word in arguments[at:] if word not in (";", "\\;", "+")]
                yield Command([found_by(command) if word == "{}" else word for word in inner], source=command.source)


def found_by(find: Command) -> str:
    """What a `find` would name, as one pattern."""
    names = [
        after
        for word, after in zip(find.arguments, find.arguments[1:], strict=False)
        if word in ("-name", "-iname", "-path", "-wholename", "-ipath", "-regex")
    ]
    folder = find.arguments[0] if find.arguments and not find.arguments[0].startswith("-") else "."
    return f"{folder.rstrip('/')}/**/{names[0] if names else '*'}"


class _Reader:
    def __init__(self, text: str, depth: int, found: list[Command]) -> None:
        self.text, self.depth, self.found = text, depth, found
        self.at = 0
        self.waiting: list[tuple[Command, str]] = []  # here-documents that begin at the next line

    def commands(self) -> Iterator[Command]:
        command, pipe = Command(), list[Command]()
        while self.at < len(self.text):
            character = self.text[self.at]
            rest = self.text[self.at : self.at + 2]
            if character in " \t":
                self.at += 1
            elif character == "\\" and rest[1:2] == "\n":
                self.at += 2
            elif character == "#" and (self.at == 0 or self.text[self.at - 1] in " \t\n;"):
                end_of_line = self.text.find("\n", self.at)
                self.at = len(self.text) if end_of_line < 0 else end_of_line
            elif (end := _END.match(self.text, self.at)) is not None:
                self.at = end.end()
                if end[0] == "\n":
                    self._documents()
                command.background |= end[0] == "&"
                yield from self._end(command)
                command, pipe = Command(), []
            elif character == "|":
                self.at += 2 if rest == "|&" else 1
                pipe = [*pipe, command]
                yield from self._end(command)
                command = Command(piped=pipe)
            elif (found := _REDIRECTION.match(self.text, self.at)) is not None:
                self.at = found.end()
                target = found[2]  # which redirection the next word belongs to
                while self.at < len(self.text) and self.text[self.at] in " \t":
                    self.at += 1
                word = self._word()
                if target in ("<<", "<<-"):
                    self.waiting.append((command, word))
                elif target == "<<<":
                    command.text += word
                elif target == "<":
                    command.reads.append(word)
                # `>&2` copies a descriptor, `>& file` writes a file.
                elif target in (">", ">>", ">|") or (target == ">&" and not word.isdigit()):
                    command.writes.append(word)
            else:
                word = self._word()
                self._add(command, word)
        self._documents()
        yield from self._end(command)

    def _add(self, command: Command, word: str) -> None:
        if not command.words:
            if _ASSIGNMENT.match(word):
                name, _, value = word.partition("=")
                command.variables[name.rstrip("+")] = value
                return
            if word in _KEYWORDS:
                return
            if word in ("export", "declare", "local"):
                command.words.append(word)
                return
            if word in _PREFIXES:
                command.detached |= word in ("nohup", "setsid")
                return
            if word in ("timeout", "env"):
                command.variables.setdefault("", word)  # their own options and values come first
                return
            if "" in command.variables and (word.startswith("-") or re.fullmatch(r"[\d.]+[smhd]?", word)):
                return
            command.variables.pop("", None)
        elif command.words[0] == "export" and _ASSIGNMENT.match(word):
            name, _, value = word.partition("=")
            command.variables[name] = value
        command.words.append(word)

    def _end(self, command: Command) -> Iterator[Command]:
        command.variables.pop("", None)
        if command.words or command.variables or command.reads or command.writes or command.detached:
            yield command

    def _documents(self) -> None:
        for command, mark in self.waiting:
            lines = []
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end]
                self.at = min(end + 1, len(self.text))
                if line.lstrip("\t") == mark:
                    break
                lines.append(line + "\n")
            command.text += "".join(lines)
        self.waiting = []

    def _word(self) -> str:
        """The next word, without its quotes; commands inside of it are read on their own."""
        out: list[str] = []
        while self.at < len(self.text):
            character = self.text[self.at]
            if character in " \t\n;|&<>()":
                break
            if character == "'":
                end = self.text.find("'", self.at + 1)
                end = len(self.text) if end < 0 else end
                out.append(self.text[self.at + 1 : end])
                self.at = end + 1
            elif character == '"':
                out.append(self._quoted())
            elif character == "\\":
                out.append(self.text[self.at + 1 : self.at + 2])
                self.at += 2
            elif self.text.startswith("$(", self.at) or character == "`":
                out.append(self._substitution())
            elif self.text.startswith("${", self.at):
                end = self.text.find("}", self.at)
                end = len(self.text) if end < 0 else end + 1
                out.append(self.text[self.at : end])
                self.at = end
            else:
                out.append(character)
                self.at += 1
        if not out and self.at < len(self.text) and self.text[self.at] not in " \t\n;|&<>()":
            self.at += 1
        return "".join(out)

    def _quoted(self) -> str:
        out: list[str] = []
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != '"':
            if self.text[self.at] == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`", "\n"):
                out.append(self.text[self.at + 1])
                self.at += 2
            elif self.text.startswith("$(", self.at) or self.text[self.at] == "`":
                out.append(self._substitution())
            else:
                out.append(self.text[self.at])
                self.at += 1
        self.at += 1
        return "".join(out)

    def _substitution(self) -> str:
        """`$(...)` as it is written; its commands are found too."""
        start = self.at
        if self.text[self.at] == "`":
            end = self.text.find("`", self.at + 1)
            self.at = len(self.text) if end < 0 else end + 1
            inner = self.text[start + 1 : self.at - 1]
        else:
            level, self.at = 0, self.at + 1
            quote = ""
            while self.at < len(self.text):
                character = self.text[self.at]
                if quote:
                    quote = "" if character == quote else quote
                elif character in "'\"":
                    quote = character
                elif character == "(":
                    level += 1
                elif character == ")":
                    level -= 1
                    if level == 0:
                        break
                self.at += 1
            self.at += 1
            inner = self.text[start + 2 : self.at - 1]
        self.found.extend(read_commands(inner, self.depth + 1))
        return self.text[start : self.at]
