"""Sources mixed by weights: shares, resuming, and who hears of what."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from etude.core.errors import EtudeError
from etude.forge.curriculum.mixture import Mixture, check_first
from etude.forge.curriculum.sources import Listens, Mixes, Rewinds, open_source
from etude.forge.katas.task_source import write_katas


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tasks")
    write_katas(path, "train", 4, 0, (1,))
    return path


def mixture(folder: Path, use: str = "folder", weight: float = 1.0) -> Mixture:
    own = {"use": use, "path": str(folder), "weight": weight, "name": "own"}
    source = open_source({"use": "mixture", "sources": [{"use": "katas", "split": "train", "weight": 3}, own]})
    assert isinstance(source, Mixture) and all(isinstance(source, kind) for kind in (Listens, Mixes, Rewinds))
    return source


def test_shares_follow_the_weights_and_a_folder_that_ended_gives_its_share_away(folder: Path) -> None:
    source = mixture(folder)
    names = Counter(source.source_of(number) for number in range(60))
    assert names == {"katas": 56, "own": 4}
    first = [source.source_of(number) for number in range(12)]
    assert 1 <= first.count("own") <= 4
    own = [task.name for number, task in enumerate(islice(source.tasks(), 60)) if source.source_of(number) == "own"]
    assert len(set(own)) == 4  # every task once


def test_a_resumed_run_asks_the_same_from_any_number_on(folder: Path) -> None:
    asked = [task.name for task in islice(mixture(folder).tasks(), 12)]
    assert [task.name for task in islice(mixture(folder).tasks(5), 7)] == asked[5:]


def test_a_source_hears_of_its_own_tasks_by_its_own_numbers(folder: Path, tmp_path: Path) -> None:
    source = mixture(folder, "curriculum", weight=3.0)
    source.remember(tmp_path / "curriculum.db")
    assert (tmp_path / "curriculum-own.db").exists()
    list(islice(source.tasks(), 8))
    for number in range(8):
        source.heard(number, 1, 4, number + 1)
    inner = source.sources[1]
    own = [number for number in range(8) if source.source_of(number) == "own"]
    heard = sorted((r.number, r.step) for results in inner.results().values() for r in results)  # type: ignore[attr-defined]
    assert heard == [(local, number + 1) for local, number in enumerate(own)] and len(own) >= 2
    source.rewind(own[0] + 1, own[1])
    left = [r.number for results in inner.results().values() for r in results]  # type: ignore[attr-defined]
    assert left == [0]


def test_questions_that_ended_give_their_share_away_and_none_are_left_out_unsaid(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"question": "2 + 2?", "answer": "4"}\n' * 3)
    asked = {"use": "questions", "path": str(tmp_path / "q.jsonl")}
    source = open_source({"use": "mixture", "sources": [{"use": "katas"}, asked]})
    assert isinstance(source, Mixture) and len(list(islice(source.tasks(), 40))) == 40
    assert Counter(source.source_of(number) for number in range(40)) == {"katas": 37, "questions": 3}
    for spec, first, said in (
        (asked, 3, "rl.first_task = 3 leaves out all 3 tasks of rl.tasks"),
        ({"use": "folder", "path": str(folder)}, 1500, "leaves out all 4 tasks of rl.tasks"),
        ({"use": "mixture", "sources": [{"use": "katas"}, asked]}, 1500, "all 3 tasks of the source 'questions' of rl"),
    ):
        with pytest.raises(EtudeError, match=said):
            check_first(open_source(spec), first, "rl.tasks")
    for spec, first in ((asked, 2), (asked | {"again": True}, 9), ({"use": "katas"}, 1500)):
        check_first(open_source(spec), first, "rl.tasks")
    check_first(source, 1, "rl.tasks")


def test_what_cannot_be_mixed_is_refused_by_name(folder: Path) -> None:
    with pytest.raises(EtudeError, match=r"sources\[1\]: two sources are called 'katas'"):
        open_source({"use": "mixture", "sources": [{"use": "katas"}, {"use": "katas"}]})
    with pytest.raises(EtudeError, match=r"sources\[0\].weight is 0; it must be a number above 0"):
        open_source({"use": "mixture", "sources": [{"use": "katas", "weight": 0}]})
