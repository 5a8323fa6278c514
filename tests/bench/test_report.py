"""The report of an invented run: whole, shorter, hostile; and results.json beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from etude.bench.report.charts import Bound, Line, chart, number
from etude.bench.report.html import join, tag
from etude.bench.report.page import write_report
from etude.bench.report.trajectories import pick
from etude.bench.result import load_result
from etude.bench.run_data import read_run
from etude.bench.run_results import write_results
from etude.core.errors import EtudeError

MakeRun = Callable[..., Path]
ALONE = {"meta"}  # elements without an end


class Page(HTMLParser):
    """Refuses what is not well-formed and keeps what is there."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.texts: list[str] = []
        self.style = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append(name)
        self.attributes += [(name, key, value) for key, value in attributes]
        assert len({key for key, _ in attributes}) == len(attributes)
        if name not in ALONE:
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.style += data
        else:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def read(run: Path) -> tuple[str, Page]:
    text = write_report(run).read_text()
    return text, Page(text)


def test_the_report_has_everything_a_reader_asks_for(fake_run: MakeRun) -> None:
    run = fake_run()
    text, page = read(run)
    assert text.startswith("<!DOCTYPE html>")
    for wanted in (
        *("Reinforcement learning raised pass@1", "sft (before RL)", "rl (after RL)", "sft-more", "paired gain"),
        *("gain, best of 4", "format errors", "Families never trained on: 20 tasks", "pass@1 of each family"),
        *("Reward", "effort", "Pass rate", "on evaluation tasks", "Staleness", "Drift", "Tokens for each rollout"),
        *("Numerics: learner against engine", "bound of the mean 1e-5", "bound of the max 1e-3"),
        *("Pretraining loss", "Fine-tuning loss", "learner computes", "engine computes", "learner waits for rollouts"),
        *("Fixed by RL", "Still failing", "One more", "the resolved recipe", "bench-rl", "rollouts spoiled"),
        *("13 min 12 s", "vocab_size = 1024", "cores", "InvalidArguments"),
    ):
        assert wanted in page.text, wanted
    assert page.elements.count("figure") == 14
    assert len(text) < 400_000


def test_the_report_loads_nothing_and_runs_nothing(fake_run: MakeRun) -> None:
    _, page = read(fake_run())
    assert not {"script", "link", "img", "iframe", "object", "base", "form", "a"} & set(page.elements)
    names = {key for _, key, _ in page.attributes}
    assert not {"src", "href", "srcset", "xlink:href", "action", "data"} & names
    assert not any(name.startswith("on") for name in names)
    assert "url(" not in page.style
    assert "@import" not in page.style
    assert not re.search(r"https?:|//", " ".join(value or "" for _, _, value in page.attributes))
    assert ("meta", "http-equiv", "Content-Security-Policy") in page.attributes


def test_what_files_and_models_say_is_only_ever_text(fake_run: MakeRun, hostile: str) -> None:
    name = "run <b>&\"'"
    run = fake_run(name, text=hostile)
    _, plain = read(fake_run("plain"))
    text, page = read(run)
    assert set(page.elements) <= set(plain.elements)
    assert {key for _, key, _ in page.attributes} <= {key for _, key, _ in plain.attributes}
    assert "<script>alert(1)</script>" in page.text  # as text
    assert name in page.text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\\u202e" in page.text


def test_a_run_that_has_not_come_far_gets_a_shorter_report(fake_run: MakeRun) -> None:
    sizes = []
    for number_, stages in enumerate(("corpus", "corpus pretrain", "corpus pretrain demos sft")):
        run = fake_run(f"run{number_}", stages=stages)
        text, page = read(run)
        results = write_results(run)
        assert results["rl"] is None
        assert results["paired_gain"] is None
        assert results["numerics"] == {"mean": None, "max": None}
        assert "Staleness" not in page.text
        sizes.append(len(text))
    assert sizes == sorted(sizes)
    assert "There is no benchmark after reinforcement learning yet" in page.text
    assert "Fixed by RL" not in page.text
    assert "Still failing" in page.text
    with pytest.raises(EtudeError, match="is not a run"):
        write_report(run.parent)


def test_a_broken_file_is_a_note_in_the_report(fake_run: MakeRun) -> None:
    run = fake_run(arms=False)
    (run / "bench" / "rl.json").write_text('{"model": 1}')
    (run / "recipe.toml").unlink()
    with (run / "metrics.jsonl").open("a") as file:
        file.write("[]\n{}\n")
    facts = json.loads((run / "run.json").read_text())
    facts["stages"]["rl"] = {"began": "yesterday", "finished": "today"}
    (run / "run.json").write_text(json.dumps(facts))
    _, page = read(run)
    assert "rl.json is no benchmark that can be read" in page.text
    assert "recipe.toml cannot be read" in page.text
    assert "metrics.jsonl was left out" in page.text


def test_a_stage_that_is_under_way_is_named_and_has_its_curves(fake_run: MakeRun) -> None:
    run = fake_run()
    facts = json.loads((run / "run.json").read_text())
    del facts["stages"]["rl"]["finished"], facts["stages"]["rl"]["facts"]
    (run / "run.json").write_text(json.dumps(facts))
    (run / "bench" / "rl.json").unlink()
    _, page = read(run)
    assert "stages not finished rl" in re.sub(r"\s+", " ", page.text)
    assert "Staleness" in page.text
    assert "rl" not in write_results(run)["seconds"]


def test_the_three_rollouts_are_what_they_are_called(fake_run: MakeRun) -> None:
    data = read_run(fake_run())
    fixed, failing, more = pick(data)
    assert [name for name, _ in fixed.rollouts] == ["sft", "rl"]
    assert [shown.passed for _, shown in fixed.rollouts] == [False, True]
    assert data.before is not None
    before = {task.name: task for task in data.before.tasks}
    assert fixed.rollouts[0][1] == before[fixed.task.name].shown
    assert [shown.passed for _, shown in failing.rollouts] == [False]
    assert [shown.passed for _, shown in more.rollouts] == [True]
    assert len({each.task.family for each in (fixed, failing, more)}) == 3


def test_results_have_the_agreed_shape(fake_run: MakeRun) -> None:
    run = fake_run()
    results = write_results(run)
    assert json.loads((run / "results.json").read_text()) == results
    agreed = {"sft", "rl", "paired_gain", "seconds", "numerics", "void", "seed"}
    assert set(results) == agreed | {"paired_gain_best_of", "unseen", "arms"}
    for name in ("sft", "rl"):
        figures: dict[str, Any] = results[name]
        assert set(figures) == {"pass@1", "pass@4", "tokens", "format_errors"}
        low, high = figures["pass@1"][1:]
        assert 0 <= low < figures["pass@1"][0] < high <= 1
        result = load_result(run / "bench" / f"{name}.json")
        rates = [row.tally.passed / 4 for row in result.rows()]
        assert figures["pass@1"][0] == pytest.approx(sum(rates) / 100)
        assert figures["pass@4"] == sum(rate > 0 for rate in rates) / 100
    mean, low, high = results["paired_gain"]
    assert mean == pytest.approx(results["rl"]["pass@1"][0] - results["sft"]["pass@1"][0])
    assert low < mean < high
    assert results["paired_gain_best_of"]["4"][0] == pytest.approx(results["rl"]["pass@4"] - results["sft"]["pass@4"])
    assert results["seconds"]["rl"] == 421.0
    assert results["void"] == 2 + 3 * 3
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert results["numerics"]["max"] == max(row.get("probe_max") or 0 for row in rows)
    assert set(results["unseen"]) == {"sft", "rl", "sft-more", "paired_gain"}
    assert results["arms"]["sft-more"]["paired_gain"][0] < mean


def test_colours_can_be_read_in_light_and_in_dark() -> None:
    """WCAG: 4.5 for text, 3 for lines."""
    style = (resources.files("etude.bench.report") / "style.css").read_text()
    light, dark = style.split("@media (prefers-color-scheme: dark)", 1)
    for part in (light, dark.split("* {")[0]):
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part))
        for ground in ("ground", "card", "quiet"):
            assert contrast(colours["ink"], colours[ground]) >= 7
            assert contrast(colours["soft"], colours[ground]) >= 4.5
        for series in ("c1", "c2", "c3", "c4", "c5"):
            assert contrast(colours[series], colours["card"]) >= 4.5
        assert contrast(colours["good"], colours["good-ground"]) >= 4.5
        assert contrast(colours["bad"], colours["bad-ground"]) >= 4.5


def contrast(one: str, other: str) -> float:
    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    brighter, darker = sorted((light(one), light(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


# Pieces


def test_charts_stay_inside_their_frame_whatever_they_are_given() -> None:
    shapes: list[list[tuple[float, float]]] = [
        [(0, 0)],
        [(5, 1e-9), (6, 1e9)],
        [(1, 0.3), (2, 0.3)],
        [(i, (-1) ** i * i) for i in range(2000)],
        [(1, float("nan")), (2, float("inf")), (3, -2.0)],
    ]
    for points in shapes:
        for log in (False, True):
            figure = chart("a", [Line("x", points, smooth=True, marked=len(points) < 5)], log=log)
            if figure is None:
                assert log
                continue
            Page(figure)
            assert "nan" not in figure
            for places in re.findall(r'points="([^"]*)"', figure):
                for x, y in (map(float, place.split(",")) for place in places.split()):
                    assert 0 <= x <= 400
                    assert 0 <= y <= 210
    assert chart("nothing", [Line("x", [])], bounds=[Bound("b", 1)]) is None


def test_numbers_are_short() -> None:
    values = (0, 1, 0.5, 12.345, 99.99, 123.4, 9990, 12345, 1234567, 1e-5, 0.001, float("nan"))
    shown = ["0", "1", "0.5", "12.3", "100", "123", "9990", "12.3k", "1.23M", "1e-5", "1e-3", "-"]
    assert [number(value) for value in values] == shown


def test_every_text_is_escaped_unless_it_was_made_here() -> None:
    assert tag("p", "<b>", tag("i", "&"), None, ["x", 3], class_='"') == '<p class="&quot;">&lt;b&gt;<i>&amp;</i>x3</p>'
    assert join("a\x00b") == "a\\x00b"
    assert tag("details", open=True, id=None) == "<details open></details>"
