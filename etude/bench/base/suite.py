"""The evaluations of one model, one after another, and what they give as plain data."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

from etude.bench.base.bits_per_byte import measure_codebase
from etude.bench.base.code_text import Code, filler_lines, read_code
from etude.bench.base.fresh import Question, measure_fresh, read_questions
from etude.bench.base.git_history import read_histories
from etude.bench.base.model_under_test import ModelUnderTest
from etude.bench.base.needle import measure_needles
from etude.bench.base.serving import measure_serving
from etude.bench.base.state_tracking import choose_cases, measure_tracking
from etude.bench.base.synthetic_history import invent_histories
from etude.core.errors import EtudeError
from etude.core.progress import track
from etude.core.settings import BaseSettings

EVALUATIONS = ("codebase", "tracking", "needle", "serving")
FRESH = "fresh"  # needs a file of questions, which nobody but the user has


def evaluate_base(
    tested: ModelUnderTest, settings: BaseSettings, only: Collection[str] | None = None
) -> dict[str, Any]:
    """Name of the evaluation -> its figures, with the seconds that it took; without `only` all that are possible."""
    known = (*EVALUATIONS, FRESH)
    if only is None:
        only = known if settings.questions else EVALUATIONS
    if wrong := [name for name in only if name not in known]:
        raise EtudeError(f"there is no base evaluation {wrong[0]!r}: choose from {', '.join(known)}")
    if FRESH in only and not settings.questions:
        raise EtudeError("fresh knowledge needs a file of questions: give --questions FILE (`etude bench fresh`)")
    # Read before minutes are spent on the others.
    questions = read_questions(Path(settings.questions), settings.since) if FRESH in only else []
    code = read_code(settings.code, settings.code_bytes) if {"codebase", "needle", "serving"} & {*only} else None
    found: dict[str, Any] = {}
    for name in known:
        if name in only:
            began = time.monotonic()
            figures = _evaluate(name, tested, settings, code, questions)
            found[name] = figures | {"seconds": round(time.monotonic() - began, 1)}
    return found


def memory_figures(tested: ModelUnderTest, settings: BaseSettings) -> dict[str, float]:
    """State tracking and needles as a few numbers, for a log of training."""
    found = evaluate_base(tested, settings, ("tracking", "needle"))
    figures: dict[str, float] = {f"needle_{name}": found["needle"][name] for name in ("exact", "probability", "rank")}
    for length in sorted({place["length"] for place in found["needle"]["places"]}):
        places = [place["probability"] for place in found["needle"]["places"] if place["length"] == length]
        figures[f"needle_probability_at_{length}"] = sum(places) / len(places)
    return figures | {f"tracking_{name}": found["tracking"][name] for name in ("distance", "bits_per_byte")}


def _evaluate(
    name: str, tested: ModelUnderTest, settings: BaseSettings, code: Code | None, questions: list[Question]
) -> dict[str, Any]:
    if name == "tracking":
        repository = settings.repository
        histories = read_histories(Path(repository), settings.seed) if repository else invent_histories(settings.seed)
        cases = choose_cases(tested, histories, settings.histories, settings.history_tokens)
        with track("tracking files", len(cases), "files") as bar:
            return {"repository": repository or "invented"} | asdict(measure_tracking(tested, cases, bar.advance))
    if name == FRESH:
        with track("asking about libraries", len(questions), "questions") as bar:
            return {"file": settings.questions} | asdict(measure_fresh(tested, questions, bar.advance))
    assert code is not None
    if name == "serving":
        ids = tested.text.encode("".join(text for _, text in code.files))
        with track("serving", len(settings.serving_lengths), "lengths") as bar:
            limits = settings.serving_most, settings.serving_requests, settings.serving_tokens
            return asdict(measure_serving(tested, ids, settings.serving_lengths, *limits, bar.advance))
    if name == "codebase":
        with track("reading code", None, "tokens") as bar:
            return asdict(measure_codebase(tested, code, settings.window, bar.advance))
    places = len(settings.needle_lengths) * len(settings.needle_depths)
    with track("looking for needles", places * settings.needle_trials, "needles") as bar:
        needles = measure_needles(
            tested,
            filler_lines(code),
            settings.needle_lengths,
            settings.needle_depths,
            settings.needle_trials,
            settings.needle_candidates,
            settings.seed,
            bar.advance,
        )
        return asdict(needles)
