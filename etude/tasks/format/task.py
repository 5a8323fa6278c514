"""Task: a directory in the Harbor format, on disk or in memory only.

    task.toml  instruction.md  environment/Dockerfile  environment/workspace/  tests/test.sh  solution/solve.sh

`environment/workspace/` is the repository that the agent sees (the Dockerfile copies it to /app), `tests/` what the
grader runs and the agent never sees, `solution/files/` the workspace's files as the reference leaves them. Loading
trusts nothing; every refusal names the file and, for task.toml, the key. Knows nothing about sandboxes or grading.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from etude.core.errors import EtudeError
from etude.tasks.format import config as toml
from etude.tasks.format.config import Config, Facts
from etude.tasks.format.file_tree import Files, TreeLimits

CONFIG = "task.toml"
INSTRUCTION = "instruction.md"
WORKSPACE = "environment/workspace"
TESTS = "tests"
SOLUTION = "solution/files"
LONGEST_INSTRUCTION = 1 << 20  # bytes


@dataclass(frozen=True)
class Task:
    """What is asked (`instruction`), over which files, and how it is graded (`config`, `facts`)."""

    name: str
    instruction: str  # as the agent reads it: canary lines are gone
    config: Config = field(default_factory=Config)
    facts: Facts = field(default_factory=Facts)
    files: Files = field(default_factory=lambda: Files({}))  # the whole directory

    @classmethod
    def load(cls, directory: Path | str, limits: TreeLimits | None = None) -> Task:
        """Reads a task directory; large files are read when they are asked for."""
        root = Path(directory)
        if not root.is_dir() or root.is_symlink():
            raise EtudeError(f"there is no task directory {root}")
        files = Files.scan(root, limits)
        if CONFIG not in files or files.kind(CONFIG) == "link":
            raise EtudeError(f"{root} is no task: it has no file {CONFIG}")
        config, facts = toml.read(files[CONFIG], str(root / CONFIG))
        if INSTRUCTION in files and files.kind(INSTRUCTION) != "link":
            instruction = _read_instruction(files, INSTRUCTION, root)
        elif config.steps:
            instruction = ""
        else:
            raise EtudeError(f"{root} is no task: it has no file {INSTRUCTION}")
        name = config.task.name if config.task is not None else root.resolve().name
        return cls(name, instruction, config, facts, files)

    def save(self, directory: Path | str) -> None:
        """Writes the directory, which must not be there yet or be empty. What was loaded unchanged stays as it was."""
        root = Path(directory)
        if root.is_symlink() or (root.exists() and (not root.is_dir() or any(root.iterdir()))):
            raise EtudeError(f"{root} already exists: give the task a directory of its own")
        self._complete().write(root)

    @cached_property
    def workspace(self) -> Files:
        """The repository as the agent finds it; `.directory` is its folder where there is one on disk."""
        return self.files.under(WORKSPACE)

    @cached_property
    def tests(self) -> Files:
        """What the grader runs, `test.sh` included."""
        return self.files.under(TESTS)

    @cached_property
    def solution(self) -> Files:
        """Files of the workspace as the reference solution leaves them; none when it exists only as a script."""
        return self.files.under(SOLUTION)

    @property
    def reference(self) -> dict[str, bytes | None]:
        """What the reference solution does to the workspace: files as it leaves them, None for those it takes away."""
        return {**self.solution, **dict.fromkeys(self.facts.removed)}

    def worded(self, prompt_style: str) -> Task:
        """The same task in another of the prompt styles that `instructions/` has."""
        if prompt_style == self.facts.prompt_style:
            return self
        path = f"instructions/{prompt_style}.md"
        if path not in self.files:
            raise EtudeError(f"task {self.name} has no {path}")
        facts = self.facts.model_copy(update={"prompt_style": prompt_style})
        return replace(self, instruction=self.files.text(path), facts=facts)

    @cached_property
    def digest(self) -> str:
        """Names the task's content, whether it lies on disk or in memory."""
        return self._complete().digest()

    def script(self, folder: str, name: str) -> str | None:
        """The path of a script such as ("tests", "test"): the .sh before the .bat."""
        found = (f"{folder}/{name}{ending}" for ending in (".sh", ".bat"))
        return next((path for path in found if path in self.files), None)

    def step_instruction(self, step: str) -> str:
        """The instruction of one step of a task with several."""
        path = f"steps/{step}/{INSTRUCTION}"
        if path not in self.files:
            raise EtudeError(f"task {self.name} has no {path}")
        return _read_instruction(self.files, path, self.files.directory or Path(self.name))

    def allows(self, path: str) -> bool:
        """Whether a change to this file of the workspace reaches the grader."""
        return any(matches(path, pattern) for pattern in self.facts.allowed_paths)

    def _complete(self) -> Files:
        """All files of the directory, with task.toml and the instruction as they are now."""
        changes: dict[str, bytes | None] = {}
        loaded = toml.read(self.files[CONFIG], CONFIG) if CONFIG in self.files else None
        if loaded is None or toml.to_dict(*loaded) != toml.to_dict(self.config, self.facts):
            changes[CONFIG] = toml.write(self.config, self.facts)
        here = without_canary(self.files.text(INSTRUCTION)) if INSTRUCTION in self.files else ""
        if here != self.instruction:
            changes[INSTRUCTION] = self.instruction.encode("utf-8", "surrogateescape")
        return self.files.replaced(changes) if changes else self.files


def task_folders(root: Path) -> list[Path]:
    """The task directories below a folder, or below its folders: one for each repository, say."""
    found = [path.parent for path in root.glob(f"*/{CONFIG}")]
    among = set(found)  # a task has folders of its own, and in them may lie anything
    found += [path.parent for path in root.glob(f"*/*/{CONFIG}") if path.parents[1] not in among]
    return sorted(found)


def given_tasks(directories: Iterable[Path]) -> list[Path]:
    """Each directory that is a task, or else the tasks below it; one that is neither stays, and cannot be loaded."""
    found: list[Path] = []
    for directory in directories:
        found += [directory] if (directory / CONFIG).exists() else task_folders(directory) or [directory]
    return found


def solve_script(root: str, removed: Sequence[str] = ()) -> bytes:
    """The solution/solve.sh of a task whose solution is files: it lays them over the workspace at `root`, and takes
    away what is `removed`."""
    gone = "".join(f"rm -f -- {shlex.quote(f'{root}/{path}')}\n" for path in removed)
    return f'#!/bin/sh\nset -e\ncp -R "$(dirname "$0")/files/." {root}/\n{gone}'.encode()


def without_canary(text: str) -> str:
    """An instruction without the leading lines that mark it as test data: `<!-- canary -->`, `# canary`."""
    lines = text.splitlines(keepends=True)
    start = 0
    while start < len(lines) and (not lines[start].strip() or _CANARY.match(lines[start])):
        start += 1
    return "".join(lines[start:]) if any(map(_CANARY.match, lines[:start])) else text


_CANARY = re.compile(r"\s*(<!--.*canary.*-->|#.*canary.*)\s*$", re.IGNORECASE)


def matches(path: str, pattern: str) -> bool:
    """Whether a glob covers a path: `*` stays within one folder, `**` covers any number of them."""
    return _matches(path.split("/"), pattern.split("/"))


def _matches(path: list[str], pattern: list[str]) -> bool:
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(_matches(path[skip:], pattern[1:]) for skip in range(len(path) + 1))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and _matches(path[1:], pattern[1:])


def _read_instruction(files: Files, path: str, root: Path) -> str:
    if files.size(path) > LONGEST_INSTRUCTION:
        raise EtudeError(f"{root / path} has {files.size(path)} bytes, more than the {LONGEST_INSTRUCTION} it may have")
    return without_canary(files.text(path))
