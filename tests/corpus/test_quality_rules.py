"""Levels of quality by rules: what is counted, which phase reads what, and mistakes in a recipe."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from etude.core import recipe as recipes
from etude.core.errors import EtudeError
from etude.core.settings import CorpusSettings, QualitySettings, TokensSettings
from etude.corpus.build import build_corpus
from etude.corpus.mix import Mix
from etude.corpus.quality_rules import MEASURES, check_phase, check_quality, highest_level, level_by_rules
from etude.corpus.sources.table import open_sources
from etude.pipeline.stages.table import checked_stages, stages_for
from etude.tokens.text_tokenizer import open_tokenizer

CODE = '# a note\n"""Two lines\nof words."""\nx = 1\nx = 1\n\n'


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("letters", 22 / 34),  # of what is not white space
        ("digits", 2 / 34),
        ("characters", len(CODE)),
        ("line", 12),
        ("mean_line", len(CODE) / 7),
        ("distinct_lines", 4 / 5),
        ("comments", 3 / 5),
    ],
)
def test_what_is_counted(name: str, counted: float) -> None:
    assert MEASURES[name](CODE) == pytest.approx(counted)


def test_a_level_needs_those_below_it() -> None:
    rules = [{"least_comments": 0.5, "most_line": 20.0}, {"most_digits": 0.01}]
    assert level_by_rules(CODE, rules) == 1
    assert level_by_rules(CODE.replace("1", "y"), rules) == 2
    assert level_by_rules("y = z\n", rules) == 0  # meets the second table alone
    assert level_by_rules(CODE, []) == 0 and all(measure("") >= 0 for measure in MEASURES.values())


def test_each_phase_reads_its_level_and_all_above(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    for number in range(30):
        body = "".join(f"plain_{number}_{line} = compute({line})\n" for line in range(12))
        (code / f"bare{number}.py").write_text(body)
        (code / f"good{number}.py").write_text(
            f'"""Explains number {number}\nin two lines."""\n' + body + "# why\n" * 2
        )
    quality = QualitySettings(rules=[{"least_comments": 0.2}])
    settings = CorpusSettings(near_threshold=1.0, held_out=0.2, fim_rate=0.0, quality=quality)
    made = build_corpus(
        open_sources([{"use": "folder", "path": str(code)}]),
        settings,
        TokensSettings(vocab_size=300),
        tmp_path / "out",
        0,
    )
    assert "- of level 1 on" in made.table()
    tokenizer = open_tokenizer(tmp_path / "out" / "tokenizer")
    counts = {}
    for level in (0, 1):
        documents = tokenizer.decode(
            np.concatenate(Mix(tmp_path / "out", "train", 512, 0, quality=level).take(30_000)).tolist()
        )
        counts[level] = documents.count("plain_") and documents.count("Explains") / documents.count("_0 = compute(0)")
    assert counts[0] == pytest.approx(0.5, abs=0.1) and counts[1] == pytest.approx(1.0, abs=0.1)


def test_mistakes_are_found_before_the_first_phase() -> None:
    with pytest.raises(EtudeError, match="'least_beauty', which is no rule: the rules are least_letters"):
        check_quality(QualitySettings(rules=[{"least_beauty": 1.0}]))
    assert highest_level(QualitySettings()) == 0
    assert highest_level(QualitySettings("labels.jsonl", [0.5, 0.9], [{"most_line": 9.0}])) == 1
    with pytest.raises(EtudeError, match=r"extend\.quality is 2, but the corpus has levels up to 0"):
        check_phase("extend", 2, QualitySettings())
    changes = ["corpus.quality.rules=[]", "pretrain.model=", "extend.model="]
    with pytest.raises(EtudeError, match=r"mtp\.quality is 1, but the corpus has levels up to 0"):
        checked_stages("mtp", recipes.load("nano-cpt", changes))


def test_both_recipes_of_continued_pretraining_stage_mix_and_quality() -> None:
    for name in ("nano-cpt", "cpt"):
        recipe = recipes.load(name)
        phases = (recipe.pretrain, recipe.mtp, recipe.extend)
        assert [phase.quality for phase in phases] == [0, 1, 2] and highest_level(recipe.corpus.quality) == 2
        assert all(phase.weights for phase in phases) and recipe.pretrain.weights != recipe.extend.weights
        assert recipe.extend.mtp_weight > 0  # heads and model together
    whole = [stage.name for stage in stages_for("report", recipes.load("nano-cpt"))]
    assert whole == ["corpus", "pretrain", "mtp", "extend", "demos", "sft", "report"]
    with pytest.raises(EtudeError, match=r"rl\.steps is 0"):
        checked_stages("rl", recipes.load("nano-cpt", ["pretrain.model=", "rl.model="]))
