"""The curriculum: what is asked next after what was heard, and that a resumed run asks the same again."""

from __future__ import annotations

import sqlite3
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from etude.audit.quarantine import quarantined
from etude.core.errors import EtudeError
from etude.forge.curriculum.curriculum import Curriculum
from etude.forge.curriculum.sources import Listens, curriculum_file, open_source
from etude.forge.katas.task_source import katas


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six katas, each worded in three ways."""
    root = tmp_path / "tasks"
    for number, task in enumerate(katas("train", 6, seed=1)):
        task = task.__class__(f"k{number}", task.instruction, task.config, task.facts, task.files)
        task.save(root / f"k{number}")
        (root / f"k{number}" / "instructions").mkdir()
        for prompt_style in ("terse", "plain", "detailed"):
            (root / f"k{number}" / "instructions" / f"{prompt_style}.md").write_text(f"{prompt_style} k{number}\n")
    return root


def curriculum(folder: Path, **settings: object) -> Curriculum:
    found = open_source({"use": "curriculum", "path": str(folder), **settings})
    assert isinstance(found, Curriculum) and isinstance(found, Listens)
    return found


def first(source: Curriculum, number: int) -> str:
    return next(source.tasks(number)).files.directory.name  # type: ignore[union-attr]


def test_each_task_is_asked_once_before_any_is_asked_again_and_never_too_often(folder: Path) -> None:
    source = curriculum(folder, uses=2)
    names = []
    for number, task in enumerate(source.tasks()):
        assert task.files.directory is not None
        names.append(task.files.directory.name)
        source.heard(number, 2, 4, 1)
    assert Counter(names) == {f"k{number}": 2 for number in range(6)}


def test_a_resumed_run_asks_the_same_again_and_goes_on_from_what_was_heard(folder: Path, tmp_path: Path) -> None:
    before = curriculum(folder)
    before.remember(tmp_path / "curriculum.db")
    asked = [task.name for task in islice(before.tasks(), 4)]
    for number in range(4):
        before.heard(number, 4, 4, 1)
    after = curriculum(folder)
    after.remember(tmp_path / "curriculum.db")
    assert [task.name for task in islice(after.tasks(), 4)] == asked
    assert after.standings() == before.standings()
    after.heard(3, 0, 4, 2)  # trained again in another lineage: only the later word counts
    assert [r.passed for results in after.results().values() for r in results if r.number == 3] == [0]


def test_after_a_kill_it_knows_no_more_than_the_checkpoint(folder: Path, tmp_path: Path) -> None:
    killed, never = curriculum(folder, uses=9), curriculum(folder, uses=9)
    killed.remember(tmp_path / "curriculum.db")
    for source in (killed, never):
        assert [first(source, number) for number in (0, 1)]
        source.heard(0, 4, 4, 1)  # the checkpoint is of step 1
    killed.heard(1, 0, 4, 2)
    ahead = [first(killed, number) for number in (2, 3)]
    after = curriculum(folder, uses=9)
    after.remember(tmp_path / "curriculum.db")
    after.rewind(1, 3)
    assert after.standings() == never.standings() and after.results() == never.results()
    assert first(after, 2) == ahead[0]  # that group was admitted, and stays with its task
    rows = sqlite3.connect(tmp_path / "curriculum.db").execute("SELECT number FROM asked ORDER BY number").fetchall()
    assert rows == [(0,), (1,), (2,)]


def _walk(folder: Path, shares: list[int], **settings: int) -> Curriculum:
    """One task, asked again and again, with so many of four attempts passing each time."""
    source = curriculum(folder, count=1, uses=99, **settings)
    for number, passed in enumerate(shares):
        assert next(source.tasks(number), None) is not None
        source.heard(number, passed, 4, number + 1)
    return source


@pytest.mark.parametrize(
    ("start", "shares", "state", "prompt_style"),
    [
        ("plain", [], "open", "plain"),
        ("plain", [2, 1, 3], "open", "plain"),
        ("plain", [4], "open", "terse"),
        ("plain", [4, 4], "retired", "terse"),
        ("plain", [0], "open", "plain"),
        ("plain", [0, 0], "open", "detailed"),
        ("plain", [0, 0, 0, 0], "set aside", "detailed"),
        ("plain", [4, 0, 0], "set aside", "terse"),  # plain is too easy and terse too hard: nothing is left between
        ("detailed", [4, 4, 4], "retired", "terse"),
    ],
)
def test_what_is_too_easy_gets_fewer_words_and_what_is_too_hard_more(
    folder: Path, start: str, shares: list[int], state: str, prompt_style: str
) -> None:
    config = folder / "k0" / "task.toml"
    lines = [
        f'prompt_style = "{start}"' if x.startswith("prompt_style") else x for x in config.read_text().splitlines()
    ]
    config.write_text("\n".join(lines) + "\n")
    source = _walk(folder, shares)
    standing = source.standings()["k0"]
    assert (standing.state, standing.prompt_style) == (state, prompt_style)
    task = next(source.tasks(len(shares)), None)
    assert (task is None) == (state != "open")
    if task is not None and prompt_style != start:
        assert task.instruction == f"{prompt_style} k0\n" and task.facts.prompt_style == prompt_style


def test_what_lies_between_is_asked_most(folder: Path) -> None:
    source = curriculum(folder, uses=10_000, retire=1.0, patience=10_000)
    hard, even = "k0", "k1"
    asked: Counter[str] = Counter()
    for number in range(300):
        name = first(source, number)
        asked[name] += 1
        source.heard(number, {hard: 0, even: 2}.get(name, 4), 4, 1)
    assert asked[even] > 5 * asked[hard]


def test_bands_fix_which_share_of_the_asking_hard_trainable_and_solved_tasks_get(folder: Path) -> None:
    source = curriculum(folder, uses=999, bands=[0.1, 0.7, 0.2], retire=1.0, patience=999)
    names = [first(source, number) for number in range(6)]  # each once
    for number, passed in enumerate([0, 0, 2, 2, 4, 4]):
        source.heard(number, passed, 4, 1)
    weights = dict(zip(sorted(names), source._weights(dict(sorted(source.standings().items()))), strict=True))
    shares = [sum(weights[name] for name in names[at : at + 2]) for at in (0, 2, 4)]
    assert shares == pytest.approx([0.1, 0.7, 0.2])
    with pytest.raises(EtudeError, match="bands are three shares"):
        curriculum(folder, bands=[1.0])


def test_late_in_a_run_tasks_that_took_longer_are_asked_more_often(folder: Path, tmp_path: Path) -> None:
    source = curriculum(folder, uses=999, late=5, harder=3.0)
    source.remember(tmp_path / "curriculum.db")
    names = [first(source, number) for number in range(6)]
    for number in range(6):
        source.heard(number, 2, 4, 1)
        source.effort(number, turns=2.0 + number, thinking=100.0 * number)
    early = source._weights(source.standings())
    assert max(early) == min(early)
    source.heard(5, 2, 4, 5)
    late = dict(zip(source.standings(), source._weights(source.standings()), strict=True))
    assert sorted(late, key=lambda name: late[name]) == names
    assert late[names[5]] / late[names[0]] == pytest.approx(4.0)
    source.rewind(1, 6)  # what the last group took is forgotten with its result
    assert sqlite3.connect(tmp_path / "curriculum.db").execute("SELECT count(*) FROM effort").fetchone() == (5,)


def test_a_task_that_vanished_is_named(folder: Path, tmp_path: Path) -> None:
    before = curriculum(folder)
    before.remember(tmp_path / "curriculum.db")
    gone = first(before, 0)
    (folder / gone / "task.toml").unlink()
    after = curriculum(folder)
    after.remember(tmp_path / "curriculum.db")
    with pytest.raises(EtudeError, match=f"the task {gone}"):
        next(after.tasks(0))


def test_a_broken_task_is_not_asked_again_and_stands_on_the_list_beside_it(folder: Path, tmp_path: Path) -> None:
    source = curriculum(folder, uses=99)
    source.remember(tmp_path / "curriculum.db")
    name = first(source, 0)
    assert source.broken(0, "its tests contradict each other") and not source.broken(0, "again")
    assert not source.broken(77, "a number that nobody asked for")
    assert source.standings()[name].state == "quarantined"
    assert name not in {first(source, number) for number in range(1, 60)}
    assert quarantined(folder) == {name: "its tests contradict each other"}
    again = curriculum(folder, uses=99)  # a resumed run asks the same under the same number, and no new one
    again.remember(tmp_path / "curriculum.db")
    assert [first(again, number) for number in range(60)] == [first(source, number) for number in range(60)]
    assert name not in {first(again, number) for number in range(60, 99)}
    fresh = curriculum(folder, uses=99)  # and so does another run
    assert name not in {first(fresh, number) for number in range(60)}
    rows = sqlite3.connect(tmp_path / "curriculum.db").execute("SELECT task, why FROM broken").fetchall()
    assert rows == [(name, "its tests contradict each other")]


def test_tasks_of_several_repositories_may_lie_in_folders_of_their_own(folder: Path, tmp_path: Path) -> None:
    for number, place in enumerate(("a", "b")):
        (tmp_path / "all" / place).mkdir(parents=True)
        for each in range(number * 3, number * 3 + 3):
            (folder / f"k{each}").rename(tmp_path / "all" / place / f"k{each}")
    (tmp_path / "all/a/k0/tests/task.toml").write_text("")  # what lies in a task is none
    source = curriculum(tmp_path / "all")
    assert set(source.standings()) == {"a/k0", "a/k1", "a/k2", "b/k3", "b/k4", "b/k5"}
    assert source.broken(0, "odd") is False and next(source.tasks(0)) is not None and source.broken(0, "odd")
    found = open_source({"use": "folder", "path": str(tmp_path / "all")})
    assert len(list(found.tasks())) == 5


def test_instructions_that_are_too_long_are_never_asked(folder: Path) -> None:
    (folder / "k0/instructions/detailed.md").write_text("many words " * 20)
    (folder / "k0/instructions/plain.md").write_text("many words " * 10)
    source = _walk(folder, [0, 0], longest=40)
    assert (source.standings()["k0"].state, source.standings()["k0"].prompt_style) == ("set aside", "terse")
    source = curriculum(folder, begin="detailed", longest=40)
    assert {standing.prompt_style for name, standing in source.standings().items() if name != "k0"} == {"detailed"}
    (folder / "k0/instructions/terse.md").write_text("many words " * 5)
    assert "k0" not in curriculum(folder, longest=40).standings()
    with pytest.raises(EtudeError, match="longer than longest = 4 characters"):
        curriculum(folder, longest=4)


def test_a_run_of_an_earlier_version_goes_on_with_its_own_file(folder: Path, tmp_path: Path) -> None:
    assert curriculum_file(tmp_path).name == "curriculum.db"
    earlier = curriculum(folder)
    earlier.remember(tmp_path / "supply.db")
    first = next(earlier.tasks()).name
    later = open_source({"use": "supply", "path": str(folder)})
    assert isinstance(later, Curriculum)
    later.remember(curriculum_file(tmp_path))
    assert next(later.tasks()).name == first and curriculum_file(tmp_path).name == "supply.db"
