"""What a broken distribution has to have again: as tests, and as sentences that say the same.

Compares the facts (`build_test.facts`) of the distribution as it was with those of the broken one. Every difference is
an expectation, of a distribution that cannot be built any more those in the areas that were broken. Everything else has
to stay as it is. Knows facts; runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from etude.forge.origins.packaging.propose import Area

Facts = Mapping[str, Any]
# A text here, a program elsewhere: it looks for a project around itself, and needs what only sandboxes have.
BUILT: Final = Path(__file__).with_name("build_test.py")
LOADS: Final = re.compile(r"[A-Za-z_][\w.]*:[\w.]*")
MOST_FILES: Final = 24  # named in a sentence and in a test
MOST_GROUPS: Final = 6


@dataclass(frozen=True)
class Expectation:
    """Something that is missing or wrong, how it should be, and the tests for it: name and what is asserted."""

    area: Area
    symptom: str  # as a user would report it
    goal: str
    tests: tuple[tuple[str, str], ...]


def expectations(was: Facts, now: Facts, areas: Collection[Area]) -> list[Expectation]:
    """In the order of areas that an issue would have."""
    found = [*_scripts(was, now), *_requirements(was, now), *_python(was, now), *_contents(was, now)]
    found += [*_version(was, now), *_metadata(was, now)]
    return [each for each in found if now["built"] or each.area in areas]


def follows(path: str, old: str, new: str) -> Expectation:
    """That the version comes from this file and is not written down twice."""
    tests = (("version follows its source", f"version_with({path!r}, {old!r}, {new!r}) == {new!r}"),)
    return Expectation("version", "", f"the version is read from `{path}` when it is built", tests)


def written_tests(expected: Sequence[Expectation], was: Facts) -> str:
    """The test file: how a distribution is built and read, the expectations, and what has to stay."""
    helpers = BUILT.read_text().partition('\nif __name__ == "__main__":')[0].rstrip()
    tests = [*(test for each in expected for test in each.tests), *_unchanged(expected, was)]
    names: dict[str, int] = {}
    parts = [helpers]
    for name, assertion in tests:
        slug = re.sub(r"\W+", "_", name).strip("_").lower()
        names[slug] = names.get(slug, 0) + 1
        slug += f"_{names[slug]}" if names[slug] > 1 else ""
        parts.append(f"def test_{slug}() -> None:\n    assert {assertion}")
    return "\n\n\n".join(parts) + "\n"


def _scripts(was: Facts, now: Facts) -> Iterator[Expectation]:
    for group, named in was["entry_points"].items():
        for name, target in named.items():
            other = now.get("entry_points", {}).get(group, {}).get(name)
            if other == target:
                continue
            command = group in ("console_scripts", "gui_scripts")
            kind = "command" if command else f"entry point of `{group}`"
            lost = f"There is no {kind} `{name}` after installation."
            symptom = f"The {kind} `{name}` leads to `{other}`, which is not there." if other else lost
            tests = [(f"{name} is declared", f"entry_point({group!r}, {name!r}) == {target!r}")]
            found = was["loads"].get(f"{group}:{name}", "")
            if LOADS.fullmatch(found):
                tests.append((f"{name} can be loaded", f"loaded({group!r}, {name!r}) == {found!r}"))
            helped = was["helps"].get(name) if group == "console_scripts" else None
            if helped and helped[0] == 0 and helped[1]:
                tests.append((f"{name} says how it is used", f"helped({name!r}) == {helped!r}"))
            where = "" if command else f" (group `{group}`)"
            yield Expectation("scripts", symptom, f"the {kind} `{name}`{where} leads to `{target}`", tuple(tests))


def _requirements(was: Facts, now: Facts) -> Iterator[Expectation]:
    for extra, lines in was["requirements"].items():
        other = now.get("requirements", {}).get(extra)
        if other == lines:
            continue
        slug = f"extra {extra}" if extra else "requirements"
        listed = ", ".join(f"`{line}`" for line in lines)
        tests = [
            (f"{slug} by name", f"names({extra!r}) == {_names(lines)!r}"),
            (f"{slug} with versions", f"bounds({extra!r}) == {_bounds(lines)!r}"),
            (f"{slug} whole", f"brings({extra!r}) == {lines!r}"),
        ]
        if extra:
            tests.insert(0, (f"{slug} is offered", f"[each for each in extras() if each == {extra!r}] == [{extra!r}]"))
            gone = f"`pip install PROJECT[{extra}]` warns that there is no such extra."
            wrong = f"`pip install PROJECT[{extra}]` does not bring what it should."
            yield Expectation(
                "extras", gone if other is None else wrong, f"the extra `{extra}` brings {listed}", tuple(tests)
            )
        else:
            symptom = "Installing it does not bring what it needs."
            yield Expectation(
                "dependencies", symptom, f"without any extra it requires {listed or 'nothing'}", tuple(tests)
            )


def _names(lines: Sequence[str]) -> list[str]:
    return sorted(_split(line)[0] for line in lines)


def _bounds(lines: Sequence[str]) -> dict[str, str]:
    return dict(_split(line) for line in lines)


def _split(line: str) -> tuple[str, str]:
    """Name and versions of a normalised requirement."""
    found = re.match(r"([\w.-]+)(?:\[[^\]]*\])?\s*(?:@[^;]*)?([^;]*)", line)
    assert found is not None
    return found[1].lower(), found[2].strip()


def _python(was: Facts, now: Facts) -> Iterator[Expectation]:
    bound = was["fields"].get("Requires-Python")
    if not bound or now.get("fields", {}).get("Requires-Python") == bound:
        return
    tests = [("requires python", f"field('Requires-Python') == {bound!r}")]
    least = re.search(r">=\s*3\.(\d+)", bound)
    if least and int(least[1]) > 0:
        older, own = f"3.{int(least[1]) - 1}.9", f"3.{least[1]}.9"
        tests.append(("old pythons are refused", f"[admits({older!r}), admits({own!r})] == [False, True]"))
    symptom = "pip installs it under versions of Python that it does not support."
    yield Expectation("python", symptom, f"`Requires-Python` is `{bound}`", tuple(tests))


def _contents(was: Facts, now: Facts) -> Iterator[Expectation]:
    before, after = set(was["packed"]), set(now.get("packed", ()))
    missing, surplus = sorted(before - after), sorted(after - before)
    if not now["built"]:
        missing, surplus = sorted(before), []
    if missing:
        tests: list[tuple[str, str]] = []
        tops = [name for name in was["tops"] if any(path.split("/")[0] in (name, f"{name}.py") for path in missing)]
        if now.get("tops") != was["tops"]:
            tests.append(("what can be imported", f"tops() == {was['tops']!r}"))
        for name in tops[:MOST_GROUPS]:
            found = was["imports"].get(name, "")
            if LOADS.fullmatch(found) and now.get("imports", {}).get(name) != found:
                tests.append((f"{name} can be imported", f"imported({name!r}) == {found!r}"))
        for folder, paths in _grouped(missing):
            shown = paths[:MOST_FILES]
            tests.append((f"files of {folder or 'the top'}", f"among(*{shown!r}) == {shown!r}"))
        symptom = f"The wheel lacks {len(missing)} files, `{missing[0]}` for example."
        yield Expectation("contents", symptom, f"the wheel holds {_listed(missing)}", tuple(tests))
    if surplus:
        shown = surplus[:MOST_FILES]
        tests = [("nothing else is packed", f"among(*{shown!r}) == []")]
        symptom = f"The wheel holds {len(surplus)} files that do not belong there, `{surplus[0]}` for example."
        yield Expectation("contents", symptom, f"the wheel has none of these: {_listed(shown)}", tuple(tests))


def _grouped(paths: Sequence[str]) -> list[tuple[str, list[str]]]:
    """By folder; where all lie in one, each by itself, as far as there are few."""
    found: dict[str, list[str]] = {}
    for path in paths:
        found.setdefault(path.rpartition("/")[0], []).append(path)
    if len(found) == 1 and len(paths) <= MOST_GROUPS:
        return [(path, [path]) for path in paths]
    return list(found.items())[:MOST_GROUPS]


def _listed(paths: Sequence[str]) -> str:
    """All of them, or where they are many the folders that they are all in."""
    if len(paths) <= MOST_FILES:
        return ", ".join(f"`{path}`" for path in paths)
    folders: dict[str, list[str]] = {}
    for path in paths:
        folders.setdefault(path.rpartition("/")[0], []).append(path)
    parts = [
        f"all files of `{name}`" if name else ", ".join(f"`{path}`" for path in own) for name, own in folders.items()
    ]
    return ", ".join(parts)


def _version(was: Facts, now: Facts) -> Iterator[Expectation]:
    version = was["fields"]["Version"]
    other = now.get("fields", {}).get("Version")
    if other == version:
        return
    tests = (
        ("version", f"field('Version') == {version!r}"),
        ("name of the wheel", f"file_name() == {was['file']!r}"),
    )
    symptom = f"The distribution says that it is version {other}." if other else "Nothing says which version it is."
    yield Expectation("version", symptom, f"the version is `{version}`", tests)


def _metadata(was: Facts, now: Facts) -> Iterator[Expectation]:
    for name, value in was["fields"].items():
        if name in ("Name", "Version", "Requires-Python") or now.get("fields", {}).get(name) == value:
            continue
        test = (f"field {name}", f"field({name!r}) == {value!r}")
        symptom = f"The metadata shows a wrong `{name}`, or none."
        yield Expectation("metadata", symptom, f"the field `{name}` reads `{value}`", (test,))
    for name, values in was["lists"].items():
        if now.get("lists", {}).get(name) != values:
            test = (f"all of {name}", f"fields({name!r}) == {values!r}")
            listed = "; ".join(f"`{value}`" for value in values)
            symptom = f"The metadata does not list every `{name}`."
            goal = f"the metadata has these as `{name}`, in any order: {listed}"
            yield Expectation("metadata", symptom, goal, (test,))
    line = was["first_line"]
    if line and now.get("first_line") != line:
        test = ("long description", f"first_line() == {line!r}")
        yield Expectation(
            "metadata", "The long description is not there.", f"the long description starts with `{line}`", (test,)
        )


def _unchanged(expected: Sequence[Expectation], was: Facts) -> Iterator[tuple[str, str]]:
    """What was never in question."""
    areas = {each.area for each in expected}
    tested = " ".join(assertion for each in expected for _, assertion in each.tests)
    points = {
        (group, name): target
        for group, named in was["entry_points"].items()
        for name, target in named.items()
        if f"entry_point({group!r}, {name!r})" not in tested
    }
    if points:
        pairs = ", ".join(f"entry_point({group!r}, {name!r})" for group, name in points)
        yield "other entry points", f"[{pairs}] == {list(points.values())!r}"
    others = {extra: lines for extra, lines in was["requirements"].items() if f"brings({extra!r})" not in tested}
    if others:
        yield (
            "other requirements",
            f"[{', '.join(f'brings({extra!r})' for extra in others)}] == {list(others.values())!r}",
        )
    files = [path for path in was["packed"] if path not in tested][:MOST_FILES]
    if files and "contents" not in areas:
        yield "the files", f"among(*{files!r}) == {files!r}"
    if "version" not in areas:
        yield (
            "name and version",
            f"[field('Name'), field('Version')] == {[was['fields']['Name'], was['fields']['Version']]!r}",
        )
