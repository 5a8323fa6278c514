"""Benchmarks through real sandboxes: by script, by a tiny model in a real engine, and when the machinery fails."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from etude.bench.result import BenchResult, compare, load_result, save_result
from etude.bench.runner import bench_policy, bench_tasks, run_bench, summary_tokens
from etude.core import recipe as recipes
from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, Sample, User
from etude.core.settings import AgentLimits, BenchSettings, HarnessSettings, RewardSettings, SummarySettings
from etude.forge.katas.task_source import write_katas
from etude.harness.summary import REQUEST
from etude.harness.text_turns import write_turn
from etude.harness.trajectory import MessageRecord, Segment, Trajectory
from etude.model.checkpoint.directory import save_model
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.policies.scripted import Scripted, scripted
from etude.rollout.rollout import build_setup
from etude.sandbox.hosts import StoringHost
from etude.tokens.tokenizer import Tokenizer

SMALL = BenchSettings(count=3, unseen_count=2, samples=2, concurrency=4)


class Grounds:
    def __init__(self, loop: asyncio.AbstractEventLoop, host: StoringHost) -> None:
        self.run, self.host = loop.run_until_complete, host

    def bench(self, name: str, settings: BenchSettings = SMALL, **options: Any) -> BenchResult:
        work = bench_policy(
            options.pop("policy", Scripted([])),
            bench_tasks(settings),
            settings,
            host=options.pop("host", self.host),
            setup=options.pop("setup", build_setup()),
            name=name,
            script=options.pop("script", lambda task: scripted(name, task)),
            **options,
        )
        result: BenchResult = self.run(work)
        return result


@pytest.fixture(scope="module")
def grounds(sandboxes: tuple[asyncio.AbstractEventLoop, StoringHost]) -> Grounds:
    return Grounds(*sandboxes)


def test_the_reference_passes_and_nobody_fails_on_the_same_tasks(grounds: Grounds, tmp_path: Path) -> None:
    heard: list[tuple[int, int]] = []
    good = grounds.bench("reference", on_progress=lambda done, total: heard.append((done, total)))
    bad = grounds.bench("null")
    assert heard == [(i, 10) for i in range(1, 11)]
    assert [row.set for row in good.tasks] == ["held_out"] * 3 + ["unseen"] * 2
    assert all(row.passed == [True, True] for row in good.tasks)
    assert all(row.passed == [False, False] for row in bad.tasks)
    assert good.backend == "local"
    assert (good.void, good.retried) == (0, 0)
    assert all(tokens > 0 for row in good.tasks for tokens in row.tokens if tokens is not None)
    assert good.counts["held_out"].rollouts == 6
    assert good.counts["unseen"].stops["finish"] == 4
    assert good.counts["held_out"].tools["read"]["calls"] >= 6
    assert good.counts["held_out"].format_errors == 0
    for which in ("held_out", "unseen"):
        gain = compare(bad, good, which=which)  # type: ignore[arg-type]
        assert gain is not None
        assert gain.mean == 1
    shown = good.tasks[0].shown
    assert shown is not None
    assert shown.passed
    assert {turn.role for turn in shown.turns} == {"system", "user", "assistant", "tool"}
    assert any(name == "edit" or name == "write" for turn in shown.turns for name, _ in turn.calls)

    path = tmp_path / "bench" / "sft.json"
    save_result(good, path)
    assert load_result(path) == good
    assert json.loads(path.read_text())["summary"]["unseen"]["pass@1"][0] == 1


def test_what_passes_is_counted_by_the_audits_verdict_where_it_looks(grounds: Grounds) -> None:
    """Katas are not audited unless the reward says so; a rollout that failed is no hack that paid."""
    settings = dataclasses.replace(SMALL, count=2, unseen_count=0)
    assert grounds.bench("reference", settings).audited == {}
    parts = [{"use": "tests"}, {"use": "hack_penalty", "weight": 1.0}]
    setup = build_setup(reward=RewardSettings(parts=parts))
    assert grounds.bench("reference", settings, setup=setup).audited == {"clean": 4}
    assert grounds.bench("null", settings, setup=setup).audited == {}


def test_the_same_recipe_gives_the_same_tasks_every_time() -> None:
    first, again = bench_tasks(SMALL), bench_tasks(SMALL)
    assert [(which, task.digest) for which, task in first] == [(which, task.digest) for which, task in again]


def test_unreadable_turns_and_wrong_calls_are_counted_by_class(grounds: Grounds) -> None:
    class Clumsy:
        async def sample(self, context: Any, sampling: Any) -> Sample:
            said = sum(isinstance(message, Assistant) for message in context.messages)
            turns = ["<tool_call>{", scripted_text("read", path="nowhere.py"), scripted_text("fly"), "I give up."]
            return Sample(turns[said], "stop")

    def scripted_text(name: str, **arguments: str) -> str:
        return write_turn(Assistant(calls=(Call(name, arguments),)))

    settings = dataclasses.replace(SMALL, count=1, unseen_count=0)
    result = grounds.bench("clumsy", settings, policy=Clumsy(), script=None)
    counts = result.counts["held_out"]
    assert (counts.turns, counts.malformed_turns, counts.calls) == (8, 2, 4)
    assert counts.format_errors == 0.25
    assert counts.tool_errors == {"InvalidArguments": 2, "UnexpectedEnvironment": 2}
    assert counts.stops == {"final": 2}
    assert "unseen" not in result.counts


def test_a_call_in_place_of_a_summary_has_taken_tokens_too() -> None:
    """A model that cannot follow the request counted as one whose summaries cost nothing."""
    said = [MessageRecord(User(REQUEST)), MessageRecord(Assistant(), purpose="summary"), MessageRecord(Assistant())]
    segment = Segment(messages=[0, 1, 2])
    for message, part, length in ((0, "prompt", 5), (1, "thinking", 3), (1, "call", 4), (2, "call", 6)):
        segment.rendered.append(message, part, range(length), own=message > 0)  # type: ignore[arg-type]
    carried = Segment(messages=[1])  # where a later segment shows it again, it was not said again
    carried.rendered.append(0, "call", range(4), own=True)
    assert summary_tokens(Trajectory(entries=said, segments=[segment, carried])) == 7
    assert summary_tokens(Trajectory(entries=said)) == 0  # a text of no length


def test_summaries_and_their_tokens_are_counted(grounds: Grounds) -> None:
    class Reader:
        async def sample(self, context: Any, sampling: Any) -> Sample:
            if context.messages[-1] == User(REQUEST):
                return Sample("nothing yet.", "stop")
            return Sample(write_turn(Assistant(calls=(Call("read", {"path": "nowhere.py"}),))), "stop")

    limits = AgentLimits(turns=30, context_tokens=900, rollout_tokens=2400)
    setup = build_setup(HarnessSettings(limits=limits, summary=SummarySettings(max_tokens=40)))
    settings = dataclasses.replace(SMALL, count=1, unseen_count=0)
    counts = grounds.bench("reader", settings, policy=Reader(), script=None, setup=setup).counts["held_out"]
    assert counts.summaries >= 2 and counts.summary_tokens == counts.summaries * (len("nothing yet.") // 4)


def test_a_policy_that_is_gone_ends_the_benchmark_with_its_words(grounds: Grounds) -> None:
    class Gone:
        async def sample(self, context: Any, sampling: Any) -> Sample:
            raise ConnectionResetError("the engine process ended with code -9")

    with pytest.raises(EtudeError, match=r"given up: 2 of 10 rollouts were spoiled.*policy.*ended with code -9"):
        grounds.bench("gone", policy=Gone(), script=None)


def test_a_spoiled_rollout_is_no_failed_one(grounds: Grounds) -> None:
    class Hiccup(Scripted):
        left = 5  # 3 attempts spoil one rollout, 2 more another one, which then goes well

        async def sample(self, context: Any, sampling: Any) -> Sample:
            if Hiccup.left:
                Hiccup.left -= 1
                raise ConnectionResetError("gone")
            return await super().sample(context, sampling)

    settings = dataclasses.replace(SMALL, concurrency=1)
    result = grounds.bench("hiccup", settings, script=lambda task: Hiccup(scripted("reference", task).turns))
    assert result.tasks[0].passed == [None, True]
    assert result.tasks[0].tokens[0] is None
    assert result.tasks[0].shown is None
    assert result.tasks[0].tally == (1, 1)
    assert (result.void, result.retried, result.void_causes) == (1, 4, {"policy": 5})
    assert result.counts["held_out"].rollouts == 5
    first = result.pass_at(1)
    assert first is not None
    assert first.mean == 1


def test_a_checkpoint_is_benchmarked_through_its_own_engine(grounds: Grounds, tmp_path: Path) -> None:
    tasks = bench_tasks(SMALL)
    tokenizer = Tokenizer.train([task.instruction for _, task in tasks], 320)
    model = tmp_path / "model"
    model.mkdir()
    config = ModelConfig(tokenizer.vocab_size, 16, 32, 1, 2, 1, 8, max_position_embeddings=2048)
    save_model(model, Decoder(config, 0))
    tokenizer.save(model)
    overrides = ["bench.count=2", "bench.samples=2", "engine.max_length=2048", "harness.limits.turns=2"]
    overrides += ["harness.limits.sampled_tokens=24", "bench.concurrency=4", "harness.limits.context_tokens=2048"]
    recipe = recipes.load(None, overrides)

    def play(log: str) -> BenchResult:
        save = tmp_path / "bench" / "sft.json"
        work = run_bench(model, recipe, host=grounds.host, threads=1, log=tmp_path / log, save=save)
        result: BenchResult = grounds.run(work)
        assert load_result(save) == result
        return result

    with pytest.raises(EtudeError, match=r"context_tokens is 2048, more than engine.max_length = 1024"):
        grounds.run(run_bench(model, recipes.load(None, [*overrides, "engine.max_length=1024"]), host=grounds.host))
    one, two = play("first.log"), play("second.log")
    assert [row.passed for row in one.tasks] == [[False, False], [False, False]]
    assert one.model == str(model)
    assert one.engine["sampled_tokens"] == sum(tokens for row in one.tasks for tokens in row.tokens if tokens)
    # The same seeds: the same rollouts, token for token.
    assert [row.tokens for row in one.tasks] == [row.tokens for row in two.tasks]
    assert [row.shown for row in one.tasks] == [row.shown for row in two.tasks]
    assert one.counts == two.counts


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tasks": {"use": "katas", "split": "unseen"}, "unseen_count": 3}, "is twice in the benchmark"),
        ({"tasks": {"split": "unseen"}}, "bench.tasks does not say where tasks come from"),
    ],
)
def test_wrong_sources_are_refused_before_anything_starts(change: dict[str, Any], words: str) -> None:
    with pytest.raises(EtudeError, match=words):
        bench_tasks(dataclasses.replace(SMALL, **change))


def test_a_source_that_is_too_small_is_refused(tmp_path: Path) -> None:
    write_katas(tmp_path, "train", 2, 0, (1,))
    with pytest.raises(EtudeError, match=r"bench.tasks has only 2 tasks where the benchmark asks for 3"):
        bench_tasks(dataclasses.replace(SMALL, tasks={"use": "folder", "path": str(tmp_path)}))


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "no benchmark"), ("[]", "no benchmark"), ("{}", "model"), ('{"model": 3}', "model"), (None, "cannot read")],
)
def test_files_that_are_no_benchmark_are_refused_in_a_sentence(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(EtudeError, match=words):
        load_result(path)


def test_benchmarks_of_other_tasks_are_not_paired(grounds: Grounds) -> None:
    settings = dataclasses.replace(SMALL, samples=1, count=2, unseen_count=0)
    one = grounds.bench("null", settings)
    other = dataclasses.replace(one, tasks=[dataclasses.replace(row, digest="0" * 8) for row in one.tasks])
    with pytest.raises(EtudeError, match="not of the same tasks"):
        compare(one, other)


def test_the_process_that_runs_a_benchmark_never_imports_torch() -> None:
    code = "import sys, etude.bench.runner, etude.bench.report.page; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
