"""langchain-openai: `ChatOpenAI`, bound tools, structured output."""

from __future__ import annotations

from checks import BASE_URL, HELLO, KEY, MODEL, READ, check
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Verdict(BaseModel):
    """Whether it is right."""

    ok: bool


model = ChatOpenAI(model=MODEL, base_url=BASE_URL, api_key=KEY, temperature=0, max_retries=0)


def logprobs() -> bool:
    return bool(model.bind(logprobs=True).invoke("say hello").response_metadata["logprobs"]["content"])


def tools() -> bool:
    bound = model.bind_tools([READ], tool_choice="read", parallel_tool_calls=False)
    return bound.invoke("call the tool").tool_calls[0]["name"] == "read"


check("chat", lambda: model.invoke("say hello").content == HELLO)
check("stream", lambda: "".join(chunk.content for chunk in model.stream("say hello")) == HELLO)
check("tools", tools)
check("structured", lambda: model.with_structured_output(Verdict, method="json_schema").invoke("say hello"))
check("logprobs", logprobs)
