"""The simulated loop: its clock, its engine against arithmetic, the real dispatcher inside it, its forecasts."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from etude.cli.main import app
from etude.core import recipe as recipes
from etude.core.errors import EtudeError
from etude.core.rl_settings import RLSettings
from etude.core.run_files import KIND
from etude.engine.step_costs import StepCosts
from etude.plan.simulator import measure
from etude.plan.simulator.clock import run_simulated
from etude.plan.simulator.engine import SimulatedEngine, Spans
from etude.plan.simulator.environment import Faults, read_faults
from etude.plan.simulator.forecast import read_sandboxes
from etude.plan.simulator.measure import SCORED, Member, engine_times, measure_run, not_negative, shape_of, together
from etude.plan.simulator.processors import TURN, OwnDevices, Queue, SharedCores, compute
from etude.plan.simulator.service_times import (
    EngineTimes,
    LearnerTimes,
    RolloutShape,
    SandboxWork,
    ServiceTimes,
    graded,
    load_times,
    merged,
)
from etude.plan.simulator.simulate import Scenario, simulate
from etude.rl.probe import LENGTH, PROMPT

TIMES = Path("benchmarks/scale/nano_service_times.json")
EVEN = ServiceTimes(
    EngineTimes(step=0.01, token=0.001, prompt=0.0, running=8),
    LearnerTimes(step=1.0, token=0.0, score=0.0),
    groups=(tuple(RolloutShape(((10, 20), (10, 30)), 80, float(i), 1.0, 2.0) for i in range(4)),),
    start=30.0,
)
LOOP = RLSettings(groups=2, group=4, concurrency=16, staleness=2, steps=20, eval_every=0)


def test_hours_pass_at_once_and_in_order() -> None:
    async def work() -> list[tuple[str, float]]:
        heard: list[tuple[str, float]] = []
        clock = asyncio.get_running_loop()

        async def later(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            heard.append((name, clock.time()))

        await asyncio.gather(later("b", 7200.0), later("a", 60.0), later("c", 7200.0))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(clock.create_future(), 10.0)
        return [*heard, ("end", clock.time())]

    assert run_simulated(work()) == [("a", 60.0), ("b", 7200.0), ("c", 7200.0), ("end", 7210.0)]


def test_waiting_for_nothing_is_an_error_and_no_hang() -> None:
    async def work() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(EtudeError, match="never happen"):
        run_simulated(work())


def test_programs_share_cores_evenly() -> None:
    async def work() -> list[float]:
        cores, clock, ended = SharedCores(2.0, others=1.0), asyncio.get_running_loop(), []
        done = clock.create_future()
        for seconds in (2.0, 2.0, 5.0):
            compute(cores, seconds, lambda: ended.append(clock.time()))
        queue = Queue(OwnDevices())
        queue.do(20.0, lambda: done.set_result(None))
        await done
        return ended

    # Four threads on two cores: 2 s of work take 4. Then two are left, each with a core: 3 s more.
    assert run_simulated(work()) == pytest.approx([4.0, 4.0, 7.0])


def test_threads_of_one_session_share_what_a_single_one_of_another_gets() -> None:
    """A launcher's sandboxes are together no more than one thread, where the system shares by session."""

    def ends(by_session: bool) -> list[float]:
        async def work() -> list[float]:
            cores, clock = SharedCores(2.0, by_session=by_session), asyncio.get_running_loop()
            session, ended = cores.session(), dict[str, float]()
            done = clock.create_future()

            def end(name: str) -> None:
                ended[name] = clock.time()
                if len(ended) == 6:
                    done.set_result(None)

            for number in range(3):
                compute(cores, 2.0, lambda number=number: end(f"alone {number}"))
                compute(session, 1.0, lambda number=number: end(f"together {number}"))
            await done
            return [ended[f"alone {n}"] for n in range(3)] + [ended[f"together {n}"] for n in range(3)]

        return run_simulated(work())

    # Four sessions on two cores: each thread alone has half a core. What is left then has both, a core for each thread:
    # 2 of 3 s of work were done together by then, and the last takes half a second.
    assert ends(True) == pytest.approx([4.0] * 3 + [4.5] * 3)
    # Six threads: a third of a core each until the short ones are done, then two thirds.
    assert ends(False) == pytest.approx([4.5] * 3 + [3.0] * 3)


def test_who_begins_waits_for_those_that_compute() -> None:
    async def work() -> list[float]:
        cores = SharedCores(2.0, others=1.0, by_session=True)
        found = [cores.turn()]
        for _ in range(4):
            cores.runnable(1)
            found.append(cores.turn())
        assert OwnDevices().turn() == 0.0
        return found

    # One and two have a core each; of five on two cores one and a half are before whoever comes.
    assert run_simulated(work()) == pytest.approx([0.0, 0.0, TURN / 2, TURN, TURN * 1.5])


def test_a_device_beside_shared_cores_is_slower_by_its_host_work_alone() -> None:
    def took(host: float, slowed: bool = True) -> tuple[float, float]:
        """Seconds of a step of one second, and of two seconds of work of a thread, on one core."""

        async def work() -> tuple[float, float]:
            cores, clock = SharedCores(1.0), asyncio.get_running_loop()
            ended, done = list[float](), clock.create_future()
            compute(cores, 2.0, lambda: done.set_result(clock.time()))
            device = cores.device(host, slowed)
            device.runnable(1)

            def end() -> None:
                device.runnable(-1)
                ended.append(clock.time())

            device.at(device.now() + 1.0, end)
            return (ended[0], await done) if done.done() else (await done, ended[0])[::-1]

        return run_simulated(work())

    assert took(0.0) == pytest.approx((1.0, 2.0))
    # All of it is host work: a thread like the other.
    assert took(1.0) == pytest.approx((2.0, 3.0))
    # A thread for a fifth of the time leaves 5/6 of the core; of a second, a fifth is as much slower.
    assert took(0.2) == pytest.approx((0.8 + 0.2 * 1.2, 2.0 + 1.04 / 6))
    # Or it takes its time, and the other is as much slower.
    assert took(0.2, slowed=False) == pytest.approx((1.0, 2.0 + 1.0 / 6))


def test_a_pipelined_engine_answers_a_step_later_and_samples_as_much() -> None:
    async def work() -> tuple[float, float, float]:
        times = EngineTimes(step=1.0, token=0.0, prompt=0.0, running=4, ahead=1)
        engine, clock = SimulatedEngine(OwnDevices(), times, 0), asyncio.get_running_loop()
        done: asyncio.Future[Spans] = clock.create_future()
        engine.sample(0.0, 5, done.set_result)
        spans = await done
        return clock.time(), sum(tokens for _, tokens in spans), engine.sampled

    assert run_simulated(work()) == pytest.approx((6.0, 5.0, 5.0))


def test_an_engine_is_slower_with_a_larger_batch_and_knows_its_versions() -> None:
    times = EngineTimes(step=0.1, token=0.1, prompt=0.01, running=2)

    async def work() -> list[tuple[float, Spans]]:
        engine, clock = SimulatedEngine(OwnDevices(), times, version=0), asyncio.get_running_loop()
        found: list[tuple[float, Spans]] = []
        ended = [clock.create_future() for _ in range(3)]

        def take(place: int, spans: Spans) -> None:
            found.append((clock.time(), spans))
            ended[place].set_result(None)

        engine.sample(0, 10, lambda spans: take(0, spans))
        engine.sample(0, 20, lambda spans: take(1, spans))
        engine.sample(100, 5, lambda spans: take(2, spans))  # waits for a place
        await asyncio.sleep(1.5)  # five steps of a batch of two
        engine.swap(1)
        await asyncio.gather(*ended)
        return found

    first, late, long = run_simulated(work())
    assert first[0] == pytest.approx(3.0) and dict(first[1]) == pytest.approx({0: 5.0, 1: 5.0})
    # A prompt of 100 tokens takes a second in which nobody gets any, then five steps of two, then five alone.
    assert late[0] == pytest.approx(5.5) and dict(late[1]) == pytest.approx({1: 5.0})
    assert long[0] == pytest.approx(6.5) and dict(long[1]) == pytest.approx({0: 5.0, 1: 15.0})


def test_an_engine_that_dies_goes_on_where_answers_were_recorded() -> None:
    times = EngineTimes(step=1.0, token=0.0, prompt=0.0, running=8)

    async def work() -> tuple[float, Spans, float]:
        engine, clock = SimulatedEngine(OwnDevices(), times, version=3), asyncio.get_running_loop()
        done: asyncio.Future[Spans] = clock.create_future()
        engine.sample(0, 100, done.set_result)
        await asyncio.sleep(50)
        engine.fail(recorded=16)
        await asyncio.sleep(10)
        engine.start()
        spans = await done
        return clock.time(), spans, engine.lost

    at, spans, lost = run_simulated(work())
    assert lost == pytest.approx(8) and at == pytest.approx(100 + 10 + 8)
    assert sum(tokens for _, tokens in spans) == pytest.approx(100)


def test_the_same_seed_gives_the_same_figures_and_staleness_keeps_its_bound() -> None:
    one, again = (simulate(EVEN, Scenario(LOOP, seed=5)) for _ in range(2))
    assert one == again
    for bound in (0, 1, 4):
        found = simulate(EVEN, Scenario(replace(LOOP, staleness=bound)))
        assert found.staleness_max <= bound
        assert found.staleness_mean <= found.staleness_p95 <= bound


def test_a_learner_that_is_the_bottleneck_sets_the_pace() -> None:
    slow = replace(EVEN, learner=LearnerTimes(step=100.0, token=0.0, score=0.0))
    found = simulate(slow, Scenario(LOOP))
    assert found.step_seconds == pytest.approx(100.0, rel=0.02) and found.learner_busy > 0.98
    assert found.rollouts_per_second == pytest.approx(8 / 100, rel=0.02)


def test_failures_cost_throughput_and_no_rollout_is_lost() -> None:
    plain = simulate(EVEN, Scenario(LOOP, engines=2))
    faults = Faults(engines=60.0, sandboxes=60.0, slow_sandboxes=0.2, slower=5.0)
    failing = simulate(EVEN, Scenario(LOOP, engines=2, faults=faults))
    assert failing.rollouts_per_second < plain.rollouts_per_second and failing.failed > 0
    assert plain.waste == 0.0 and failing.steps == plain.steps == 18


def test_measured_times_are_never_negative_and_shapes_keep_their_tokens() -> None:
    chance = np.random.default_rng(0)
    columns = chance.random((50, 3)) + 0.1
    assert not_negative(columns, columns @ [2.0, 0.5, 0.0]) == pytest.approx([2.0, 0.5, 0.0], abs=1e-6)
    assert min(not_negative(columns, columns @ [2.0, 0.5, -0.3])) >= 0.0
    sampled = np.array([0, 0, 0, 1, 1, 0, 1, 1, 1], bool)
    shape = shape_of([sampled], 9, 1.0, 10.0, {"sampling": 6.0, "tools": 1.0})
    assert shape.turns == ((3, 2), (1, 3)) and shape.rest == pytest.approx(3.0)
    turns = [(i, 10 * i) for i in range(1, 8)]
    assert [sum(each) for each in zip(*merged(turns, 3), strict=True)] == [28, 280]


def test_plan_simulates_with_measured_times() -> None:
    done = CliRunner().invoke(app, ["plan", "nano", "--simulate", str(TIMES), "--sandboxes", "8,48", "--json"])
    assert done.exit_code == 0, done.output
    small, large = json.loads(done.stdout.splitlines()[-1])["sizes"]
    assert small["sandboxes"] == 8 and 0 < small["rollouts_per_second"] < large["rollouts_per_second"]
    assert 0 <= large["staleness_mean"] <= 2 and large["waste"] == 0.0


def test_refusals_say_what_to_do(tmp_path: Path) -> None:
    for words in ("", "0", "many", "1000000", "1²"):
        with pytest.raises(EtudeError, match="--sandboxes"):
            read_sandboxes(words)
    assert read_sandboxes("1_000, 10") == [10, 1000]
    for words in (["engines"], ["planets=1"], ["engines=-1"], ["engines=x"]):
        with pytest.raises(EtudeError, match="--fault"):
            read_faults(words)
    (tmp_path / "times.json").write_text("{}")
    with pytest.raises(EtudeError, match="no service times"):
        load_times(tmp_path / "times.json")
    with pytest.raises(EtudeError, match=r"cannot read .*nowhere, which has to be a finished run"):
        load_times(tmp_path / "nowhere")
    asked = ["plan", "nano", "--simulate", str(TIMES), "--sandboxes", "8,48"]
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(app, asked)
    assert "engines busy" in shown.output and "…" not in shown.output
    assert load_times(TIMES).engine.running > 0


def test_a_sandbox_that_starts_before_the_first_turn_makes_no_token_older() -> None:
    """Equal work in equal time: what comes behind the last turn ages the tokens, what comes before does not."""

    def with_shapes(times: ServiceTimes, rest: float, starting: float) -> ServiceTimes:
        shapes = tuple(replace(s, tools=0.0, rest=rest, starting=starting) for s in EVEN.groups[0])
        return replace(times, groups=(shapes,))

    shared = replace(EVEN, cores=2.0, sandbox=0.5)
    for times in (EVEN, shared):
        behind, before = (simulate(with_shapes(times, *each), Scenario(LOOP)) for each in ((4.0, 0.0), (0.0, 4.0)))
        assert before.rollouts_per_second == pytest.approx(behind.rollouts_per_second, rel=0.1)
        assert before.staleness_mean < behind.staleness_mean


def test_what_a_step_of_the_engine_takes_is_found_among_rows_that_are_all_alike() -> None:
    """Steps differ, and rows of metrics hardly do: least squares over rows gave 0.4 ms for a step of 1 ms."""
    chance, rows = np.random.default_rng(3), []
    for _ in range(12):
        costs, steps, sampled, computed = StepCosts(), 100, 0, 0
        for _ in range(steps):
            count, prompts = int(chance.integers(1, 64)), int(chance.integers(0, 2) * chance.integers(0, 300))
            costs.add(0.001 + 0.00005 * count + 0.00002 * prompts, count, prompts)
            sampled, computed = sampled + count, computed + count + prompts
        facts = {"steps": steps, "sampled_tokens": sampled, "computed_tokens": computed, **asdict(costs)}
        rows.append({f"engine_{name}": value for name, value in facts.items()})
    spent = np.array([1.25 * row["engine_step_seconds"] for row in rows])  # a quarter more for its server
    found = engine_times(rows, spent, recipes.load("nano", []), EVEN.groups)
    wanted = (1.25 * 0.001, 1.25 * 0.00005, 1.25 * 0.00002)
    assert (found.step, found.token, found.prompt) == pytest.approx(wanted, rel=1e-6)


def test_a_learner_that_shares_beginnings_pays_for_them_once_in_a_group() -> None:
    def member(ids: list[int], submission: str) -> Member:
        return Member(RolloutShape(((1, 1),), len(ids), 0.0), [np.array(ids)], submission)

    prompt, other = list(range(40)), list(range(100, 140))
    group = together([member([*prompt, 1], "a"), member([*prompt, 1, 2], "b"), member([*other, 3], "a")])
    assert [shape.own for shape in group] == [41, 1, 41]
    assert [shape.grade for shape in group] == [0, 1, 0] and graded([group]) == pytest.approx(2 / 3)
    assert [shape.grade for shape in together([member(prompt, "")])] == [-1]
    shapes = tuple(replace(shape, tokens=1000, own=100) for shape in EVEN.groups[0])
    slow = replace(EVEN, groups=(shapes,), learner=LearnerTimes(step=0.0, token=0.1, score=0.0))
    alone, shared = (
        simulate(replace(slow, learner=replace(slow.learner, shares=shares)), Scenario(LOOP))
        for shares in (False, True)
    )
    assert alone.step_seconds == pytest.approx(8 * 1000 * 0.1, rel=0.02)
    assert shared.step_seconds == pytest.approx(8 * 100 * 0.1, rel=0.1)


def test_rollouts_that_handed_in_the_same_wait_for_one_grade() -> None:
    """One sandbox for the grade of a group of equal ones, and four for four that differ."""

    def simulated(grades: tuple[int, ...]) -> float:
        shapes = tuple(replace(s, grade=g) for s, g in zip(EVEN.groups[0], grades, strict=True))
        # Each grade is as much work as any other: only how many there are differs.
        sandbox = 0.2 + 2.0 * graded([shapes])
        times = replace(EVEN, groups=(shapes,), cores=2.0, sandbox=sandbox, launcher=0.1, starting=0.1)
        return simulate(times, Scenario(LOOP)).rollouts_per_second

    assert simulated((0, 0, 0, 0)) > 1.5 * simulated((0, 1, 2, 3))


def test_the_work_of_a_sandbox_lies_where_its_time_was() -> None:
    shapes = (RolloutShape(((1, 1),), 2, 0.0, tools=1.0, rest=2.0, starting=1.0),)
    measured = replace(EVEN, groups=(shapes,), sandbox=0.9, launcher=0.1, starting=0.1, ending=0.1)
    assert measured.sandbox_work == SandboxWork(0.1, pytest.approx(0.1), pytest.approx(0.2), 0.1)
    unmeasured = (RolloutShape(((1, 1),), 2, 0.0),)
    assert replace(EVEN, groups=(unmeasured,), sandbox=0.9).sandbox_work == SandboxWork(0.0, 0.0, 0.9, 0.0)
    assert replace(EVEN, groups=(shapes,), sandbox=0.8).sandbox_work == SandboxWork(0.2, 0.2, pytest.approx(0.2), 0.0)
    sampled = np.array([0, 1], bool)
    spent = {"sampling": 6.0, "tools": 1.0, "starting": 0.5}
    assert shape_of([sampled], 2, 1.0, 10.0, spent) == RolloutShape(((1, 1),), 2, 1.0, 1.0, 2.5, 0.5)


def test_who_comes_while_the_engine_computes_a_step_begins_with_the_next() -> None:
    async def work() -> list[float]:
        clock = asyncio.get_running_loop()
        engine = SimulatedEngine(OwnDevices(), EngineTimes(step=1.0, token=0.0, prompt=0.0, running=4), 0)
        ended: list[asyncio.Future[Spans]] = [clock.create_future() for _ in range(2)]
        times: list[float] = []
        for wait in ended:
            wait.add_done_callback(lambda _: times.append(clock.time()))
        engine.sample(0.0, 5, ended[0].set_result)
        await asyncio.sleep(1.25)
        engine.sample(0.0, 2, ended[1].set_result)
        first, second = await asyncio.gather(*ended)
        assert sum(n for _, n in first) == pytest.approx(5) and sum(n for _, n in second) == pytest.approx(2)
        return times

    assert run_simulated(work()) == pytest.approx([4.0, 5.0])


def test_a_step_with_nothing_else_to_do_waits_for_as_many_engine_steps_as_the_real_probe() -> None:
    """A probe that is longer than the loop's own makes short steps late, and what waits for them old."""
    shapes = tuple(RolloutShape(((1, 1),), 2, float(i)) for i in range(4))
    times = ServiceTimes(
        EngineTimes(step=0.01, token=0.0, prompt=0.0, running=256),
        LearnerTimes(step=0.001, token=0.0, score=0.0),
        groups=(shapes,),
    )
    found = simulate(times, Scenario(replace(LOOP, staleness=4)))
    assert LENGTH * 0.01 <= found.step_seconds < (LENGTH + 2) * 0.01


def test_engine_and_learner_of_a_gpu_keep_their_pace_where_sandboxes_fill_the_cores() -> None:
    """With as many cores as are wanted, devices change nothing; on few, only host work is slower."""
    shared = replace(EVEN, cores=64.0, sandbox=0.5, worker=0.01, launcher=0.01)
    plenty, alike = simulate(shared, Scenario(LOOP)), simulate(replace(shared, devices=True), Scenario(LOOP))
    assert alike == plenty

    few = replace(shared, cores=1.0, sandbox=2.0)
    on_cores = simulate(few, Scenario(LOOP))
    engine, learner = replace(few.engine, host=0.2), replace(few.learner, host=0.2)
    on_gpu = simulate(replace(few, engine=engine, learner=learner, devices=True), Scenario(LOOP))
    assert on_gpu.rollouts_per_second > 1.05 * on_cores.rollouts_per_second
    # What sandboxes compute is the bottleneck either way, and never faster than one core.
    assert on_gpu.rollouts_per_second * few.sandbox < 1.01


def test_service_times_of_a_run_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are processor time and sleep, verbs of the learner seconds, sandboxes processor time of shared cores."""
    chance, rows = np.random.default_rng(7), []
    for step in range(8):
        costs, waited, sampled, computed = StepCosts(), 0.0, 0, 0
        for _ in range(50):
            count, prompts = int(chance.integers(1, 64)), int(chance.integers(0, 2) * chance.integers(0, 300))
            seconds = 0.001 + 0.00001 * count + 0.00002 * prompts
            costs.add(seconds, count, prompts)
            waited += 0.75 * seconds
            sampled, computed = sampled + count, computed + count + prompts
        costs.waited_seconds = waited
        facts = {"steps": 50, "sampled_tokens": sampled, "computed_tokens": computed, **asdict(costs)}
        tokens = 1000 * (step + 1)
        row = {"stage": "rl", "step": step, "lineage": 0, "time": 0.0, "seconds": 2.0, "rollouts": 16, "cores": 4.0}
        busy = (0.2 + 0.0001 * (tokens + 64 * (1 + PROMPT / LENGTH) * SCORED)) / 2
        row |= {"learner_busy": busy, "cpu_learner": 0.25 * busy}
        row |= {"forward_tokens": tokens, "cpu_sandboxes": 1.6, "cpu_workers": 0.8, "cpu_loop": 0.4, "cpu_others": 0.3}
        # Of its process, a tenth of the steps' seconds is the server's.
        row |= {"cpu_engine": (0.25 + 0.1) * costs.step_seconds / 2, "swap_seconds": 0.03}
        rows.append(row | {f"engine_{name}": value for name, value in facts.items()})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run.json").write_text(json.dumps({"kind": KIND, "stages": {}, "lineages": [{"resumed": {}}]}))
    monkeypatch.setattr(measure, "read_groups", lambda run: EVEN.groups)
    found = measure_run(tmp_path, recipes.load("nano", ["run.device=cuda", "rl.probe_tokens=64"]))
    times = (found.engine.step, found.engine.token, found.engine.prompt)
    assert times == pytest.approx((0.001, 0.00001, 0.00002), rel=1e-6)
    assert found.engine.host == pytest.approx(0.25 + 0.1) and found.engine.ahead == 1
    assert found.learner.token == pytest.approx(0.0001) and found.learner.step == pytest.approx(0.2)
    assert found.learner.host == pytest.approx(0.25)
    assert (found.cores, found.others, found.devices, found.swap) == pytest.approx((4.0, 0.3, True, 0.03))
    assert found.sandbox == pytest.approx(1.6 * 2 / 16) and found.worker == pytest.approx(0.1)
    (tmp_path / "times.json").write_text(json.dumps(found.data()))
    assert load_times(tmp_path / "times.json") == found
    assert simulate(found, Scenario(LOOP)).rollouts_per_second > 0
    # Before, only processor time was counted, or nothing of single steps: runs from then would give steps that are
    # several times as fast. An engine of somebody else's counts none.
    for name, value, why in (
        ("engine_steps", 0, "counts no steps"),
        ("engine_waited_seconds", None, "train a few steps again"),
        ("engine_step_seconds", None, "train a few steps again"),
    ):
        rows = [{key: each for key, each in (row | {name: value}).items() if each is not None} for row in rows]
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        with pytest.raises(EtudeError, match=why):
            measure_run(tmp_path, recipes.load("nano", ["run.device=cuda"]))


def test_a_faster_learner_shares_beginnings_as_before() -> None:
    shared = replace(EVEN, learner=replace(EVEN.learner, shares=True, host=0.5))
    assert shared.grown(2.0, 4.0).learner == replace(shared.learner, step=0.25)
