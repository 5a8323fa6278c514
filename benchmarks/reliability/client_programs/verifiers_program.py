"""verifiers: an environment of one turn and one with a tool, evaluated through the server."""

from __future__ import annotations

import json
import os

import verifiers as vf
from checks import BASE_URL, HELLO, KEY, MODEL, SCHEMA, check
from datasets import Dataset
from verifiers.types import ClientConfig

os.environ["ETUDE_KEY"] = KEY
client = ClientConfig(api_key_var="ETUDE_KEY", api_base_url=BASE_URL, max_retries=0, timeout=60.0)
cold = {"temperature": 0, "max_tokens": 100}


def read(path: str, line: int) -> str:
    """Read a file."""
    return "say hello"


def bash(command: str) -> str:
    """Run a command."""
    return "say hello"


def rewards(env: vf.Environment, **more: object) -> list[float]:
    results = env.evaluate_sync(
        client=client, model=MODEL, num_examples=1, rollouts_per_example=2, sampling_args=cold | more
    )
    return [one["reward"] for one in results["outputs"]]


def says_hello(completion: list, **_: object) -> float:
    return float(any(HELLO in (message["content"] or "") for message in completion))


def says_ok(completion: list, **_: object) -> float:
    return float(set(json.loads(completion[-1]["content"])) == {"ok"})


def called(completion: list, **_: object) -> float:
    return float(any(message["role"] == "tool" for message in completion))


def has_logprobs(state: dict, **_: object) -> float:
    """Ids of prompt and answer with a log-probability for each of the second: what its trainers need."""
    (step,) = state["trajectory"]
    tokens = step["tokens"]
    ids, logprobs = tokens["completion_ids"], tokens["completion_logprobs"]
    return float(bool(tokens["prompt_ids"]) and len(ids) == len(logprobs) > 0 and max(logprobs) <= 0)


def single(judge: object, **more: object) -> bool:
    data = Dataset.from_list([{"question": "say hello", "answer": HELLO}])
    return rewards(vf.SingleTurnEnv(dataset=data, rubric=vf.Rubric(funcs=[judge])), **more) == [1.0, 1.0]


def tools() -> bool:
    data = Dataset.from_list([{"question": "call the tool", "answer": ""}])
    env = vf.ToolEnv(dataset=data, tools=[read, bash], max_turns=2, rubric=vf.Rubric(funcs=[called]))
    return rewards(env) == [1.0, 1.0]


form = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": SCHEMA}}
check("chat", lambda: single(says_hello))
print("CHECK stream does not ask for it", flush=True)
check("tools", tools)
check("structured", lambda: single(says_ok, response_format=form))
check("logprobs", lambda: single(has_logprobs, logprobs=True, extra_body={"return_token_ids": True}))
