"""Packaging that only looks restored: answers that a task must not accept. Knows texts; runs nothing."""

from __future__ import annotations

from etude.tasks.format.task import Task
from etude.tasks.kinds.packaging.config_entries import TARGET, ConfigEntry, entries, without

STEERING = {
    "pyproject.toml": '\n[tool.pytest.ini_options]\naddopts = "-p no:python"\n',
    "setup.cfg": "\n[tool:pytest]\naddopts = -p no:python\n",
}


def false_restorations(task: Task) -> dict[str, dict[str, bytes | None]]:
    """Entries that say nothing or lead elsewhere, all but one of them, and settings of the test runner alone."""
    found = {"entries that say nothing": empty_entries(task)}
    gone = _gone(task)
    if len(gone) > 1:
        whole, last = _solved(task), gone[-1]
        found["all but one"] = _encoded(whole | {last.path: without(whole[last.path], [last])})
    for path, text in STEERING.items():
        if path in task.workspace:
            found[f"settings in {path}"] = {path: task.workspace[path] + text.encode()}
    return found


def empty_entries(task: Task) -> dict[str, bytes | None]:
    """The reference, but what was missing says nothing or leads elsewhere."""
    texts = _solved(task)
    for entry in sorted(_gone(task), key=lambda each: each.start, reverse=True):
        text = texts[entry.path]
        texts[entry.path] = text[: entry.start] + _emptied(entry) + text[entry.end :]
    return _encoded(texts)


def _solved(task: Task) -> dict[str, str]:
    return {path: task.solution.text(path) for path in task.solution}


def _gone(task: Task) -> list[ConfigEntry]:
    found = [entry for path, text in _solved(task).items() for entry in entries(path, text)]
    return [entry for entry in found if f"{entry.path}:{entry.name}" in task.facts.deleted]


def _encoded(texts: dict[str, str]) -> dict[str, bytes | None]:
    return {path: text.encode("utf-8", "surrogateescape") for path, text in texts.items()}


def _emptied(entry: ConfigEntry) -> str:
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
