"""The engine in a process of its own, reached over a local socket."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import pytest

from etude.core.errors import EtudeError
from etude.core.frame_calls import ConnectionLost
from etude.core.policy import Context, Sample, Sampling, Version
from etude.core.settings import EngineSettings
from etude.core.transport import to_json
from etude.engine.engine import Engine
from etude.model.checkpoint.directory import save_model
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.weight_transfer.shared_memory import WeightBoard
from etude.policies.engine_client import EngineClient, launch
from etude.serve.messages import EngineSpec
from etude.serve.server import serve

SETTINGS = EngineSettings(
    max_running=4, max_waiting=8, cache_tokens=8192, block_tokens=8, max_length=1500, drain_seconds=60
)
SHAPE = ModelConfig(97, 32, 64, 2, 4, 2, 8)
LONG = Sampling(max_tokens=1200, temperature=0.0)
PROMPT = Context(ids=tuple(range(20)))
SECONDS = 120.0


class Home:
    """One running server, its client on a loop that lives as long, and the board it reads."""

    def __init__(self, folder: Path) -> None:
        self.model, self.board_path = folder / "model", folder / "board"
        self.decoder = Decoder(SHAPE)
        save_model(self.model, self.decoder)
        self.board = WeightBoard.create(self.board_path, self.decoder)
        self.loop = asyncio.new_event_loop()
        self.client: EngineClient = self.run(launch(self.model, SETTINGS, board=self.board_path))
        self.step = 0

    def run(self, work):  # type: ignore[no-untyped-def]
        return self.loop.run_until_complete(asyncio.wait_for(work, SECONDS))

    def next_version(self, decoder: Decoder | None = None) -> Version:
        self.step += 1
        version = Version(0, self.step)
        self.board.publish(decoder or self.decoder, version)
        return version

    async def until(self, holds: Callable[[dict], bool]) -> None:
        while not holds(await self.client.stats()):
            await asyncio.sleep(0)

    async def running_sample(self, name: str | None = None) -> asyncio.Task:
        """A long request that has sampled a few tokens."""
        before = (await self.client.stats())["sampled_tokens"]
        task = asyncio.ensure_future(self.client.sample(PROMPT, LONG, name=name))
        await self.until(lambda stats: stats["sampled_tokens"] > before + 5)
        return task


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("engine"))
    yield home
    home.run(home.client.close())
    home.loop.close()


def test_samples_and_scores_are_those_of_an_engine_in_this_process(home: Home) -> None:
    local = Engine(home.decoder, SETTINGS, Version(0, 0))
    sampling = Sampling(max_tokens=30, seed=7, temperature=0.9)
    expected = local.submit(PROMPT.ids or (), sampling)
    while local.busy:
        local.step()
    sample = home.run(home.client.sample(PROMPT, sampling))
    assert sample.ids == tuple(expected.sampled)
    assert sample.logprobs == pytest.approx(expected.logprobs, abs=1e-6)
    assert len(sample.versions) == 30
    assert sample.stop == "length"
    assert home.run(home.client.sample(PROMPT, sampling)).cached_tokens == 16
    ids = (*(PROMPT.ids or ()), *sample.ids)
    scores = home.run(home.client.score(ids, 0.9))
    assert scores == pytest.approx(local.score([ids], 0.9)[0], abs=1e-6)
    assert scores[20:] == pytest.approx(sample.logprobs, abs=1e-5)


def test_a_sample_is_told_of_while_it_is_under_way_and_http_gives_the_same(home: Home) -> None:
    sampling, parts = Sampling(max_tokens=30, seed=7, temperature=0.9), list[Sample]()
    sample = home.run(home.client.sample(PROMPT, sampling, on_part=parts.append, every=8))
    sizes = [len(part.ids or ()) for part in parts]
    told = sum(sizes)
    # After every eighth step of the engine, whatever it was doing before; the answer has the rest.
    assert set(sizes[1:]) == {8} and 0 < sizes[0] <= 8 and 0 < 30 - told <= 8
    for name in ("ids", "logprobs", "versions"):
        assert tuple(value for part in parts for value in getattr(part, name)) == getattr(sample, name)[:told]

    async def over_http() -> dict:
        connector = aiohttp.UnixConnector(home.client.address.removeprefix("unix:"))
        async with aiohttp.ClientSession("http://engine", connector=connector) as session:
            body = {"ids": list(PROMPT.ids or ()), "sampling": {"max_tokens": 30, "seed": 7, "temperature": 0.9}}
            async with session.post("/generate", json=body) as answer:
                return await answer.json()

    found = home.run(over_http())
    assert tuple(found["ids"]) == sample.ids and tuple(found["logprobs"]) == pytest.approx(sample.logprobs, abs=1e-6)


def test_many_clients_are_answered_at_once(home: Home) -> None:
    async def ask() -> list:
        return await asyncio.gather(
            *(home.client.sample(Context(ids=(i, 5)), Sampling(max_tokens=9, temperature=0.0)) for i in range(8))
        )

    answers = home.run(ask())
    one_by_one = [
        home.run(home.client.sample(Context(ids=(i, 5)), Sampling(max_tokens=9, temperature=0.0))) for i in range(8)
    ]
    assert [a.ids for a in answers] == [a.ids for a in one_by_one]


def test_a_pinned_version_is_sampled_while_the_weights_change(home: Home) -> None:
    async def scenario() -> None:
        before = await home.client.version()
        pinned = await home.client.pin(before)
        first = await pinned.sample(PROMPT, Sampling(max_tokens=40, seed=3))
        await home.client.update(home.next_version(Decoder(SHAPE, seed=5)))
        again = await pinned.sample(PROMPT, Sampling(max_tokens=40, seed=3))
        assert again.ids == first.ids and set(again.versions or ()) == {before} != {await home.client.version()}
        with pytest.raises(EtudeError, match="not resident"):
            await home.client.sample(PROMPT, Sampling(max_tokens=2), version=Version(7, 7))

    home.run(scenario())


def test_weights_change_under_a_running_request(home: Home) -> None:
    async def scenario() -> None:
        task = await home.running_sample()
        await home.client.pause()
        before = await home.client.version()
        other = Decoder(SHAPE, seed=1)
        version = home.next_version(other)
        facts = await home.client.update(version)
        assert facts["running"] == 1
        assert await home.client.version() == version
        await home.client.resume()
        sample = await task
        swapped = sample.versions.index(version)
        assert sample.versions == (before,) * swapped + (version,) * (1200 - swapped)
        assert 0 < swapped < 1200
        # what was sampled after the swap is not scored the same by the old weights, what comes now is by the new
        fresh = await home.client.sample(PROMPT, Sampling(max_tokens=40, seed=3))
        scored = Engine(other, SETTINGS, version).score([(*(PROMPT.ids or ()), *fresh.ids)])[0]
        assert fresh.logprobs == pytest.approx(scored[20:], abs=1e-5)
        assert set(fresh.versions) == {version}
        assert (await home.client.update(version))["version"] == str(version), "asking again is no error"

    home.run(scenario())


def test_a_wrong_version_or_shape_is_refused_and_the_old_weights_stay(home: Home) -> None:
    before = home.run(home.client.version())
    with pytest.raises(EtudeError, match=r"version 9\.9 is not on the weight board"):
        home.run(home.client.update(Version(9, 9)))
    home.board_path.rename(home.board_path.with_suffix(".kept"))
    WeightBoard.create(home.board_path, Decoder(ModelConfig(97, 16, 64, 2, 4, 2, 8))).publish(
        Decoder(ModelConfig(97, 16, 64, 2, 4, 2, 8)), Version(0, 50)
    )
    with pytest.raises(EtudeError, match="made for another model"):
        home.run(home.client.update(Version(0, 50)))
    home.board_path.with_suffix(".kept").rename(home.board_path)
    assert home.run(home.client.version()) == before
    assert home.run(home.client.sample(PROMPT, Sampling(max_tokens=3))).versions == (before,) * 3


def test_a_named_request_can_be_aborted_and_answers_with_what_it_has(home: Home) -> None:
    async def scenario() -> None:
        task = await home.running_sample("mine")
        with pytest.raises(EtudeError, match="already here"):
            await home.client.sample(PROMPT, Sampling(max_tokens=1), name="mine")
        assert await home.client.abort("mine")
        sample = await task
        assert sample.stop == "abort"
        assert 0 < len(sample.ids) == len(sample.logprobs) < 1200
        assert not await home.client.abort("mine")

    home.run(scenario())


def test_an_answer_that_takes_too_long_is_cut_and_says_so(home: Home) -> None:
    async def scenario() -> None:
        before = (await home.client.stats())["sampled_tokens"]
        task = asyncio.ensure_future(home.client.sample(PROMPT, Sampling(max_tokens=1200, seconds=3.0)))
        await home.until(lambda stats: stats["sampled_tokens"] > before + 5)
        await home.client.pause()  # however fast the machine is, the rest is not sampled in time
        sample = await task
        await home.client.resume()
        assert (sample.stop, sample.late) == ("length", True)
        assert 0 < len(sample.ids) == len(sample.logprobs) < 1200
        quick = await home.client.sample(PROMPT, Sampling(max_tokens=2, seconds=60.0))
        assert not quick.late and len(quick.ids) == 2
        await home.client.pause()  # nothing of an answer: it waited in the queue, which is nobody's answer
        with pytest.raises(EtudeError, match=r"did not begin an answer within 0\.05 s"):
            await home.client.sample(PROMPT, Sampling(max_tokens=2, seconds=0.05))
        await home.client.resume()

    home.run(scenario())


def test_a_client_that_leaves_aborts_its_request(home: Home) -> None:
    async def scenario() -> None:
        before = (await home.client.stats())["aborted"]
        task = await home.running_sample()
        task.cancel()
        await home.until(lambda stats: stats["running"] == 0 and stats["blocks_held"] == 0)
        assert (await home.client.stats())["aborted"] == before + 1

    home.run(scenario())


def test_a_full_queue_refuses_and_the_rest_is_served(home: Home) -> None:
    async def scenario() -> None:
        await home.client.pause()
        queued = [asyncio.ensure_future(home.client.sample(PROMPT, Sampling(max_tokens=2))) for _ in range(8)]
        await home.until(lambda stats: stats["waiting"] == 8)
        with pytest.raises(EtudeError, match="8 requests waiting; ask again later"):
            await home.client.sample(PROMPT, Sampling(max_tokens=2))
        await home.client.resume()
        assert [len(sample.ids) for sample in await asyncio.gather(*queued)] == [2] * 8

    home.run(scenario())


def test_malformed_calls_are_refused_with_one_sentence(home: Home) -> None:
    async def ask(path: str, data: bytes) -> tuple[int, str]:
        connector = aiohttp.UnixConnector(home.client.address.removeprefix("unix:"))
        async with aiohttp.ClientSession(connector=connector) as http, http.post(f"http://e{path}", data=data) as got:
            return got.status, (await got.json())["error"]

    for path, data, status, message in (
        ("/generate", b"{", 400, "not JSON"),
        ("/generate", b"[" * 100_000, 400, "not JSON"),
        ("/generate", b'"x"', 400, "must be a JSON object"),
        ("/generate", b'{"ids": [1], "prompt": 3}', 400, "unknown key 'prompt'"),
        ("/generate", b'{"ids": "hello"}', 400, "'ids' must be a list"),
        ("/generate", b'{"ids": [true]}', 400, "'ids' must be a list"),
        ("/generate", b'{"ids": [1], "sampling": {"max_tokens": 99999}}', 400, "engine.max_length"),
        ("/generate", b'{"ids": [1], "id": 7}', 400, "'id' must be a text"),
        ("/score", b'{"sequences": [[1, 2], 3]}', 400, "'sequences.1' must be a list"),
        ("/update", b'{"version": "new"}', 400, "lineage.step"),
        ("/pause", b'{"x": 1}', 400, "unknown key 'x'"),
        ("/nowhere", b"{}", 404, "Not Found"),
        ("/generate", b" " * (17 << 20), 413, "Maximum request body size"),
    ):
        got = home.run(ask(path, data))
        assert got[0] == status, (path, got)
        assert message in got[1], (path, got)
    assert home.run(home.client.health())["ok"]


def test_the_socket_is_for_this_user_alone(home: Home) -> None:
    mode = Path(home.client.address.removeprefix("unix:")).stat().st_mode
    assert mode & 0o077 == 0


def test_told_to_stop_it_finishes_what_runs_and_takes_nothing_new(home: Home) -> None:
    async def scenario() -> None:
        client = await launch(home.model, SETTINGS)
        task = asyncio.ensure_future(client.sample(PROMPT, LONG))
        while (await client.stats())["sampled_tokens"] < 5:
            await asyncio.sleep(0)
        client.server.process.send_signal(signal.SIGTERM)
        refused = False
        while not refused and not task.done():
            try:
                await client.sample(PROMPT, Sampling(max_tokens=1))
            except EtudeError as error:
                refused = "shutting down" in str(error)
        assert len((await task).ids) == 1200
        assert await client.server.process.wait() == 0
        await client.close()

    home.run(scenario())


def test_a_killed_server_is_reported_with_its_log(home: Home, tmp_path: Path) -> None:
    async def scenario() -> None:
        client = await launch(home.model, SETTINGS, log=tmp_path / "engine.log")
        (tmp_path / "engine.log").write_text("something it had said\n")
        task = asyncio.ensure_future(client.sample(PROMPT, LONG))
        while (await client.stats())["sampled_tokens"] < 5:
            await asyncio.sleep(0)
        client.server.process.kill()
        with pytest.raises(EtudeError, match=r"ended with code -9(.|\n)*something it had said"):
            await task
        await client.close()

    home.run(scenario())


CRASHING = """
import sys
from etude.engine import engine
from etude.serve import server
whole = engine.Engine.step
def step(self):
    if any(request.prompt == (13,) for request in self.scheduler.waiting):
        raise RuntimeError("a bug of ours")
    return whole(self)
engine.Engine.step = step
sys.exit(server.main())
"""


def test_a_crash_answers_everybody_who_waits_and_ends_the_process(home: Home, tmp_path: Path) -> None:
    socket = tmp_path / "s"
    spec = json.dumps(to_json(EngineSpec(home.model, EngineSettings(), threads=1)))
    command = [sys.executable, "-c", CRASHING, spec, "--socket", str(socket)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout.readline().startswith("etude engine ready at unix:")

    async def scenario() -> None:
        async with EngineClient(f"unix:{socket}") as client:
            waiting = asyncio.ensure_future(client.sample(PROMPT, Sampling(max_tokens=1200)))
            while (await client.stats())["sampled_tokens"] < 5:
                await asyncio.sleep(0)
            fatal = asyncio.ensure_future(client.sample(Context(ids=(13,)), Sampling(max_tokens=1)))
            for task in (fatal, waiting):
                # As of a server that is gone: a rollout keeps its turns and waits for the next one.
                with pytest.raises(ConnectionLost, match=r"the engine crashed: RuntimeError\('a bug of ours'\)"):
                    await task

    home.run(scenario())
    _, errors = child.communicate(timeout=SECONDS)
    assert child.returncode == 1
    assert "a bug of ours" in errors


ORPHANING = """
import asyncio, os, sys
from pathlib import Path
from etude.policies.engine_client import launch
from etude.core.settings import EngineSettings
from etude.core.transport import to_json
async def main():
    client = await launch(Path(sys.argv[1]), EngineSettings(max_length=64, cache_tokens=256))
    print(client.server.process.pid, "torch" in sys.modules, client.server.folder.path, flush=True)
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""


def test_the_server_dies_with_its_parent_which_never_loads_torch(home: Home) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ORPHANING, str(home.model)], capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == -9, done.stderr
    pid, torch_loaded, folder = done.stdout.split()
    assert torch_loaded == "False"
    deadline = time.monotonic() + SECONDS
    while _alive(int(pid)):
        assert time.monotonic() < deadline, "the engine outlived its parent"
    assert not Path(folder).exists()


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_server_that_cannot_start_says_why(home: Home, tmp_path: Path) -> None:
    with pytest.raises(EtudeError, match=r"ended with code 2(.|\n)*has no config.json"):
        home.run(launch(tmp_path, SETTINGS))
    with pytest.raises(EtudeError, match="not ready within"):
        home.run(launch(home.model, SETTINGS, deadline=0.01))
    taken = tmp_path / "notes.txt"
    taken.write_text("keep me")
    with pytest.raises(EtudeError, match="cannot listen on"):
        serve(home.model, SETTINGS, socket=taken)
    assert taken.read_text() == "keep me"
