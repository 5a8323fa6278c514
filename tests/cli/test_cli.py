import json
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from etude.core.run_files import read_metrics
from etude.core.settings import ModelSettings
from etude.model.checkpoint.directory import save_model
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.tokens.tokenizer import Tokenizer

Command = Any  # the `etude` fixture: arguments to a completed process


def last_object(answer: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return found


def test_help_is_quick_and_loads_no_torch(etude: Command):
    check = "import sys; sys.argv = ['etude', '--help']\nfrom etude.cli.main import main\n"
    check += "try: main()\nexcept SystemExit: pass\n"
    check += "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'pydantic')))"
    answer = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 0 and "pretrain" in answer.stdout


def test_version_recipes_and_doctor_answer_in_json(etude: Command):
    assert last_object(etude("version", "--json"))["version"]
    assert "nano" in last_object(etude("recipe", "list", "--json"))["recipes"]
    assert last_object(etude("recipe", "show", "nano", "model.depth=2", "--json"))["recipe"]["model"]["depth"] == 2
    doctor = etude("doctor", "--json")
    assert doctor.returncode == 0 and last_object(doctor)["ok"]


def test_recipes_are_shown_to_people_as_toml(etude: Command):
    text = etude("recipe", "show", "nano", "--explain").stdout
    assert "steps = " in text and "# optimiser steps" in text
    assert "nano" in etude("recipe", "list").stdout


def test_a_dry_run_says_what_would_happen_and_does_nothing(etude: Command, tiny: Path, tmp_path: Path):
    before = sorted(tmp_path.rglob("*"))
    answer = etude("pretrain", tiny, "--dry-run")
    assert answer.returncode == 0, answer.stderr
    assert "nothing was done" in answer.stdout and f"all settings: etude recipe show {tiny}" in answer.stdout
    stages = last_object(etude("pretrain", tiny, "--dry-run", "--json"))["stages"]
    assert [(row["stage"], row["state"]) for row in stages] == [("corpus", "starts"), ("pretrain", "starts")]
    assert stages[1]["steps"] == 4 and stages[1]["tokens"] == 4 * 256 and stages[1]["parameters"] > 6400
    assert sorted(tmp_path.rglob("*")) == before


def test_a_stage_brings_what_it_needs_and_is_done_once(etude: Command, tiny: Path, tmp_path: Path):
    corpus = etude("corpus", tiny, "--json")
    assert corpus.returncode == 0, corpus.stderr
    assert last_object(corpus)["facts"]["corpus"]["files"] == 12

    first = etude("pretrain", tiny, "pretrain.steps=5", "--json")  # the corpus never read this key
    assert first.returncode == 0, first.stderr
    answer = last_object(first)
    assert answer["ok"] and answer["done"] == ["pretrain"] and answer["finished_before"] == ["corpus"]
    model = Path(answer["model"])
    assert model.name == "pretrain-0000005" and (model / "config.json").exists() and (model / "tokenizer.json").exists()
    assert [row["step"] for row in read_metrics(tmp_path / "runs" / "tiny") if "loss" in row][-1] == 5

    again = etude("pretrain", tiny, "pretrain.steps=5")
    assert again.returncode == 0 and "nothing left to do" in again.stdout
    changed = etude("pretrain", tiny, "pretrain.steps=6")
    assert changed.returncode == 2 and "pretrain.steps (5 -> 6)" in changed.stderr
    status = etude("status", "runs/tiny")
    assert "pretrain" in status.stdout and "finished" in status.stdout

    fresh = etude("pretrain", tiny, "--fresh", "--json")
    assert fresh.returncode == 0 and last_object(fresh)["done"] == ["corpus", "pretrain"]


def test_fine_tuning_follows_pretraining_in_one_command(etude: Command, tiny: Path, tmp_path: Path):
    answer = etude("sft", tiny, "sft.data=chats.jsonl", "sft.epochs=1", "--json")
    assert answer.returncode == 0, answer.stderr
    found = last_object(answer)
    assert found["done"] == ["corpus", "pretrain", "sft"] and Path(found["model"]).name.startswith("sft-")

    sample = etude("sample", "runs/tiny", "def f", "--tokens", "5", "--json")
    assert sample.returncode == 0, sample.stderr
    assert len(last_object(sample)["ids"]) <= 5
    assert etude("sample", "runs/tiny", "def f", "--tokens", "5", "--json").stdout == sample.stdout


def test_an_interrupt_leaves_a_run_that_the_named_command_continues(etude: Command, tiny: Path, tmp_path: Path):
    command = [sys.executable, "-m", "etude", "pretrain", str(tiny), "pretrain.steps=100000", "--fresh"]
    child = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    watchdog = threading.Timer(60, child.kill)
    watchdog.start()
    assert child.stderr is not None
    for line in child.stderr:  # the first line of progress: training is under way
        if line.startswith("pretrain"):
            break
    child.send_signal(signal.SIGINT)
    _, stderr = child.communicate()
    watchdog.cancel()
    assert child.returncode == 130 and "Traceback" not in stderr
    resume = next(line for line in stderr.splitlines() if "to continue:" in line).partition("to continue: ")[2]
    assert resume == f"etude pretrain {tiny} pretrain.steps=100000"
    assert "continues after step" in etude("pretrain", tiny, "pretrain.steps=100000", "--dry-run").stdout


def test_a_component_of_the_docs_works_as_written(etude: Command, tiny: Path, tmp_path: Path):
    page = (Path(__file__).parents[2] / "docs" / "start" / "recipes.md").read_text()
    code = next(block for block in page.split("```python\n")[1:] if "class Tickets" in block).partition("```")[0]
    (tmp_path / "tickets.py").write_text(code)
    texts = ["\n".join(f"Ticket {i}: part {i * k} of machine {k} needs care." for k in range(20)) for i in range(30)]
    lines = [json.dumps({"text": text}) for text in texts]
    (tmp_path / "tickets.jsonl").write_text("\n".join(lines))
    use = 'corpus.sources=[{use="./tickets.py:Tickets", path="tickets.jsonl"}]'
    answer = etude("corpus", tiny, use, "--json")
    assert answer.returncode == 0, answer.stderr
    assert last_object(answer)["facts"]["corpus"]["files"] > 0
    wrong = etude("corpus", tiny, use.replace("path=", "pth="), "--run", "other")
    assert wrong.returncode == 2 and "did you mean corpus.sources.0.path?" in wrong.stderr


def test_a_served_model_answers_until_it_is_interrupted(tmp_path: Path):
    settings = ModelSettings(width=16, layers=1, heads=2, kv_heads=1, head_dim=8, mlp=32)
    tokenizer = Tokenizer.train(["a"], 280)
    save_model(tmp_path / "model", Decoder(ModelConfig.from_settings(settings, vocab_size=tokenizer.vocab_size)))
    tokenizer.save(tmp_path / "model")
    command = [sys.executable, "-m", "etude", "serve", str(tmp_path / "model"), "--port", "0", "run.threads=1"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watchdog = threading.Timer(60, child.kill)
    watchdog.start()
    assert child.stdout is not None
    address = child.stdout.readline().split()[-1]
    body = {"model": "model", "prompt": [40, 41, 42], "max_tokens": 4, "ignore_eos": True, "return_token_ids": True}
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=30) as response:
        assert len(json.load(response)["choices"][0]["token_ids"]) == 4
    child.send_signal(signal.SIGINT)
    _, stderr = child.communicate()
    watchdog.cancel()
    assert child.returncode == 0
    cache, where = stderr.splitlines()
    assert cache.startswith("key-value cache: ") and where == f"base URL {address}/v1, model model; Ctrl-C ends it"


@pytest.mark.parametrize("arguments", [["pretrain"], ["pretrain", "nano", "--nonsense"], ["nonsense"]])
def test_a_wrong_command_line_exits_with_2(etude: Command, arguments: list[str]):
    answer = etude(*arguments)
    assert answer.returncode == 2 and "Traceback" not in answer.stderr


def test_heads_then_longer_sequences_then_conversations_follow_from_one_recipe(
    etude: Command, tiny: Path, tmp_path: Path
):
    """pretrain -> mtp -> extend, each from the one before; sampled from with speculation."""
    steps = ["mtp.steps=3", "mtp.heads=2", "mtp.eval_every=3", "mtp.batch_tokens=256", "mtp.micro_tokens=128"]
    steps += ["mtp.sequence=64", "mtp.eval_tokens=200", "extend.steps=2", "extend.sequence=256", "extend.yarn=4"]
    steps += ["extend.batch_tokens=512", "extend.micro_tokens=512", "extend.eval_tokens=256", "base.histories=1"]
    steps += ["base.needle_lengths=[128]", "base.needle_depths=[0.5]", "base.needle_trials=1"]
    steps += ["base.needle_candidates=2", "base.history_tokens=2048"]
    run = tmp_path / "run"
    answer = etude("extend", tiny, *steps, "--run", run, "--json")
    assert answer.returncode == 0, answer.stderr
    found = last_object(answer)
    assert found["done"] == ["corpus", "pretrain", "mtp", "extend"]
    assert 0 < found["facts"]["mtp"]["accepted.1"] < 1
    rows = [row for row in read_metrics(run) if row["stage"] == "extend"]
    before, after = (row for row in rows if "held_out_loss" in row)
    assert (before["step"], after["step"]) == (0, 2)
    for row in (before, after):
        assert {"held_out_loss_to_128", "held_out_loss_to_256", "needle_rank", "tracking_distance"} <= row.keys()
    assert all("mtp_loss" in row for row in rows if "loss" in row)
    model = Path(found["model"])
    config = json.loads((model / "config.json").read_text())
    assert config["rope_parameters"]["rope_type"] == "yarn" and config["num_nextn_predict_layers"] == 2
    texts = [
        last_object(etude("sample", run, "def f", f"engine.speculate={k}", "--temperature", "0", "--json"))["text"]
        for k in (0, 2)
    ]
    assert texts[0] == texts[1]
    assert "nothing to train" in etude("mtp", tiny, "--run", tmp_path / "other").stderr
