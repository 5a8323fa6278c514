"""A candidate is tried again without tests that only its grading proved odd, and no more often than that."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from etude.forge.pipeline import make_task as module
from etude.forge.pipeline.make_task import TRIES, make_task
from etude.forge.steps.context import Refused

ODD = "tests/test_own.py::test_the_line_that_it_stands_in"


class Written:
    """What an origin writes, as far as files go."""

    name = "shop-deletion-1"

    def save(self, folder: Path) -> None:
        folder.mkdir()


def _attempt(out: Path, monkeypatch: pytest.MonkeyPatch, refusals: list[Refused]) -> tuple[Any, list[set[str]]]:
    """What comes of a candidate whose verification is refused so, and the tests that each try knew to be odd."""
    candidate = SimpleNamespace(key="deletion-1")
    context = SimpleNamespace(request=SimpleNamespace(seed=0, out=out, prompt_styles=("plain",)), unsteady=set())
    known: list[set[str]] = []

    async def prove(given: Any, proven: Any, rng: Any) -> Any:
        known.append(set(given.unsteady))
        return SimpleNamespace(candidate=proven, partial=False)

    async def verify(*given: Any) -> None:
        if len(known) <= len(refusals):
            context.unsteady.add(f"{ODD}_{len(known)}")
            raise refusals[len(known) - 1]

    monkeypatch.setattr(module, "_verify", verify)
    origin = SimpleNamespace(prove=prove, instruct=lambda *given: None, write=lambda *given: Written())
    made = asyncio.run(make_task(origin, context, candidate, {}))  # type: ignore[arg-type]
    return made, known


def test_it_is_tried_again_without_the_odd_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Refused("the grader rejects the reference", ODD, by_odd_tests=True)
    made, known = _attempt(tmp_path, monkeypatch, [refused])
    assert made.folder.is_dir() and known == [set(), {f"{ODD}_1"}]


def test_whoever_always_finds_another_odd_test_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = [Refused("the grader rejects the reference", str(n), by_odd_tests=True) for n in range(TRIES)]
    with pytest.raises(Refused) as last:
        _attempt(tmp_path, monkeypatch, refused)
    assert last.value.detail == str(TRIES - 1) and not list(tmp_path.iterdir())


def test_what_is_wrong_with_the_task_itself_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="a stub is accepted"):
        _attempt(tmp_path, monkeypatch, [Refused("a stub is accepted")])
