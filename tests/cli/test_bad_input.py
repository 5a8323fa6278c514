"""Bad input to commands: one clear sentence, a non-zero exit, no traceback, nothing lost."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

Command = Any  # the `etude` fixture: arguments to a completed process


def refused(answer: subprocess.CompletedProcess[str]) -> str:
    """The one sentence of a refusal."""
    assert answer.returncode == 2, (answer.returncode, answer.stdout, answer.stderr)
    assert "Traceback" not in answer.stderr + answer.stdout
    sentences = [line for line in answer.stderr.splitlines() if line.startswith("error: ")]
    assert len(sentences) == 1 and answer.stderr.splitlines()[-1] == sentences[0], answer.stderr
    return sentences[0]


def done(answer: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert answer.returncode == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return found


def test_unknown_key(etude: Command):
    said = refused(etude("pretrain", "nano", "pretrain.stpes=5"))
    assert said == "error: unknown key pretrain.stpes; did you mean pretrain.steps?"


def test_wrong_type(etude: Command):
    said = refused(etude("pretrain", "nano", "pretrain.steps=many"))
    assert said == 'error: pretrain.steps must be a whole number, not "many"'


def test_broken_toml(etude: Command, tmp_path: Path):
    (tmp_path / "mine.toml").write_text("[pretrain\nsteps = 5\n")
    said = refused(etude("pretrain", "mine.toml"))
    assert "mine.toml is not valid TOML" in said and "line 1" in said


def test_a_shape_that_cannot_be(etude: Command):
    assert "3 query heads" in refused(etude("pretrain", "nano", "model.depth=0", "model.heads=3"))
    assert "model.depth=0" in refused(etude("pretrain", "nano", "model.heads=3"))


def test_a_stage_that_does_not_exist(etude: Command):
    assert "known: corpus" in refused(etude("run", "nano", "--stage", "sfft"))


def test_a_device_that_is_not_there(etude: Command, tiny: Path):
    said = refused(etude("pretrain", tiny, "run.device=cuda:77"))
    assert "run.device" in said and "cuda:77" in said


def test_missing_folder(etude: Command, tiny: Path, tmp_path: Path):
    said = refused(etude("corpus", tiny, 'corpus.sources=[{use="folder", path="nowhere"}]'))
    assert "nowhere" in said


def test_empty_corpus(etude: Command, tiny: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    said = refused(etude("pretrain", tiny, 'corpus.sources=[{use="folder", path="empty"}]'))
    assert "empty" in said


def test_missing_conversations(etude: Command, tiny: Path, tmp_path: Path):
    assert "none.jsonl" in refused(etude("sft", tiny, "sft.data=none.jsonl"))
    assert not (tmp_path / "runs").exists()  # found out before anything was trained


def test_a_run_folder_of_somebody_else(etude: Command, tiny: Path, tmp_path: Path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    for extra in ([], ["--fresh"]):
        assert "thesis is not a run" in refused(etude("pretrain", tiny, "--run", "thesis", *extra))
    assert [entry.name for entry in (tmp_path / "thesis").iterdir()] == ["chapter.tex"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("harness.effort={low=1, hihg=1}", "harness.effort has the level 'hihg': the levels are low, medium, high"),
        ("rl.kl=0.1 rl.algorithm.use=grpo", "rl.kl takes k1 from the rewards"),
        (
            "harness.limits.rollout_tokens=5000 harness.summary.max_tokens=5000",
            "a summary of up to 5000 tokens (harness.summary.max_tokens) and its request leave 0 for the work; raise",
        ),
        (
            "harness.limits.rollout_tokens=5000 harness.summary.at=630",
            "leave 558 for the work, and harness.summary.at = 630 is behind that; raise",
        ),
        ("cluster.weights_dtype=int4", "is about weights in cluster.weights: name a directory or a bucket"),
        ("cluster.weights=w cluster.weights_dtype=fp8", "rl.probe_mean = 1e-05 would stop the run: set rl.probe_mean,"),
        ("rl.monitor=[{use='tool_error'}]", "did you mean tool_errors? Or give your own as ./file.py:Class"),
    ],
)
def test_what_the_loop_would_refuse_leaves_no_run(etude: Command, tiny: Path, tmp_path: Path, given: str, said: str):
    """A run that has begun is bound to its recipe: the mended command would be refused for the mistake's sake."""
    (tmp_path / "config.json").write_text("{}")
    usual = [f"rl.model={tmp_path}", "harness.limits.context_tokens=640"]
    words = shlex.split(given) if "{" not in given else [given]
    assert said in refused(etude("rl", tiny, *usual, *words, "--run", "runs/wrong"))
    assert not (tmp_path / "runs/wrong").exists()


def test_an_engine_is_lent_to_a_run_alone(etude: Command, tmp_path: Path):
    assert "runs/nowhere" in (said := refused(etude("serve", tmp_path, "--lend", "runs/nowhere"))) and "run" in said
    assert "leave out --port, --name" in refused(
        etude("serve", tmp_path, "--lend", "runs/nowhere", "--port", "9000", "--name", "x")
    )
    assert "memory" not in said


def test_no_model_where_one_was_named(etude: Command, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    assert "nowhere" in refused(etude("sample", "nowhere", "x"))
    assert "empty" in refused(etude("sample", "empty", "x"))
    assert "not a run" in refused(etude("status", "empty"))


def test_a_refusal_is_json_for_scripts(etude: Command):
    answer = etude("pretrain", "nano", "pretrain.stpes=5", "--json")
    refused(answer)
    found = json.loads(answer.stdout.splitlines()[-1])
    assert found["ok"] is False and "did you mean" in found["error"]


def unfinished(path: Path) -> None:
    """Make a finished run look as if it had been killed after its last checkpoint."""
    facts = json.loads((path / "run.json").read_text())
    del facts["stages"]["pretrain"]["finished"]
    (path / "run.json").write_text(json.dumps(facts))


def test_truncated_and_mismatched_checkpoints(etude: Command, tiny: Path, tmp_path: Path):
    run = tmp_path / "runs" / "tiny"
    model = Path(done(etude("pretrain", tiny, "--json"))["model"])
    weights, config = model / "model.safetensors", model / "config.json"
    whole, shape = weights.read_bytes(), config.read_bytes()

    weights.write_bytes(whole[: len(whole) // 2])
    unfinished(run)
    said = refused(etude("pretrain", tiny))
    assert "pretrain-0000004 is damaged: model.safetensors has" in said and "remove" in said
    assert "model.safetensors is cut short" in refused(etude("sample", model, "x"))

    weights.write_bytes(whole)
    config.write_text(json.dumps(json.loads(shape) | {"intermediate_size": 48}))
    said = refused(etude("sample", model, "x"))
    assert "model.layers.0.mlp." in said and "with shape" in said and "config.json asks for" in said

    config.write_bytes(shape)
    assert (model.parent / "pretrain-0000002").is_dir()
    assert done(etude("pretrain", tiny, "--json"))["ok"]


def test_full_disk_while_saving(etude: Command, tiny: Path, tmp_path: Path):
    """The first checkpoint fits and the second does not; with room again the same command finishes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    run = disk / "run"
    arguments = ["pretrain", tiny, "--run", run]
    checkpoints = run / "checkpoints"
    mounted = _mount(disk)
    try:
        if mounted:
            size = sum(file.stat().st_size for file in Path(done(etude(*arguments, "--json"))["model"]).rglob("*"))
            shutil.rmtree(checkpoints)
            unfinished(run)
            free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
            (disk / "filler").write_bytes(bytes(free - int(1.7 * size) - 64 * 1024))
            answer = etude(*arguments)
        else:
            answer = _with_a_full_disk(arguments)
        said = refused(answer)
        assert "pretrain-0000004" in said and "the disk is full; pretrain-0000002 is intact" in said
        assert [entry.name for entry in checkpoints.iterdir()] == ["pretrain-0000002"]
        (disk / "filler").unlink(missing_ok=True)
        answer = done(etude(*arguments, "--json"))
        assert answer["ok"] and Path(answer["model"]).name == "pretrain-0000004"
        assert json.loads((run / "run.json").read_text())["lineages"][-1]["resumed"] == {"pretrain": 2}
    finally:
        if mounted:
            subprocess.run(["umount", str(disk)], timeout=30, check=True)


def _mount(folder: Path) -> bool:
    """A disk of a few megabytes, where we may make one."""
    try:
        command = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)]
        return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0
    except FileNotFoundError:
        return False


def _with_a_full_disk(arguments: list[Any]) -> subprocess.CompletedProcess[str]:
    """The same command where no disk can be mounted: the system refuses to flush the second checkpoint."""
    program = """
import errno, os, sys
from etude.cli.main import main as cli
from etude.core import durable
whole = durable.sync
def sync(path):
    if "pretrain-0000004" in str(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    whole(path)
durable.sync = sync
cli()
"""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("content", ["", "{", "[1]"])
def test_a_broken_run_file(etude: Command, tiny: Path, tmp_path: Path, content: str):
    done(etude("corpus", tiny, "--json"))
    (tmp_path / "runs" / "tiny" / "run.json").write_text(content)
    assert "run.json" in refused(etude("corpus", tiny))
