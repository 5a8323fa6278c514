"""Packaging that only looks restored: answers that a task must not accept. Knows texts; runs nothing."""

from __future__ import annotations

from etude.forge.make.entries import Entry, without
from etude.forge.make.packaging import TARGET, Packaging
from etude.tasks.format import Task

STEERING = {
    "pyproject.toml": '\n[tool.pytest.ini_options]\naddopts = "-p no:python"\n',
    "setup.cfg": "\n[tool:pytest]\naddopts = -p no:python\n",
}


def bluffs(task: Task, candidate: Packaging) -> dict[str, dict[str, bytes | None]]:
    """Entries that say nothing or lead elsewhere, all but one of them, and settings of the test runner alone."""
    found: dict[str, dict[str, bytes | None]] = {}
    whole = {path: task.solution.text(path) for path in task.solution}
    hollow = dict(whole)
    for entry in sorted(candidate.gone, key=lambda each: each.start, reverse=True):
        text = hollow[entry.path]
        hollow[entry.path] = text[: entry.start] + _hollow(entry) + text[entry.end :]
    found["entries that say nothing"] = _encoded(hollow)
    if len(candidate.gone) > 1:
        last = candidate.gone[-1]
        found["all but one"] = _encoded(whole | {last.path: without(whole[last.path], [last])})
    for path, text in STEERING.items():
        if path in task.workspace:
            found[f"settings in {path}"] = {path: task.workspace[path] + text.encode()}
    return found


def _encoded(texts: dict[str, str]) -> dict[str, bytes | None]:
    return {path: text.encode("utf-8", "surrogateescape") for path, text in texts.items()}


def _hollow(entry: Entry) -> str:
    """The entry with nothing in it: a target of the standard library, an empty list, an empty text."""
    if TARGET.search(entry.text):
        return TARGET.sub("os:getcwd", entry.text)
    key, mark, rest = entry.text.partition("=")
    end = "," if rest.rstrip().endswith(",") else ""
    kinds: dict[type, str] = {list: "[]", dict: "{}", tuple: "()"}
    empty = kinds.get(type(entry.value), '""')
    if entry.path == "setup.cfg":
        empty = ""
    return f"{key}{mark} {empty}{end}\n"
