"""Studies: arms are run where a result is missing, seed by seed; the page has verdict, table and a figure."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from etude.bench.studies import run_arms as running
from etude.bench.studies.page import write_page
from etude.bench.studies.run_arms import run_arms
from etude.bench.studies.study import StudyFolder, open_study, study_names
from etude.cli.main import app
from etude.core.errors import EtudeError

OWN = """
from etude.bench.report.charts import Line
from etude.bench.stats import mean_interval
from etude.bench.studies.study import Arm, Figure, Study, Verdict

def measure(run):
    return {"score": float((run / "score").read_text())}

def conclude(results):
    gain = mean_interval([b.values["score"] - a.values["score"] for a, b in zip(results["old"], results["new"])])
    return Verdict("confirmed" if gain.low > 0 else "not confirmed", f"gain {gain.mean:.1f}")

def figures(results):
    lines = [Line(arm, [(each.seed, each.values["score"]) for each in some]) for arm, some in results.items()]
    return [Figure("Scores", lines, "seed")]

STUDY = Study(
    claim="New is better.", shown="A higher score.",
    arms={"cpu": {n: Arm(n, (("score", n, "{seed}", "--run", "{run}", "{base}"),)) for n in ("old", "new")}},
    measure=measure, conclude=conclude, figures=figures, columns={"score": "score"},
    prepare=(("base", "{seed}", "--run", "{base}"),), seeds=2,
)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[StudyFolder, list[list[str]]]:
    """A study whose commands are played by a function that knows what each arm would come to."""
    (tmp_path / "studies" / "better").mkdir(parents=True)
    (tmp_path / "studies" / "better" / "study.py").write_text(OWN)
    typed: list[list[str]] = []

    def play(words: list[str]) -> int:
        typed.append(words)
        run = Path(words[words.index("--run") + 1])
        run.mkdir(parents=True, exist_ok=True)
        if words[0] == "score":
            (run / "score").write_text(str(int(words[2]) + (10 if words[1] == "new" else 0)))
        return 0

    monkeypatch.setattr(running, "run_command", play)
    return open_study("better", tmp_path / "studies"), typed


def test_missing_arms_are_run_seed_by_seed_and_finished_ones_never_again(
    own: tuple[StudyFolder, list[list[str]]], tmp_path: Path
) -> None:
    study, typed = own
    assert study.verdict("cpu").verdict == "open"
    done = run_arms(study, "cpu", tmp_path / "runs", only=[("old", 0)])
    assert done == [("old", 0)] and study.missing("cpu") == [("new", 0), ("old", 1), ("new", 1)]
    run_arms(study, "cpu", tmp_path / "runs")
    assert [words[0] for words in typed] == ["base", "score", "score", "base", "score", "score"]
    assert study.missing("cpu") == [] and run_arms(study, "cpu", tmp_path / "runs") == []
    kept = json.loads((study.path / "results" / "new-1.json").read_text())
    assert kept["values"] == {"score": 11.0} and kept["commands"][0][:2] == ["score", "new"]
    assert str(tmp_path) not in json.dumps(kept["commands"])  # nothing of this machine's folders
    assert not (tmp_path / "runs" / "better-cpu-new-1").exists()
    assert study.verdict("cpu").verdict == "confirmed"


def test_the_page_has_the_verdict_a_table_and_a_figure(
    own: tuple[StudyFolder, list[list[str]]], tmp_path: Path
) -> None:
    study, _ = own
    assert "open" in write_page(study, "cpu").read_text()
    run_arms(study, "cpu", tmp_path / "runs")
    page = write_page(study, "cpu").read_text()
    assert "**Verdict: confirmed.** gain 10.0" in page and "| new | 2 | 10.5" in page and "4 of 4 results" in page
    picture = ElementTree.fromstring((study.path / "figure-1.svg").read_text())  # well-formed, and of its own
    assert picture.tag.endswith("svg") and "prefers-color-scheme: dark" in (study.path / "figure-1.svg").read_text()


def test_a_command_that_fails_is_named(
    own: tuple[StudyFolder, list[list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "run_command", lambda words: 2)
    with pytest.raises(EtudeError, match=r"`etude base 0 .* ended with status 2"):
        run_arms(own[0], "cpu", tmp_path / "runs")


def test_damaged_results_and_unknown_names_are_one_sentence(
    own: tuple[StudyFolder, list[list[str]]], tmp_path: Path
) -> None:
    study, _ = own
    file = study.result_file("cpu", "old", 0)
    file.parent.mkdir()
    file.write_text("{}")
    with pytest.raises(EtudeError, match="no result of a study"):
        study.results("cpu")
    with pytest.raises(EtudeError, match="there are better"):
        open_study("worse", tmp_path / "studies")
    with pytest.raises(EtudeError, match="no arms of size h200"):
        study.arms("h200")


def test_the_studies_of_the_project_are_listed() -> None:
    root = Path(__file__).parents[3] / "studies"
    found = CliRunner().invoke(app, ["study", "list", "--studies", str(root), "--json"])
    rows = json.loads(found.stdout.splitlines()[-1])["studies"]
    assert [row["name"] for row in rows] == study_names(root) and len(rows) >= 3
    for row in rows:
        assert row["claim"] and row["verdict"] and row["results"] <= row["of"]
    for path in root.glob("*/study.py"):
        assert len(path.read_text().splitlines()) <= 150
