import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.core.run import Run
from etude.core.run_files import changed_keys, check_recipe, in_use, read_facts, read_metrics, summary

RECIPE: dict[str, Any] = {"run": {"keep_checkpoints": 2, "seed": 0}, "pretrain": {"steps": 10, "betas": (0.9, 0.95)}}


def save(run: Run, step: int, stage: str = "pretrain", text: str = "weights") -> None:
    with run.checkpoint(stage, step) as folder:
        (folder / "model").write_text(text)
        (folder / "inner").mkdir()
        (folder / "inner" / "state").write_text(str(step))


def names(run: Run | Path) -> list[str]:
    path = run.path if isinstance(run, Run) else run
    return sorted(entry.name for entry in (path / "checkpoints").iterdir())


def changed(**values: Any) -> dict[str, Any]:
    return {**RECIPE, "pretrain": {**RECIPE["pretrain"], **values}}


def test_a_run_is_a_directory_that_a_person_can_read(tmp_path: Path):
    with Run.open(tmp_path / "r", RECIPE) as run:
        run.log("pretrain", 1, loss=2.5, note="warm")
        save(run, 1)
        run.finish("pretrain", loss=2.5)
    root = tmp_path / "r"
    assert tomllib.loads((root / "recipe.toml").read_text())["pretrain"] == {"steps": 10, "betas": [0.9, 0.95]}
    facts = json.loads((root / "run.json").read_text())
    assert facts["stages"]["pretrain"]["facts"] == {"loss": 2.5}
    assert facts["lineages"][0]["machine"]["versions"]["torch"]
    row = json.loads((root / "metrics.jsonl").read_text())
    assert (row["lineage"], row["stage"], row["step"], row["loss"], row["note"]) == (0, "pretrain", 1, 2.5, "warm")
    assert "pretrain: finished" in (root / "log").read_text()
    assert (root / "checkpoints" / "pretrain-0000001" / "inner" / "state").read_text() == "1"


def test_opening_a_run_again_continues_it_in_a_new_lineage(tmp_path: Path):
    with Run.open(tmp_path, RECIPE) as run:
        save(run, 3)
    with Run.open(tmp_path, RECIPE) as run:
        latest = run.latest("pretrain")
        assert run.lineage == 1 and latest is not None and run.step_of(latest) == 3
        assert not run.finished("pretrain") and run.latest("sft") is None
        run.finish("pretrain")
    assert [entry["resumed"] for entry in read_facts(tmp_path)["lineages"]] == [{}, {"pretrain": 3}]


def test_looking_at_a_finished_run_opens_no_lineage(tmp_path: Path):
    with Run.open(tmp_path, RECIPE) as run:
        run.finish("pretrain", steps=10)
    for _ in range(3):
        with Run.open(tmp_path, RECIPE) as run:
            assert run.finished("pretrain") and run.facts("pretrain") == {"steps": 10} and run.lineage == 1
    assert len(read_facts(tmp_path)["lineages"]) == 1


def test_a_changed_recipe_is_refused_by_key(tmp_path: Path):
    with Run.open(tmp_path, RECIPE) as run:
        save(run, 1)
    with pytest.raises(EtudeError, match=r"pretrain\.steps \(10 -> 50\).*--fresh"):
        Run.open(tmp_path, changed(steps=50))
    with pytest.raises(EtudeError, match=r"pretrain\.extra \(absent -> 1\)"):
        Run.open(tmp_path, changed(extra=1))
    with Run.open(tmp_path, RECIPE) as run:
        assert run.lineage == 1


def test_keys_that_no_begun_stage_has_read_may_change(tmp_path: Path):
    with Run.open(tmp_path, RECIPE) as run:
        run.begin("corpus", ("run.seed", "corpus"))
        run.finish("corpus")
    with Run.open(tmp_path, changed(steps=50)) as run:
        run.begin("pretrain", ("pretrain",))
    assert read_facts(tmp_path)["lineages"][1]["changed"] == {"pretrain.steps": [10, 50]}
    with pytest.raises(EtudeError, match=r"pretrain\.steps \(50 -> 10\)"):
        Run.open(tmp_path, RECIPE)
    with pytest.raises(EtudeError, match=r"run\.seed \(0 -> 1\)"):
        Run.open(tmp_path, {**changed(steps=50), "run": {"keep_checkpoints": 2, "seed": 1}})
    check_recipe(tmp_path, read_facts(tmp_path), {**changed(steps=50), "run": {"keep_checkpoints": 5, "seed": 0}})


def test_a_component_that_lacks_a_key_of_the_default_one_is_no_change(tmp_path: Path):
    """Tasks of a mixture have no `split`, katas, the default, have one: such a run could never be continued."""
    defaults = {"rl": {"tasks": {"use": "katas", "split": "train"}, "steps": 60, "later": {"on": False}}}
    recipe = {"rl": {"tasks": {"use": "mixture", "seed": 0}, "steps": 60}}
    with Run.open(tmp_path, recipe) as run:
        save(run, 1)
    facts = read_facts(tmp_path)
    check_recipe(tmp_path, facts, recipe, defaults)
    check_recipe(tmp_path, facts, {"rl": {**recipe["rl"], "later": {"on": False}}}, defaults)
    with pytest.raises(EtudeError, match=r"rl\.later\.on \(false -> true\)"):
        check_recipe(tmp_path, facts, {"rl": {**recipe["rl"], "later": {"on": True}}}, defaults)
    with pytest.raises(EtudeError, match=r'rl\.tasks\.split \("train" -> "unseen"\)'):
        check_recipe(tmp_path, facts, {"rl": {"tasks": {"use": "mixture", "seed": 0, "split": "unseen"}}}, defaults)


def test_changed_keys_are_dotted_and_both_sided():
    old, new = {"a": {"b": 1, "c": [1]}, "d": 2}, {"a": {"b": 1, "c": [1, 2]}, "e": 3}
    assert changed_keys(old, new) == {"a.c": ([1], [1, 2]), "d": (2, None), "e": (None, 3)}


def test_fresh_starts_over(tmp_path: Path):
    with Run.open(tmp_path, RECIPE) as run:
        save(run, 1)
        (tmp_path / "corpus").mkdir()
        (tmp_path / "corpus" / "shard").write_text("x")
    with Run.open(tmp_path, changed(steps=50), fresh=True) as run:
        assert run.lineage == 0 and run.latest("pretrain") is None
        assert not (tmp_path / "corpus").exists()


def test_fresh_leaves_what_links_point_to(tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    with Run.open(tmp_path / "r", RECIPE) as run:
        save(run, 1)
        (run.path / "link").symlink_to(outside)
    with Run.open(tmp_path / "r", RECIPE, fresh=True):
        assert (outside / "precious").exists() and not (tmp_path / "r" / "link").exists()


@pytest.mark.parametrize("content", [None, "{}", "not json", '{"kind": "something else"}'])
def test_a_directory_that_is_not_ours_is_refused_and_untouched(tmp_path: Path, content: str | None):
    (tmp_path / "thesis.tex").write_text("years of work")
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    before = sorted(entry.name for entry in tmp_path.iterdir())
    for fresh in (False, True):
        with pytest.raises(EtudeError):
            Run.open(tmp_path, RECIPE, fresh=fresh)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == before


def test_a_clearing_that_was_killed_is_completed_by_the_next_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with Run.open(tmp_path, RECIPE) as run:
        save(run, 1)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            Run.open(tmp_path, RECIPE, fresh=True)
    with Run.open(tmp_path, RECIPE) as run:
        assert run.lineage == 0 and run.latest("pretrain") is None


def test_what_may_change_while_a_run_goes_on_may_be_there_before_it(tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "live.toml").write_text("rl.optim.lr = 1e-5")
    with Run.open(tmp_path / "run", RECIPE):
        pass
    assert (tmp_path / "run" / "live.toml").read_text() and (tmp_path / "run" / "run.json").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("")
    with pytest.raises(EtudeError, match="is not a run"):
        Run.open(tmp_path / "other", RECIPE)


def test_two_commands_never_share_a_run(tmp_path: Path):
    with Run.open(tmp_path, RECIPE):
        assert in_use(tmp_path)
        with pytest.raises(EtudeError, match=f"in use by another command .process {os.getpid()}"):
            Run.open(tmp_path, RECIPE)
        with pytest.raises(EtudeError, match="in use"):
            Run.open(tmp_path, RECIPE, fresh=True)
    assert not in_use(tmp_path)
    Run.open(tmp_path, RECIPE).__exit__(None, None, None)


def test_the_newest_checkpoints_of_each_stage_are_kept(tmp_path: Path):
    with Run.open(tmp_path, RECIPE) as run:
        for step in (1, 5, 20, 100):
            save(run, step)
        save(run, 2, stage="sft")
        assert names(run) == ["pretrain-0000020", "pretrain-0000100", "sft-0000002"]


def test_saving_a_step_again_replaces_it(tmp_path: Path):
    with Run.open(tmp_path, RECIPE) as run:
        save(run, 1, text="old")
        save(run, 1, text="new")
        assert names(run) == ["pretrain-0000001"]
        assert (run.path / "checkpoints" / "pretrain-0000001" / "model").read_text() == "new"


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError('I/O error: Os { code: 28, kind: StorageFull, message: "No space left on device" }'),
    ],
)
def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path: Path, error: Exception):
    with Run.open(tmp_path, RECIPE) as run:
        save(run, 1)
        said = r"pretrain-0000002 .*the disk is full; pretrain-0000001 is intact"
        with pytest.raises(EtudeError, match=said), run.checkpoint("pretrain", 2) as folder:
            (folder / "model").write_text("half")
            raise error
        assert names(run) == ["pretrain-0000001"]
        assert run.latest("pretrain") is not None


def test_a_disk_that_fills_while_the_files_are_flushed_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Run.open(tmp_path, RECIPE) as run:
        save(run, 1)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(EtudeError, match="the disk is full"):
                save(run, 2)
        assert names(run) == ["pretrain-0000001"]
        save(run, 2)
        assert names(run) == ["pretrain-0000001", "pretrain-0000002"]


def test_a_bug_inside_a_save_keeps_its_own_exception(tmp_path: Path):
    with Run.open(tmp_path, RECIPE) as run:
        with pytest.raises(ZeroDivisionError), run.checkpoint("pretrain", 1):
            raise ZeroDivisionError
        assert names(run) == []


def test_leftovers_of_killed_processes_are_swept(tmp_path: Path):
    with Run.open(tmp_path, RECIPE) as run:
        save(run, 1)
        save(run, 2)
    root = tmp_path / "checkpoints"
    (root / ".pretrain-0000003.saving").mkdir()
    (root / ".pretrain-0000000.removed").mkdir()
    (root / "pretrain-0000002").rename(root / ".pretrain-0000002.replaced")  # killed between the two renames
    with Run.open(tmp_path, RECIPE) as run:
        assert names(run) == ["pretrain-0000001", "pretrain-0000002"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: os.truncate(folder / "model", 3), "model has 3 of 7 bytes"),
        (lambda folder: (folder / "inner" / "state").unlink(), "inner/state is missing"),
        (lambda folder: (folder / "checkpoint.json").write_text("{"), "checkpoint.json cannot be read"),
    ],
)
def test_a_damaged_checkpoint_is_refused_by_file(tmp_path: Path, damage: Any, said: str):
    with Run.open(tmp_path, RECIPE) as run:
        save(run, 1)
        damage(run.path / "checkpoints" / "pretrain-0000001")
        with pytest.raises(EtudeError, match=f"pretrain-0000001 is damaged: (its )?{said}; remove .* to continue"):
            run.latest("pretrain")


def test_history_past_the_resumed_checkpoint_is_dropped(tmp_path: Path):
    for last in (3, 4, 6):
        with Run.open(tmp_path, RECIPE) as run:
            latest = run.latest("pretrain")
            start = run.step_of(latest) if latest else 0
            for step in range(start + 1, last + 1):
                run.log("pretrain", step, loss=float(run.lineage))
                if step % 2 == 0:
                    save(run, step)
    rows = read_metrics(tmp_path)
    assert [(row["step"], row["lineage"]) for row in rows] == [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2)]


def test_history_without_any_checkpoint_is_dropped_and_finished_stages_keep_theirs(tmp_path: Path):
    with Run.open(tmp_path, RECIPE) as run:
        run.log("corpus", 0, files=3)
        run.finish("corpus")
        run.log("pretrain", 1, loss=1.0)
    with Run.open(tmp_path, RECIPE) as run:
        run.log("pretrain", 1, loss=2.0)
    assert [(row["stage"], row["lineage"]) for row in read_metrics(tmp_path)] == [("corpus", 0), ("pretrain", 1)]


def test_half_a_line_of_a_killed_process_does_no_harm(tmp_path: Path):
    with Run.open(tmp_path, RECIPE) as run:
        run.log("pretrain", 1, loss=1.0)
        save(run, 1)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"lineage": 0, "stage": "pretr')
    assert len(read_metrics(tmp_path)) == 1
    with Run.open(tmp_path, RECIPE) as run:
        run.log("pretrain", 2, loss=1.0)
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2]


def test_a_number_that_is_not_finite_is_logged_as_null(tmp_path: Path):
    with Run.open(tmp_path, RECIPE) as run:
        run.log("pretrain", 1, loss=float("nan"), norm=float("inf"))
    row = read_metrics(tmp_path)[0]
    assert row["loss"] is None and row["norm"] is None


def test_the_first_interrupt_asks_and_the_second_insists(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    before = signal.getsignal(signal.SIGINT)  # ignored where the tests run in the background of a shell
    with Run.open(tmp_path, RECIPE) as run:
        assert not run.stopping
        os.kill(os.getpid(), signal.SIGINT)
        assert run.stopping and "press Ctrl-C again" in capfd.readouterr().err
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_work_with_nothing_to_save_stops_at_the_first_interrupt(tmp_path: Path):
    with Run.open(tmp_path, RECIPE) as run:
        with pytest.raises(KeyboardInterrupt), run.stop_at_once():
            os.kill(os.getpid(), signal.SIGINT)
        assert not run.stopping


def test_a_kill_at_any_moment_leaves_whole_checkpoints(tmp_path: Path):
    """A process saves without end; wherever SIGKILL meets it, the newest committed checkpoint is complete."""
    program = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from etude.core.run import Run

        with Run.open(Path(sys.argv[1]), {"run": {"keep_checkpoints": 2}}) as run:
            latest = run.latest("pretrain")
            step = run.step_of(latest) if latest else 0
            while True:
                step += 1
                run.log("pretrain", step, loss=1.0)
                with run.checkpoint("pretrain", step) as folder:
                    for name in "abc":
                        (folder / name).write_text(str(step) * 1000)
                print(step, flush=True)
        """
    )
    reached = 0
    for lines in (1, 2, 3, 5):
        child = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        with contextlib.closing(child.stdout):
            for _ in range(lines):
                reached = int(child.stdout.readline())
            child.kill()
        child.wait(timeout=30)
        with Run.open(tmp_path, {"run": {"keep_checkpoints": 2}}) as run:
            latest = run.latest("pretrain")
            assert latest is not None and run.step_of(latest) >= reached
            assert all((latest / name).read_text() == str(run.step_of(latest)) * 1000 for name in "abc")
            assert not any(name.startswith(".") for name in names(run))


def test_summary_says_how_far_a_run_is(tmp_path: Path):
    with Run.open(tmp_path, RECIPE) as run:
        run.begin("pretrain")
        run.log("pretrain", 4, loss=1.5)
        save(run, 4)
    answer = summary(tmp_path)
    stage = answer["stages"]["pretrain"]
    assert (stage["state"], stage["step"], stage["metrics"]) == ("unfinished", 4, {"loss": 1.5})
    assert answer["lineages"] == 1 and not answer["in_use"] and len(stage["checkpoints"]) == 1
