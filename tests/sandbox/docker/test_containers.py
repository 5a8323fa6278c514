"""Containers as sandboxes: what an image decides, what a hostile program cannot do, and that nothing is left."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.sandbox.base import SandboxLimits
from etude.sandbox.docker.engine import OWNER, owner_label
from etude.sandbox.docker.host import DockerHost

Dock = Any


async def _image(dock: Dock, text: str, **files: bytes) -> Any:
    return await dock.host.image({"Dockerfile": f"FROM {dock.base}\n{text}".encode(), **files})


def test_an_image_decides_its_folder_files_and_variables_and_is_built_once(dock: Dock) -> None:
    async def go() -> None:
        text = (
            "ENV COLOUR=blue\nRUN mkdir /app /srv && echo built > /app/made\nCOPY brought /app/brought\nWORKDIR /app\n"
        )
        first = await _image(dock, text, brought=b"brought\n")
        assert await _image(dock, text, brought=b"brought\n") == first
        assert (await _image(dock, text, brought=b"other\n")).layer != first.layer
        assert first.workdir == "/app"
        async with await dock.host.start([first.layer], workdir=first.workdir) as sandbox:
            told = await sandbox.run(["sh", "-c", 'cat made brought; echo "$COLOUR $LANG$PAGER"; pwd; id -u'])
            assert told.stdout == b"built\nbrought\nblue cat\n/app\n0\n"
            assert await sandbox.diff() == []
            await sandbox.write("made", b"changed\n")
            await sandbox.run(["sh", "-c", "rm brought; echo x > /srv/new"])
            rows = [(change.path, change.kind) for change in await sandbox.diff() if change.what == "file"]
            assert rows == [("/app/brought", "deleted"), ("/app/made", "modified"), ("/srv/new", "added")]
            async with await sandbox.fork() as copy:
                assert await copy.diff() == await sandbox.diff()
                assert await copy.read("/srv/new") == b"x\n"

    dock.run(go())


def test_a_user_of_the_image_or_the_task_is_who_programs_run_as(dock: Dock) -> None:
    async def go() -> None:
        own = await _image(dock, "USER 1234\n")
        asked = await dock.host.image({"Dockerfile": f"FROM {dock.base}\nUSER 1234\n".encode()}, user="4321")
        for image, number in ((own, b"1234\n"), (asked, b"4321\n")):
            async with await dock.host.start([image.layer], workdir="/") as sandbox:
                assert (await sandbox.run(["id", "-u"])).stdout == number

    dock.run(go())


def test_a_dockerfile_that_cannot_be_built_is_said_in_one_sentence(dock: Dock) -> None:
    with pytest.raises(EtudeError, match="could not build the image") as caught:
        dock.run(_image(dock, "RUN exit 7\n"))
    assert "\n" not in str(caught.value)


def test_a_hostile_program_finds_no_way_out(dock: Dock) -> None:
    script = """
    grep -E '^Cap(Eff|Prm|Bnd|Amb):.*[1-9a-f]' /proc/self/status
    grep 'NoNewPrivs:.*0' /proc/self/status
    grep 'Seccomp:.*0' /proc/self/status
    ls /var/run/docker.sock /run/podman /run/docker.sock 2>/dev/null
    grep -vE 'lo:|Inter|face' /proc/net/dev
    (echo > /dev/tcp/1.1.1.1/53) 2>/dev/null && echo network
    mkdir /mnt && mount -t tmpfs none /mnt 2>/dev/null && echo mounted
    cat /proc/1/environ | grep -a HOST_SECRET
    kill -9 1; kill -9 -1
    """

    async def go() -> None:
        image = await _image(dock, "WORKDIR /app\n")
        async with await dock.host.start([image.layer], workdir="/app") as sandbox:
            result = await sandbox.run(["bash", "-c", script])
            assert result.stdout == b""
            assert (await sandbox.run(["true"])).code == 0, "init was not ended from inside"

    dock.run(go())


def test_limits_hold_and_say_so(dock: Dock) -> None:
    async def go() -> None:
        image = await _image(dock, "WORKDIR /app\n")
        limits = SandboxLimits(memory=256 << 20, disk=1 << 20, processes=32)
        async with await dock.host.start([image.layer], limits=limits, workdir="/app") as sandbox:
            eaten = await sandbox.run(["bash", "-c", "head -c 900M /dev/zero | tail -c 900M > /dev/null"], timeout=120)
            assert eaten.oom
            assert not eaten.ok
            filled = await sandbox.run(["sh", "-c", "head -c 3M /dev/zero > file; stat -c %s file"])
            assert filled.stdout == f"{1 << 20}\n".encode()
            bomb = await sandbox.run(["bash", "-c", "f() { f | f & }; f; sleep 86399.875"], timeout=3)
            assert not bomb.ok
            left = await sandbox.run(["sh", "-c", "ls /proc | grep -c '^[0-9]'"])
            assert int(left.stdout) <= 7, "init and what it waits for, and this run; no corpses"

    dock.run(go())


def test_links_out_are_links_into_the_container(dock: Dock, tmp_path: Any) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the host's")

    async def go() -> None:
        image = await _image(dock, "WORKDIR /app\n")
        async with await dock.host.start([image.layer], workdir="/app") as sandbox:
            await sandbox.run(["ln", "-s", str(secret), "link"])
            with pytest.raises(FileNotFoundError):
                await sandbox.read("link")
            await sandbox.run(["sh", "-c", f"mkdir -p '{tmp_path}'"])
            await sandbox.write("link", b"inside")
            assert await sandbox.read("link") == b"inside"
            snapshot = await sandbox.snapshot()
        async with await dock.host.start(snapshot, workdir="/app") as restored:
            assert await restored.read(str(secret)) == b"inside"

    dock.run(go())
    assert secret.read_text() == "the host's"


def test_a_layer_that_only_looks_like_an_image_is_none(dock: Dock) -> None:
    data = json.dumps({"image": "etude-tests-base", "user": "0"}).encode()
    layer = dock.host.store.add_files({".etude/image.json": data, "other": b""}, at="/")

    async def go() -> None:
        async with await dock.host.start([layer]) as sandbox:
            assert (await sandbox.run(["id", "-u"])).stdout == b"1000\n"

    dock.run(go())


def test_what_a_dead_orchestrator_left_is_removed_at_the_next_start_and_nothing_is_left_by_a_closed_host(
    dock: Dock, tmp_path: Any
) -> None:
    async def go() -> None:
        engine = dock.host.engine
        image = await _image(dock, "WORKDIR /app\n")
        label = ("--filter", f"label={owner_label()}")
        # Other hosts of this process that are still open have containers too.
        before = set((await engine.output("ps", "--all", "--quiet", "--no-trunc", *label)).split())
        dead = f"{OWNER}=1.{'9' * 12}.00000000.1"  # of another boot
        orphan = await engine.output("create", f"--label={dead}", dock.base, "/bin/sh")
        mine = await engine.output("create", f"--label={owner_label()}", dock.base, "/bin/sh")
        async with await DockerHost.open(tmp_path / "store") as host:
            left = await engine.output("ps", "--all", "--quiet", "--no-trunc")
            assert orphan not in left
            assert mine in left
            await engine.remove(mine)
            await host.start([image.layer], workdir="/app")
            await host.start([host.store.add_files({"a": b"a"})])
        left = await engine.output("ps", "--all", "--quiet", "--no-trunc", *label)
        others = {found.container for found in dock.host._pristine.values()}  # of the host that still is open
        assert set(left.split()) <= before | others

    dock.run(go())


def test_runs_at_once_in_several_containers_keep_to_themselves(dock: Dock) -> None:
    async def one(layer: Any, number: int) -> bytes:
        async with await dock.host.start([layer], workdir="/app") as sandbox:
            await sandbox.write("mine", str(number).encode())
            return bytes((await sandbox.run(["sh", "-c", "cat mine; ls"])).stdout)

    async def go() -> None:
        image = await _image(dock, "WORKDIR /app\n")
        found = await asyncio.gather(*(one(image.layer, number) for number in range(3)))
        assert found == [f"{number}mine\n".encode() for number in range(3)]

    dock.run(go())
