"""The endpoint policy against a real server that plays every fault, with a clock that never makes anybody wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from email.utils import formatdate
from typing import Any

import pytest
from aiohttp import web

from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Call, Context, Sampling, System, User, Version
from etude.core.settings import EndpointSettings
from etude.harness.text_turns import read_turn, write_turn
from etude.policies.endpoint.limits import Rate, TooLate
from etude.policies.endpoint.policy import EndpointPolicy
from etude.policies.endpoint.transport import Transport
from etude.tokens.dialect import ToolSchema

Play = Callable[[web.Request], Awaitable[web.StreamResponse]]

READ = ToolSchema("read", "Read a file.", {"type": "object", "properties": {}, "required": ["path"]})
ASKED = Context((System("Be brief."), User("Hello?")))


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
        await asyncio.sleep(0)


class Theatre:
    """A server that answers each request with the next play, the last one again and again."""

    def __init__(self, *plays: Play) -> None:
        self.plays = list(plays)
        self.bodies: list[dict[str, Any]] = []
        self.requests: list[web.Request] = []
        self.at_once = self.most_at_once = 0
        self.models: dict[str, Any] = {"data": []}

    async def list_models(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(self.models)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.json())
        play = self.plays.pop(0) if len(self.plays) > 1 else self.plays[0]
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await play(request)
        finally:
            self.at_once -= 1


def run(theatre: Theatre, work: Callable[[EndpointPolicy], Awaitable[Any]], **settings: Any) -> tuple[Any, Clock]:
    """`work` with a policy of the theatre's address; what it gives, and the clock it slept by."""
    options = {name: settings.pop(name) for name in ("tools", "decode", "version") if name in settings}
    clock = Clock()

    async def scenario() -> Any:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_get("/v1/models", theatre.list_models)
        app.router.add_route("*", "/v1/{any:.*}", theatre.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        chosen = EndpointSettings(url=f"http://127.0.0.1:{port}/v1", model="m", **settings)
        transport = Transport(chosen, now=clock.now, sleep=clock.sleep, jitter=lambda: 0.5)
        try:
            async with EndpointPolicy(chosen, write_turn=write_turn, transport=transport, **options) as policy:
                return await work(policy)
        finally:
            await runner.cleanup()

    return asyncio.run(scenario()), clock


def says(body: Any, status: int = 200, **headers: str) -> Play:
    async def play(request: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=status, headers={k.replace("_", "-"): v for k, v in headers.items()})

    return play


def chat(content: str | None = "hi", finish: str = "stop", **message: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": content, **message}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    return {"choices": [{"index": 0, "message": said, "finish_reason": finish}], "usage": usage}


def completion(ids: list[int], values: list[Any], finish: str = "stop", **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "text": "t", "token_ids": ids, "logprobs": {"token_logprobs": values}}
    return {
        "choices": [choice | {"finish_reason": finish} | more],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }


def refuses(status: int, message: str, **headers: str) -> Play:
    return says({"error": {"message": message, "code": None}}, status, **headers)


async def garbles(request: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>bad gateway</html>")


async def hangs_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def cuts_its_answer(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"choices": [')
    assert request.transport is not None
    request.transport.close()
    return response


async def falls_silent(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


def ask(policy: EndpointPolicy) -> Awaitable[Any]:
    return policy.sample(ASKED, Sampling(max_tokens=5))


def ask_ids(policy: EndpointPolicy) -> Awaitable[Any]:
    return policy.sample(Context(ids=(1, 2, 3)), Sampling(max_tokens=5, seed=9, stop_ids=(8,)))


# What is tried again


@pytest.mark.parametrize(
    "fault",
    [
        *(refuses(429, "slow down"), refuses(500, "oops"), refuses(503, "busy"), garbles, hangs_up, cuts_its_answer),
        *(says({"choices": []}), says({"choices": None})),
    ],
    ids=["429", "500", "503", "garbled", "hung up", "cut", "no choice", "null"],
)
def test_what_may_pass_is_tried_again_with_growing_pauses(fault: Play) -> None:
    theatre = Theatre(fault, fault, fault, says(chat("hi")))
    sample, clock = run(theatre, ask)
    assert sample.text == "hi" and sample.stop == "stop" and sample.ids is None and sample.cached_tokens == 4
    assert clock.slept == [0.375, 0.75, 1.5]  # half a second doubled, of which the jitter took a quarter
    assert all(body == theatre.bodies[0] for body in theatre.bodies)


def test_a_slow_answer_is_given_up_and_tried_again() -> None:
    sample, _ = run(Theatre(falls_silent, says(chat("hi"))), ask, try_seconds=1.0)
    assert sample.text == "hi"


def test_retry_after_is_honoured_in_seconds_and_as_a_date() -> None:
    theatre = Theatre(refuses(429, "later", Retry_After="20"), says(chat()))
    assert run(theatre, ask)[1].slept[0] == pytest.approx(20 * 1.05)
    date = formatdate(time.time() + 100, usegmt=True)
    (pause,) = run(Theatre(refuses(503, "later", Retry_After=date), says(chat())), ask)[1].slept
    assert 95 < pause < 110
    (pause,) = run(Theatre(refuses(503, "later", Retry_After="soon"), says(chat())), ask)[1].slept
    assert pause < 1


def test_everybody_waits_when_the_server_asks_for_it() -> None:
    theatre = Theatre(refuses(429, "later", Retry_After="20"), says(chat()))

    async def both(policy: EndpointPolicy) -> None:
        first = asyncio.create_task(ask(policy))
        while policy.transport._closed_until < 1001:
            await asyncio.sleep(0)
        await ask(policy)
        await first

    _, clock = run(theatre, both)
    assert len(theatre.bodies) == 3 and clock.time >= 1020


def test_connections_that_nobody_closes_end_with_the_event_loop() -> None:
    async def left(policy: EndpointPolicy) -> Transport:
        other = EndpointPolicy(policy.settings, write_turn=write_turn)
        await asyncio.gather(ask(other), ask(other))
        return other.transport

    transport, _ = run(Theatre(says(chat("hi"))), left)
    assert transport._http is not None and transport._http.closed


def test_a_wait_longer_than_the_deadline_is_refused_at_once() -> None:
    theatre = Theatre(refuses(429, "come back tomorrow", Retry_After="86400"))
    with pytest.raises(EtudeError, match=r"failed once and endpoint.seconds = 60 leave no time.*come back tomorrow"):
        run(theatre, ask, seconds=60)
    assert len(theatre.bodies) == 1


def test_the_last_of_many_faults_is_told() -> None:
    theatre = Theatre(refuses(500, "oops"), refuses(502, "the backend is gone"))
    with pytest.raises(EtudeError, match=r"failed 3 times, the last time: it answered 502: the backend is gone"):
        run(theatre, ask, tries=3)
    assert len(theatre.bodies) == 3


def test_nobody_there_is_told() -> None:
    async def refused() -> Any:
        settings = EndpointSettings(url="http://127.0.0.1:1/v1", model="m", tries=2)
        transport = Transport(settings, sleep=lambda seconds: asyncio.sleep(0))
        async with EndpointPolicy(settings, write_turn=write_turn, transport=transport) as policy:
            await ask(policy)

    with pytest.raises(EtudeError, match="failed 2 times, the last time: it cannot be reached"):
        asyncio.run(refused())


# What is not


@pytest.mark.parametrize(
    ("play", "sentence"),
    [
        (refuses(401, "no"), "refuses us .401.: name the variable of a key in endpoint.key_env"),
        (refuses(404, "The model `m` does not exist."), "endpoint.model = 'm'; it says: The model `m` does not exist"),
        (refuses(400, "maximum context length is 10"), "has no room for an answer .400.: maximum context length is 10"),
        (refuses(422, "bad field"), "refused the request .422.: bad field"),
        (says({}, 307, Location="http://127.0.0.1:1/v1"), "redirects elsewhere .307., which is not followed"),
        (says({"error": {"message": "pay", "code": "insufficient_quota"}}, 429), "refused the request .429.: pay"),
        (says({"error": {"message": "no such provider", "code": 404}}), "does not have that .404."),
        (says({"choices": [{"message": "x"}]}), "its choice has no message"),
        (says(chat(None, "content_filter")), "content filter withheld"),
        (says(chat(None, tool_calls=[{"function": {}}])), "a tool call without a function or a name"),
        (says(chat(None, tool_calls="x")), "tool calls of a wrong type"),
    ],
)
def test_what_will_not_pass_is_said_at_once(play: Play, sentence: str) -> None:
    theatre = Theatre(play)
    with pytest.raises(EtudeError, match=sentence):
        run(theatre, ask)
    assert len(theatre.bodies) == 1


def test_a_failure_inside_a_success_is_a_failure() -> None:
    sample, _ = run(Theatre(says({"error": {"message": "upstream", "code": 502}}), says(chat("hi"))), ask)
    assert sample.text == "hi"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"url": "ftp://host/v1", "model": "m"}, "must look like https://host/v1"),
        ({"url": "http://me:secret@host/v1", "model": "m"}, "holds a user or a password"),
        ({"url": "http://host:port/v1", "model": "m"}, "is no address"),
        ({"url": "http://a host/v1", "model": "m"}, "must look like https://host/v1"),
        ({"url": "http://host/v1"}, "endpoint.model is empty"),
        (
            {"url": "http://host/v1", "model": "m", "key_env": "ETUDE_NO_SUCH_KEY"},
            "ETUDE_NO_SUCH_KEY, which is not set",
        ),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_sent(settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(EtudeError, match=sentence) as error:
        EndpointPolicy(EndpointSettings(**settings), write_turn=write_turn)
    assert "secret" not in str(error.value)


# The key


def test_the_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETUDE_TEST_KEY", "sk-very-secret")
    theatre = Theatre(refuses(401, "Incorrect API key provided: sk-very-secret."))
    with pytest.raises(EtudeError, match=r"the key in \$ETUDE_TEST_KEY is not accepted") as error:
        run(theatre, ask, key_env="ETUDE_TEST_KEY")
    assert theatre.requests[0].headers["Authorization"] == "Bearer sk-very-secret"
    assert "sk-very-secret" not in str(error.value) and "[key]" in str(error.value)


def test_without_a_key_none_is_sent() -> None:
    theatre = Theatre(says(chat()))
    run(theatre, ask)
    assert "Authorization" not in theatre.requests[0].headers


# Budget and rates


def test_a_spent_budget_of_requests_counts_repeated_ones() -> None:
    theatre = Theatre(refuses(500, "oops"), says(chat()))

    async def twice(policy: EndpointPolicy) -> Any:
        await ask(policy)
        assert policy.spent["requests"] == 2
        await ask(policy)

    with pytest.raises(EtudeError, match=r"the budget endpoint.max_requests = 2 is spent: 2 requests, 10 tokens"):
        run(theatre, twice, max_requests=2)
    assert len(theatre.bodies) == 2


def test_a_budget_of_tokens_is_never_passed_by_many_at_once() -> None:
    theatre = Theatre(says(completion([4, 5], [-1.0, -2.0])))

    async def crowd(policy: EndpointPolicy) -> tuple[list[Any], dict[str, float]]:
        return await asyncio.gather(*(ask_ids(policy) for _ in range(20)), return_exceptions=True), policy.spent

    (results, spent), _ = run(theatre, crowd, max_tokens=40)
    refused = [result for result in results if isinstance(result, EtudeError)]
    assert 0 < len(refused) < 20 and "max_tokens = 40 is spent" in str(refused[0])
    assert spent["prompt_tokens"] + spent["sampled_tokens"] == 5 * (20 - len(refused)) <= 40


def test_money_follows_from_the_prices() -> None:
    async def twice(policy: EndpointPolicy) -> dict[str, float]:
        await ask(policy)
        await ask(policy)
        return policy.spent

    spent, _ = run(Theatre(says(chat())), twice, price_in=2.0, price_out=10.0, max_money=1.0)
    assert spent["money"] == pytest.approx(2 * (7 * 2 + 3 * 10) / 1e6)
    with pytest.raises(EtudeError, match=r"endpoint.max_money = 1e-05 is spent"):
        run(Theatre(says(chat())), ask, price_in=2.0, price_out=10.0, max_money=1e-5)


def test_a_lost_answer_is_booked_at_its_worst_and_a_refused_one_not_at_all() -> None:
    async def once(policy: EndpointPolicy) -> dict[str, float]:
        await ask_ids(policy)
        return policy.spent

    good = says(completion([4, 5], [-1.0, -2.0]))
    assert run(Theatre(cuts_its_answer, good), once)[0]["sampled_tokens"] == 5 + 2
    assert run(Theatre(refuses(500, "oops"), good), once)[0]["sampled_tokens"] == 2


def test_no_more_requests_at_once_than_asked_for() -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        for _ in range(50):
            await asyncio.sleep(0)
        return web.json_response(chat())

    async def crowd(policy: EndpointPolicy) -> None:
        await asyncio.gather(*(ask(policy) for _ in range(12)))

    theatre = Theatre(slow)
    run(theatre, crowd, concurrency=3)
    assert theatre.most_at_once <= 3 and len(theatre.bodies) == 12


def test_requests_are_paced_by_the_minute() -> None:
    async def crowd(policy: EndpointPolicy) -> None:
        for _ in range(10):
            await ask(policy)

    _, clock = run(Theatre(says(chat())), crowd, requests_per_minute=60)
    assert clock.time - 1000 == pytest.approx(10 - 1 - 2)  # two seconds' worth at once, the first on top
    with pytest.raises(EtudeError, match=r"no turn within 3 s at 60 requests and 0 tokens a minute"):
        run(
            Theatre(says(chat())),
            lambda p: asyncio.gather(*(ask(p) for _ in range(10))),
            requests_per_minute=60,
            seconds=3,
        )


def test_a_rate_never_lets_more_than_its_share_and_the_burst_pass() -> None:
    async def scenario() -> list[tuple[float, float]]:
        clock = Clock()
        rate = Rate(600, clock.now, clock.sleep)
        taken = []
        for amount in (5, 1, 30, 1, 1, 50, 2, 8, 1):
            await rate.take(amount, clock.time + 100)
            taken.append((clock.time, float(amount)))
        with pytest.raises(TooLate):
            await rate.take(1000, clock.time)
            await rate.take(1, clock.time + 1)
        return taken

    taken = asyncio.run(scenario())
    for place, (start, _) in enumerate(taken):
        for end in range(place + 1, len(taken)):
            passed = sum(amount for _, amount in taken[place:end])  # what was let through before `end` was
            assert passed <= 10 * (taken[end][0] - start + 2) + 1e-6


def test_what_was_not_used_of_a_rate_is_given_back() -> None:
    async def three(policy: EndpointPolicy) -> None:
        for _ in range(3):
            await ask_ids(policy)  # eight tokens at most, five in fact

    _, clock = run(Theatre(says(completion([4, 5], [-1.0, -2.0]))), three, tokens_per_minute=60)
    assert clock.time - 1000 == pytest.approx(2 * 5 - 2)


def test_a_cancelled_sample_leaves_nothing_behind() -> None:
    async def cancelled(policy: EndpointPolicy) -> dict[str, float]:
        task = asyncio.create_task(ask(policy))
        while not theatre.bodies:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        theatre.plays = [says(chat("hi"))]
        assert (await ask(policy)).text == "hi"
        return policy.spent

    theatre = Theatre(falls_silent)
    spent, _ = run(theatre, cancelled, concurrency=1)
    assert spent["requests"] == 2 and spent["sampled_tokens"] == 5 + 3


def test_nothing_is_asked_of_a_policy_that_was_closed() -> None:
    async def late(policy: EndpointPolicy) -> None:
        await ask(policy)
        await policy.close()
        await ask(policy)

    theatre = Theatre(says(chat()))
    with pytest.raises(EtudeError, match="was closed here"):
        run(theatre, late)
    assert len(theatre.bodies) == 1


# Token ids


def test_ids_and_log_probabilities_come_back_exactly() -> None:
    theatre = Theatre(says(completion([4, 8], [-0.25, -1e-9], prompt_token_ids=[1, 2, 3])))
    sample, _ = run(theatre, ask_ids, version=Version(2, 7), decode=lambda ids: "/".join(map(str, ids)))
    assert sample.ids == (4, 8) and sample.logprobs == (-0.25, -1e-9) and sample.text == "4/8"
    assert sample.versions == (Version(2, 7),) * 2 and sample.stop == "stop"
    assert theatre.requests[0].path == "/v1/completions"
    assert theatre.bodies[0] == {
        "model": "m",
        "prompt": [1, 2, 3],
        "max_tokens": 5,
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": 9,
        "logprobs": 0,
        "return_token_ids": True,
        "stop_token_ids": [8],
    }


# Messages


def test_native_tool_calls_become_the_turn_that_the_harness_reads() -> None:
    calls = [
        {
            "id": "x",
            "type": "function",
            "function": {"name": "read", "arguments": '{"path": "</tool_call>", "lines": 3}'},
        },
        {"id": "y", "type": "function", "function": {"name": "read", "arguments": "{}"}},
        {"id": "z", "type": "function", "function": {"name": "read", "arguments": '{"path": '}},
    ]
    theatre = Theatre(says(chat("Reading.", "tool_calls", tool_calls=calls, reasoning_content="look first")))
    sample, _ = run(theatre, ask, form="tools", tools=[READ])
    assert sample.stop == "stop"
    assert read_turn(sample.text) == Assistant(
        "look first",
        "Reading.",
        (
            Call("read", {"path": "</tool_call>", "lines": "3"}),
            Call("read", {}),
            Call("read", {"unreadable_arguments": '{"path": '}),
        ),
    )
    (body,) = theatre.bodies
    assert body["tools"][0]["function"]["parameters"]["required"] == ["path"]
    assert theatre.requests[0].path == "/v1/chat/completions"


def test_fields_can_be_added_renamed_and_left_out() -> None:
    theatre = Theatre(says(chat("long", "length")))
    more = {"reasoning_effort": "low"}
    sample, _ = run(theatre, ask, extra=more, omit=["seed", "temperature"], max_tokens_field="max_completion_tokens")
    assert sample.stop == "length"
    assert theatre.bodies[0].keys() == {"model", "messages", "max_completion_tokens", "top_p", "reasoning_effort"}


def test_what_is_no_json_is_never_sent() -> None:
    theatre = Theatre(says(chat()))
    with pytest.raises(EtudeError, match=r"cannot be written as JSON.*correct endpoint.extra"):
        run(theatre, ask, extra={"penalty": float("nan")})
    assert not theatre.bodies


def test_ids_are_not_sent_where_they_are_turned_off() -> None:
    theatre = Theatre(says(chat("hi")))
    both = replace(ASKED, ids=(1, 2))
    sample, _ = run(theatre, lambda policy: policy.sample(both, Sampling()), ids=False)
    assert sample.ids is None and "messages" in theatre.bodies[0]
