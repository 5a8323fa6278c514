"""lm-eval: log-likelihoods of multiple-choice answers, and generation, on a task of our own."""

from __future__ import annotations

import json
import os
from pathlib import Path

from checks import BASE_URL, FOLDER, KEY, MODEL, check

os.environ |= {"OPENAI_API_KEY": KEY, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

ROWS = [{"question": "say hello, call the", "choices": [" tool", " café"], "answer": 0}] * 3
Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
COMMON = """
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl}}
test_split: test
doc_to_text: "{{question}}"
"""
Path("choice.yaml").write_text(
    f"task: choice\noutput_type: multiple_choice\ndoc_to_choice: choices\ndoc_to_target: answer\n{COMMON}"
    "metric_list: [{metric: acc}]\n"
)
Path("words.yaml").write_text(
    f"task: words\noutput_type: generate_until\ndoc_to_target: answer\n{COMMON}"
    "generation_kwargs: {until: ['zzz'], max_gen_toks: 20}\nmetric_list: [{metric: exact_match}]\n"
)


def run(task: str, kind: str, route: str, **more: str) -> dict:
    arguments = {"model": MODEL, "base_url": f"{BASE_URL}{route}", "tokenizer": FOLDER, "num_concurrent": "1"} | more
    arguments |= {"max_length": "512", "max_retries": "1"}
    manager = TaskManager(include_path=".", include_defaults=False)
    text = ",".join(f"{key}={value}" for key, value in arguments.items())
    chat = {"apply_chat_template": True} if kind == "local-chat-completions" else {}
    return simple_evaluate(kind, model_args=text, tasks=[task], task_manager=manager, log_samples=True, **chat)


def logprobs() -> bool:
    for sample in run("choice", "local-completions", "/completions")["samples"]["choice"]:
        (first, _), (second, _) = sample["filtered_resps"]
        assert first < 0 and second < 0 and first != second
    return True


check("chat", lambda: run("words", "local-chat-completions", "/chat/completions")["samples"]["words"])
print("CHECK stream does not ask for it", flush=True)
print("CHECK tools does not ask for it", flush=True)
print("CHECK structured does not ask for it", flush=True)
check("logprobs", logprobs)
