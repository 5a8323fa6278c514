"""Several sandbox hosts as one: placement, machines that die or are broken, clients that die, layers by digest."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from etude.core.child_process import listen
from etude.core.errors import EtudeError
from etude.core.transport import Frame, pack, unpack
from etude.forge.katas.task_source import katas
from etude.policies.scripted import scripted
from etude.rollout.rollout import Scored, build_setup, run_rollout
from etude.sandbox.base import SandboxFailure
from etude.sandbox.hosts import backend_of, open_host
from etude.sandbox.remote import placement
from etude.sandbox.remote.host import RemoteHost
from etude.sandbox.remote.machine import Machine
from etude.sandbox.remote.messages import BlockRequest, Load, MachineFacts, PublishRequest, as_array, split_address
from etude.sandbox.remote.pressure import Pressure, read_pressure
from etude.sandbox.remote.server import HeldSandbox, SandboxServer, ServerSettings, Session
from etude.sandbox.store.layers import Store, boot
from etude.tasks.grading.grader import RUNNER

TOKEN = "a token of these tests"
LOAD = Load(10, 0, 0, 1000, 900, 0.0, 0.0, 0.0)


@dataclass
class Candidate:
    load: Load | None
    asked: int = 0
    usable: bool = True


def test_the_least_crowded_machine_is_chosen_and_a_burst_spreads() -> None:
    machines = [Candidate(LOAD), Candidate(LOAD), Candidate(replace(LOAD, live=10)), Candidate(LOAD, usable=False)]
    counts = [0] * 4
    for _ in range(20):
        chosen = placement.choose(machines)
        assert chosen is not None
        counts[chosen] += 1
        machines[chosen].asked += 1
    assert counts == [10, 10, 0, 0]
    assert placement.choose(machines) is None
    pressed = [Candidate(replace(LOAD, memory_pressure=0.4)), Candidate(replace(LOAD, live=5))]
    assert placement.choose(pressed) == 1
    assert placement.choose([Candidate(replace(LOAD, available=0))]) is None


def test_memory_and_pressure_are_those_of_the_container_where_it_has_limits(tmp_path: Path) -> None:
    proc, group = tmp_path / "proc", tmp_path / "group"
    (proc / "pressure").mkdir(parents=True)
    group.mkdir()
    (proc / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 900 kB\n")
    (proc / "pressure" / "cpu").write_text("some avg10=12.50 avg60=0 avg300=0 total=1\n")
    found = read_pressure(proc, group)
    assert (found.memory_bytes, found.available, found.cpu, found.io) == (1000 << 10, 900 << 10, 0.125, 0.0)
    (group / "memory.max").write_text(str(500 << 10))
    (group / "memory.current").write_text(str(400 << 10))
    (group / "memory.stat").write_text(f"inactive_file {50 << 10}\n")
    (group / "cpu.pressure").write_text("some avg10=50.00 avg60=0 avg300=0 total=1\nfull avg10=1.0\n")
    found = read_pressure(proc, group)
    assert (found.memory_bytes, found.available, found.cpu) == (500 << 10, 150 << 10, 0.5)


def test_the_recipes_hosts_become_a_backend() -> None:
    for wrong in ("a", "a:", ":1", "a:b", "a:70000", "a:7²"):
        with pytest.raises(EtudeError, match="is no address of a sandbox host"):
            split_address(wrong)
    assert backend_of("local", []) == "local"
    assert backend_of("local", ["a:1", "b:2"]) == "remote:a:1,b:2"
    assert backend_of("plain", ["a:1"]) == "remote/plain:a:1"
    with pytest.raises(EtudeError, match="local, docker or plain"):
        backend_of("./mine.py:Mine", ["a:1"])


@contextlib.asynccontextmanager
async def served(folder: Path, name: str, **given: Any) -> AsyncIterator[tuple[SandboxServer, str]]:
    address = str(folder / name)
    async with await open_host("local", folder / f"{name}-store", [RUNNER]) as host:
        server = SandboxServer(host, ServerSettings(TOKEN, **{"places": 8, **given}))  # type: ignore[arg-type]
        answering = await server.listen(listen(Path(address)))
        try:
            yield server, address
        finally:
            await answering.close()
            await server.close()


@contextlib.asynccontextmanager
async def one_machine(folder: Path) -> AsyncIterator[tuple[SandboxServer, RemoteHost]]:
    async with served(folder, "a") as (server, address):
        host = await RemoteHost.open(folder / "c", [RUNNER], addresses=[address], token=TOKEN)
        async with host:
            yield server, host


def test_two_machines_share_sandboxes_and_a_broken_one_is_cordoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both alike, whatever this machine does meanwhile.
    calm = Pressure(1 << 34, 1 << 33, 0.0, 0.0, 0.0)
    monkeypatch.setattr("etude.sandbox.remote.server.read_pressure", lambda: calm)

    async def go() -> None:
        async with served(tmp_path, "a") as (first, a), served(tmp_path, "b") as (second, b):
            with pytest.raises(EtudeError, match="another token"):
                await RemoteHost.open(tmp_path / "c", addresses=[a], token="a wrong one of that length")
            with pytest.raises(EtudeError, match=r"cannot be reached: nobody .* one there with `etude sandbox serve"):
                await RemoteHost.open(tmp_path / "c", addresses=[str(tmp_path / "none")], token=TOKEN)
            async with await RemoteHost.open(
                tmp_path / "c", addresses=[a, b, str(tmp_path / "none")], token=TOKEN
            ) as host:
                layer = host.store.add_files({"x": b"1"})
                sandboxes = await asyncio.gather(*(host.start([layer]) for _ in range(4)))
                assert sorted(each.machine for each in sandboxes) == [a, a, b, b]
                assert first.host.store.layer(layer.digest).digest == layer.digest
                # What a layer shows is not the client's to choose.
                shown = host.store.add_files({"x": b"1"}, shows=["/root"])
                with pytest.raises(EtudeError, match="shows /root"):
                    await host.start([shown])

                async def broken(*_: Any, **__: Any) -> Any:
                    raise SandboxFailure("start", "no more processes")

                monkeypatch.setattr(first.host, "start", broken)
                on_a = [each for each in sandboxes if each.machine == a]
                on_b = [each for each in sandboxes if each.machine == b]
                # A program that kills its own sandbox is believed only where the machine works.
                held = next(iter(next(iter(first.sessions.values())).sandboxes.values()))
                await held.sandbox.close()
                monkeypatch.setattr(held.sandbox, "run_command", lambda *_, **__: broken_run())
                failures = await asyncio.gather(*(each.run(["true"]) for each in on_a), return_exceptions=True)
                assert "host" in [each.cause for each in failures if isinstance(each, SandboxFailure)]
                for each in on_a:
                    with pytest.raises(SandboxFailure) as caught:
                        await each.run(["true"])
                    assert caught.value.cause == "host"
                assert [(await each.run(["cat", "x"])).stdout for each in on_b] == [b"1", b"1"]
                assert (await host.start([layer])).machine == b
            assert not first.sessions and not second.sessions

    async def broken_run() -> Any:
        raise SandboxFailure("died", "sandbox ended unexpectedly")

    asyncio.run(asyncio.wait_for(go(), 120))


def test_layers_with_another_content_than_their_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with one_machine(tmp_path) as (server, host):
            machine = host.machines[0]
            layer = host.store.add_files({"x": b"1"})
            file, _ = host.store.pack_layer(layer)
            data = os.pread(file, 1 << 20, 0)
            os.close(file)
            for kind, name in (("tree", "0" * 64), ("changes", "0" * 64), ("snapshot", "0" * 64)):
                number = (await machine.call("transfer", Frame({}))).header["transfer"]
                await machine.call("put block", pack(BlockRequest(number, 0, as_array(data))))
                with pytest.raises(EtudeError, match="another content"):
                    await machine.call("publish", pack(PublishRequest(number, name, layer.shows, (), kind)))
            assert list((server.host.store.root / "layers").iterdir()) == []
            # A disk that is full is the machine's trouble and no file error of a sandbox.
            full = OSError(errno.ENOSPC, "No space left on device")
            monkeypatch.setattr("etude.sandbox.remote.layer_transfer.write_block", Mock(side_effect=full))
            number = (await machine.call("transfer", Frame({}))).header["transfer"]
            with pytest.raises(SandboxFailure, match="No space left") as caught:
                await machine.call("put block", pack(BlockRequest(number, 0, as_array(data))))
            assert caught.value.cause == "store"
            # What came of a layer that did not come whole is freed at once: that disk stays full otherwise.
            held = next(iter(server.sessions.values())).transfers
            before = dict(held)
            with pytest.raises(SandboxFailure, match="No space left"):
                await machine.send_layers([layer], [layer.digest])
            assert held == before

    asyncio.run(asyncio.wait_for(go(), 60))


def test_machines_join_after_all_that_there_were_have_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.sandbox.remote.host._FOLLOW_SECONDS", 0.01)

    async def go() -> None:
        pods, asked = list[str](), asyncio.Event()

        async def find() -> list[str]:
            if not pods:
                asked.set()
            return list(pods)

        async with served(tmp_path, "a") as (_, a), served(tmp_path, "b") as (_, b):
            pods.append(a)
            async with await RemoteHost.open(tmp_path / "c", [RUNNER], token=TOKEN, find=find) as host:
                before = host.capabilities, host.preload
                pods.clear()  # the node pool is exchanged: none for a while, then others
                host.machines[0].down = "its node is gone"
                while host.machines or not asked.is_set():
                    await asyncio.sleep(0.01)
                assert (host.capabilities, host.preload) == before
                pods.append(b)
                sandbox = await host.start([host.store.add_files({"x": b"1"})])
                assert sandbox.machine == b and (await sandbox.run(["cat", "x"])).stdout == b"1"

    asyncio.run(asyncio.wait_for(go(), 60))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"version": "0.0.1"}, "runs etude 0.0.1"),
        ({"backend": "plain", "isolated": False}, "isolates nothing"),
        ({"backend": "docker"}, "has docker sandboxes, and the others do not"),
    ],
)
def test_a_machine_that_cannot_be_used_is_not_used_once_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], why: str
) -> None:
    monkeypatch.setattr("etude.sandbox.remote.machine._LONGEST_PAUSE", 0.02)  # seconds between two tries
    heard = list[str]()

    async def go() -> None:
        async with (
            served(tmp_path, "a") as (_, a),
            await RemoteHost.open(tmp_path / "c", addresses=[a, str(tmp_path / "b")], token=TOKEN) as host,
            served(tmp_path, "b") as (second, b),
        ):
            hello, beat, other = second._hello, second._verbs["beat"], host.machines[1]

            def odd_hello(name: str) -> Frame:
                heard.append("hello")
                facts = unpack(MachineFacts, hello(name))
                of_backend = {key: value for key, value in changed.items() if key != "version"}
                facts = replace(facts, capabilities=replace(facts.capabilities, **of_backend))
                return pack(replace(facts, version=changed.get("version", facts.version)))

            async def heard_beat(*given: Any) -> Frame:
                heard.append("beat")
                return await beat(*given)

            second._hello, second._verbs["beat"] = odd_hello, heard_beat  # type: ignore[method-assign]
            while len(heard) < 4:
                await asyncio.sleep(0.01)
            assert not other.usable and why in other.down and other.address == b
            assert (await host.start([host.store.add_files({"x": b"1"})])).machine == a

    asyncio.run(asyncio.wait_for(go(), 60))


def test_a_machine_may_leave_while_a_sandbox_is_asked_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        store = Store(tmp_path)
        busy, calm = (Machine(str(tmp_path / name), TOKEN, store) for name in "ab")
        busy.down = calm.down = ""
        busy.load, calm.load = replace(LOAD, live=5), LOAD
        host, asked = RemoteHost(store, [busy, calm]), list[Machine]()

        async def start_on(machine: Machine, *_: Any) -> Any:
            asked.append(machine)
            if machine is busy:
                return "a sandbox"
            machine.down = "its node is gone"
            host.machines = (busy,)  # what following the machines that there are comes to
            return None

        monkeypatch.setattr(host, "_start_on", start_on)
        found: Any = await host.start([store.add_files({"x": b"1"})])
        assert found == "a sandbox"
        assert asked == [calm, busy]

    asyncio.run(asyncio.wait_for(go(), 60))


def test_a_rollout_is_run_and_graded_on_a_sandbox_host(tmp_path: Path) -> None:
    async def go() -> None:
        task = next(katas("train", 1, seed=3))
        async with one_machine(tmp_path) as (_, host):
            assert host.preload == (RUNNER,)
            outcome = await run_rollout(task, scripted("reference", task), host, build_setup())
            assert isinstance(outcome, Scored), outcome
            assert outcome.passed

    asyncio.run(asyncio.wait_for(go(), 60))


SERVER = """
import asyncio, sys
from pathlib import Path
from etude.sandbox.remote import server
from etude.sandbox.remote.pressure import Pressure
from etude.sandbox.serve import serve_sandboxes
server.read_pressure = lambda: Pressure(1 << 34, 1 << 33, 0.0, 0.0, 0.0)  # both alike, whatever this machine does
asyncio.run(serve_sandboxes(sys.argv[1], "local", Path(sys.argv[2]), sys.argv[3], places=16, lease=12.0))
"""
CLIENT = """
import asyncio, sys
from pathlib import Path
from etude.sandbox.remote.host import RemoteHost

async def go():
    host = await RemoteHost.open(Path(sys.argv[2]), addresses=[sys.argv[1]], token=sys.argv[3])
    layer = host.store.add_files({"x": b"1"})
    for _ in range(3):
        await (await host.start([layer])).spawn(["sleep", sys.argv[4]])
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(go())
"""


def test_nothing_is_left_when_a_client_or_a_host_is_killed(tmp_path: Path) -> None:
    # What their programs sleep for: numbers of this process alone.
    of_client, of_first, of_second = (f"8639{number}.5{os.getpid()}" for number in (1, 2, 3))

    def start(code: str, *arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process

    def left(marker: str) -> int:
        found = 0
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                found += entry.name.isdigit() and marker.encode() in (entry / "cmdline").read_bytes().split(b"\0")
        return found

    async def until(count: int, marker: str) -> None:
        async with asyncio.timeout(150):
            while left(marker) != count:
                await asyncio.sleep(0.02)

    async def go() -> None:
        servers = [start(SERVER, str(tmp_path / name), str(tmp_path / f"{name}-store"), TOKEN) for name in "ab"]
        client = start(CLIENT, str(tmp_path / "a"), str(tmp_path / "other"), TOKEN, of_client)
        try:
            await until(4, of_client)  # its three programs, and its own command line, which names them
            client.send_signal(signal.SIGKILL)
            await until(0, of_client)
            addresses = [str(tmp_path / name) for name in "ab"]
            async with await RemoteHost.open(tmp_path / "c", addresses=addresses, token=TOKEN) as host:
                assert [machine.load and machine.load.live for machine in host.machines] == [0, 0]
                layer = host.store.add_files({"x": b"1"})
                sandboxes = [await host.start([layer]) for _ in range(4)]
                for sandbox in sandboxes:
                    await sandbox.spawn(["sleep", of_first if sandbox.machine == addresses[0] else of_second])
                running = asyncio.ensure_future(
                    next(each for each in sandboxes if each.machine == addresses[0]).run(
                        ["sleep", of_first], timeout=600
                    )
                )
                await asyncio.sleep(0)
                servers[0].send_signal(signal.SIGKILL)
                with pytest.raises(SandboxFailure) as caught:
                    await running
                assert caught.value.cause == "host"
                await until(0, of_first)
                # What was there is lost; what comes now goes elsewhere.
                assert [(await host.start([layer])).machine for _ in range(2)] == [addresses[1]] * 2
                kept = sum(each.machine == addresses[1] for each in sandboxes)
                await until(kept, of_second)
            await until(0, of_second)
        finally:
            for process in (*servers, client):
                process.kill()
                process.wait()
                assert process.stdout is not None
                process.stdout.close()

    asyncio.run(asyncio.wait_for(go(), 300))


def test_a_layer_made_from_a_snapshot_travels_under_its_name(tmp_path: Path) -> None:
    async def go() -> None:
        async with one_machine(tmp_path) as (_, host):
            base = host.store.add_files({"x": b"1", "y/z": b"2"})
            async with await host.start([base]) as sandbox:
                await sandbox.run(["sh", "-c", "rm x; echo 3 > y/w; ln y/w y/v"])
                snapshot = await sandbox.snapshot()
            assert hashlib.sha256(snapshot.path.read_bytes()).hexdigest() == snapshot.digest
            layer = host.store.add_snapshot(snapshot)
            async with await host.start([base, layer]) as sandbox:
                assert (await sandbox.run(["sh", "-c", "cat y/v; ls"])).stdout == b"3\ny\n"
        assert Store(tmp_path / "a-store").layer(layer.digest).shows == ()

    asyncio.run(asyncio.wait_for(go(), 60))


def test_a_snapshot_starts_over_its_own_layers_and_names_are_no_paths(tmp_path: Path) -> None:
    async def go() -> None:
        async with one_machine(tmp_path) as (server, host):
            bases = [host.store.add_files({"x": content}) for content in (b"1", b"2")]
            async with await host.start(bases[:1]) as sandbox:
                snapshot = await sandbox.snapshot()
            async with await host.start(bases[1:]):
                pass
            other = replace(snapshot, layers=tuple(bases[1:]))  # the same changes over other layers have the same name
            found = []
            for each in (other, snapshot):
                await host.machines[0]._send_snapshot(other)
                async with await host.start(each) as sandbox:
                    found.append((await sandbox.run(["cat", "x"])).stdout)
            assert found == [b"2", b"1"]
            # A layer's file that looks like a layer must not become one, whatever it shows.
            facts = {"shows": ["/root"], "bytes": 0, "boot": boot(), "listed": False}
            files = {"layer.json": json.dumps(facts).encode(), "tree/x": b""}
            hidden = host.store.add_files(files)
            await host.prefetch([hidden])
            name = f"{hidden.digest}/tree/workspace"
            assert (server.host.store.root / "layers" / name / "layer.json").exists()
            for evil in (name, f"/{server.host.store.root}/layers/{name}", f"../layers/{hidden.digest}"):
                with pytest.raises(EtudeError, match="another content"):
                    await host.start([replace(hidden, digest=evil)])
                with pytest.raises(EtudeError, match="has no layer"):
                    server.host.store.layer(evil)

    asyncio.run(asyncio.wait_for(go(), 120))


def test_a_machine_that_ended_our_session_or_does_not_answer_is_reached_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        # The client beats every 20 ms; nobody ends sessions on the server but this test.
        async with (
            served(tmp_path, "a", lease=0.08) as (server, address),
            await RemoteHost.open(tmp_path / "c", addresses=[address], token=TOKEN) as host,
        ):
            machine, keeping = host.machines[0], host._keeping[host.machines[0]]
            sandbox = await host.start([host.store.add_files({"x": b"1"})])
            cut = SandboxFailure("host", "no answer")
            failing, opened, real = [cut], list[int](), machine.beat

            async def beat(seconds: float = 60.0) -> None:
                if failing:
                    raise failing.pop()
                await real()

            async def silent() -> None:
                opened.append(1)
                await asyncio.sleep(0.02)
                raise cut

            # A beat is lost, and the lease ends meanwhile: the sandbox is gone for the machine's reason.
            await server._end(machine.session)
            monkeypatch.setattr(machine, "beat", beat)
            async with asyncio.timeout(60):
                while failing or machine.generation == 0 or machine.down:
                    await asyncio.sleep(0.01)
            with pytest.raises(SandboxFailure) as caught:
                await sandbox.run(["true"])
            assert caught.value.cause == "host"
            # Nothing is answered until the deadline of a call: it is tried again and again.
            monkeypatch.setattr("etude.sandbox.remote.machine.CALL_SECONDS", 0.01)
            monkeypatch.setattr(machine, "open", silent)
            failing += [cut] * 1000
            async with asyncio.timeout(60):
                while len(opened) < 3 and not keeping.done():
                    await asyncio.sleep(0.01)
            assert not keeping.done()

    asyncio.run(asyncio.wait_for(go(), 120))


def test_a_start_waits_for_a_machine_that_says_it_is_full_and_only_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Places and memory are left, but tasks wait for memory: the load alone does not say that it is full.
    pressed = Pressure(1 << 34, 1 << 33, 0.0, 0.9, 0.0)
    monkeypatch.setattr("etude.sandbox.remote.server.read_pressure", lambda: pressed)

    async def go() -> None:
        async with served(tmp_path, "a") as (server, address):
            asked = []
            start = server._verbs["start"]

            async def counted(*given: Any) -> Frame:
                asked.append(1)
                return await start(*given)

            server._verbs["start"] = counted
            options: dict[str, Any] = {"addresses": [address], "token": TOKEN, "place_seconds": 0.6}
            async with await RemoteHost.open(tmp_path / "c", **options) as host:
                with pytest.raises(SandboxFailure, match="for a place"):
                    await host.start([host.store.add_files({"x": b"1"})])
            assert len(asked) < 10

    asyncio.run(asyncio.wait_for(go(), 60))


def test_a_sandbox_that_cannot_be_ended_properly_costs_no_other_session(tmp_path: Path) -> None:
    class Stuck:
        async def close(self) -> None:
            raise OSError(errno.EBUSY, "a folder cannot be removed")

    async def go() -> None:
        async with one_machine(tmp_path) as (server, host):
            machine, stuck = host.machines[0], Mock(wraps=Stuck())
            sandbox = await host.start([host.store.add_files({"x": b"1"})])
            (session,) = server.sessions.values()
            session.sandboxes[0] = HeldSandbox(stuck)  # one whose answer was lost: a beat ends it
            await machine.beat()
            assert 0 not in session.sandboxes and (await sandbox.run(["cat", "x"])).stdout == b"1"
            server.sessions["another, which is gone"] = Session({1: HeldSandbox(stuck)}, ticks=99)
            server.settings = replace(server.settings, lease=0.04)
            keeping = asyncio.ensure_future(server.keep())
            while len(server.sessions) > 1:
                await asyncio.sleep(0)
            session.ticks = 0
            await asyncio.sleep(0)
            assert not keeping.done()
            keeping.cancel()

    asyncio.run(asyncio.wait_for(go(), 60))


def test_any_number_of_changed_files_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.core.transport.HEADER_BYTES", 2000)  # in place of 64 MB

    async def go() -> None:
        async with one_machine(tmp_path) as (_, host), await host.start([host.store.add_files({"x": b"1"})]) as sandbox:
            await sandbox.run(["sh", "-c", "for i in $(seq 100); do : > a_rather_long_name_$i; done"])
            assert len(await sandbox.diff("/workspace")) == 100

    asyncio.run(asyncio.wait_for(go(), 60))
