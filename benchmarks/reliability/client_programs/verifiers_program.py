"""verifiers: an environment of one turn and one with a tool, evaluated through the server."""

from __future__ import annotations

import verifiers as vf
from checks import BASE_URL, HELLO, KEY, MODEL, check
from datasets import Dataset
from openai import AsyncOpenAI

client = AsyncOpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0)
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
    found = results.get("outputs", results)
    return [one["reward"] for one in found] if isinstance(found, list) else list(found["reward"])


def says_hello(completion: list, **_: object) -> float:
    return float(any(HELLO in (message.get("content") or "") for message in completion))


def called(completion: list, **_: object) -> float:
    return float(any(message.get("role") == "tool" for message in completion))


def single(**more: object) -> bool:
    data = Dataset.from_list([{"question": "say hello", "answer": HELLO}])
    return rewards(vf.SingleTurnEnv(dataset=data, rubric=vf.Rubric(funcs=[says_hello])), **more) == [1.0, 1.0]


def tools() -> bool:
    data = Dataset.from_list([{"question": "call the tool", "answer": ""}])
    env = vf.ToolEnv(dataset=data, tools=[read, bash], max_turns=2, rubric=vf.Rubric(funcs=[called]))
    return rewards(env) == [1.0, 1.0]


check("chat", single)
print("CHECK stream does not ask for it", flush=True)
check("tools", tools)
print("CHECK structured does not ask for it", flush=True)
check("logprobs", lambda: single(logprobs=True))
