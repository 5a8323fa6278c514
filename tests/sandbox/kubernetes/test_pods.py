"""Sandbox hosts as pods: their objects, the API server's answers, and a run's sandboxes on pods that come and go."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.sandbox.hosts import backend_of, open_host
from etude.sandbox.kubernetes.api import PROXY, KubernetesApi
from etude.sandbox.kubernetes.manifest import (
    Fleet,
    address_of,
    is_over,
    network_policy,
    pod,
    secret,
    why_waiting,
)
from etude.sandbox.kubernetes.pods import PodFleet
from etude.sandbox.remote import host as remote_host
from etude.sandbox.remote.host import TOKEN, RemoteHost
from tests.sandbox.kubernetes.stub_cluster import StubCluster

SECRET = "a token of these tests"
FLEET = Fleet("etude", "registry.example/etude:1", places=4, idle_seconds=60)


@pytest.mark.parametrize("privileged", [False, True])
def test_objects_are_of_the_published_schema(privileged: bool) -> None:
    schema = pytest.importorskip("kubernetes_validate")
    fleet = Fleet("etude", "registry.example/etude:1", privileged=privileged, pull_secret="mine")
    for made in (pod(fleet, "etude-0"), secret(fleet, SECRET), network_policy(fleet)):
        schema.validate(made, schema.latest_version(), strict=True)


def test_a_pod_gives_task_code_nothing_of_the_cluster() -> None:
    spec = pod(FLEET, "etude-0")["spec"]
    (container,) = spec["containers"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["hostUsers"] is False
    assert container["securityContext"]["privileged"] is False
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert SECRET not in str(pod(FLEET, "etude-0"))


@pytest.mark.parametrize("name", ["", "Etude", "a_b", "-a", "a-", "a" * 41, "a/b", "a.b"])
def test_names_that_are_no_dns_label_are_refused(name: str) -> None:
    with pytest.raises(EtudeError, match="cannot name a fleet"):
        Fleet(name, "image")


def test_a_pod_is_reached_once_it_is_ready_and_says_why_it_is_not() -> None:
    ready = [{"type": "Ready", "status": "True"}]
    assert address_of({"metadata": {}, "status": {"podIP": "10.0.0.9", "conditions": ready}}) == "10.0.0.9:7433"
    assert address_of({"metadata": {}, "status": {"podIP": "fd00::9", "conditions": ready}}) == "[fd00::9]:7433"
    ending = {"metadata": {"deletionTimestamp": "now"}, "status": {"podIP": "10.0.0.9", "conditions": ready}}
    assert address_of(ending) == address_of({}) == ""
    waiting: dict[str, Any] = {"state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}
    assert why_waiting({"status": {"containerStatuses": [waiting]}}) == "ErrImagePull: no such image"
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes have 64 cpus"}
    assert why_waiting({"status": {"conditions": [unscheduled]}}) == "0/3 nodes have 64 cpus"
    assert is_over({"status": {"phase": "Succeeded"}})
    assert not is_over({"status": {"phase": "Pending"}})


def test_where_the_api_server_is(tmp_path: Path) -> None:
    with pytest.raises(EtudeError, match="kubectl proxy"):
        KubernetesApi.find("", {}, tmp_path)
    for wrong in ("http://10.0.0.1:8001", "https://127.0.0.1:8001", "127.0.0.1:8001"):
        with pytest.raises(EtudeError, match="of this machine"):
            KubernetesApi.find("", {PROXY: wrong}, tmp_path)
    assert KubernetesApi.find("mine", {PROXY: "http://127.0.0.1:8001/"}, tmp_path).namespace == "mine"
    (tmp_path / "token").write_text("t")
    (tmp_path / "namespace").write_text("team")
    found = KubernetesApi.find("", {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}, tmp_path)
    assert (found.address, found.namespace, found.account) == ("https://[fd00::1]:6443", "team", tmp_path)


async def until_ready(pods: PodFleet, count: int) -> list[str]:
    async with asyncio.timeout(120):
        while len(found := await pods.look()) < count:
            await asyncio.sleep(0.1)
        return found


def test_a_run_uses_pods_that_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_host, "_FOLLOW_SECONDS", 0.2)
    monkeypatch.setenv(TOKEN, SECRET)

    async def play() -> None:
        cluster, said = StubCluster(tmp_path), list[str]()
        async with cluster.running() as address:
            monkeypatch.setenv(PROXY, address)
            async with KubernetesApi.find() as api:
                pods = PodFleet(api, FLEET, 1, SECRET, said.append)
                await pods.open()
                (first,) = await until_ready(pods, 1)
                async with await open_host("remote:kubernetes:default/etude", tmp_path / "store") as host:
                    assert isinstance(host, RemoteHost)
                    layer = host.store.add_files({"a.txt": b"one"})
                    async with await host.start([layer]) as sandbox:
                        result = await sandbox.run(["sh", "-c", "cat a.txt; echo two > b.txt"])
                        assert result.stdout == b"one"
                        assert [change.path for change in await sandbox.diff("/workspace")] == ["/workspace/b.txt"]
                    # Its node is gone. Another pod takes its place, and the run finds it.
                    cluster.lose(cluster.pods()[0])
                    (second,) = await until_ready(pods, 1)
                    assert second != first
                    async with asyncio.timeout(120):
                        while [machine.address for machine in host.machines] != [second]:
                            await asyncio.sleep(0.1)
                        async with await host.start([layer]) as sandbox:
                            assert (await sandbox.read("a.txt")) == b"one"
                assert any(first in text for text in said)
                with pytest.raises(EtudeError, match="choose another name"):
                    await PodFleet(api, FLEET, 1, SECRET, said.append).open()
                await pods.close()
                assert not cluster.objects

    asyncio.run(play())


def test_what_ended_is_replaced_and_a_refusal_is_told_in_the_clusters_words(tmp_path: Path) -> None:
    async def play() -> None:
        cluster, said = StubCluster(tmp_path), list[str]()
        async with cluster.running() as address, KubernetesApi(address, "default") as api:
            pods = PodFleet(api, FLEET, 1, SECRET, said.append)
            await pods.open()
            cluster.refuse = 1
            with pytest.raises(EtudeError, match="403 pods is forbidden: the account may not create them"):
                await pods.look()
            await pods.look()
            (name,) = cluster.pods()
            cluster.processes[name].kill()
            cluster.processes[name].wait()
            await pods.look()
            assert len(cluster.pods()) == 1
            assert name not in cluster.pods()
            await pods.close()
            assert not cluster.objects
            assert not cluster.processes

    asyncio.run(play())


def test_an_api_server_that_does_not_answer_is_an_error_of_one_sentence() -> None:
    async def play() -> None:
        async with KubernetesApi("http://127.0.0.1:9", "default") as api:
            with pytest.raises(EtudeError, match="does not answer"):
                await api.list("Pod", "a=b")

    asyncio.run(play())


def test_an_account_that_cannot_be_read_for_a_moment_is_an_error_of_one_sentence(tmp_path: Path) -> None:
    """The cluster replaces its files while a run follows the pods."""

    async def play() -> None:
        with pytest.raises(EtudeError, match="account of this pod cannot be used"):
            async with KubernetesApi("http://127.0.0.1:9", "default", tmp_path):
                pass
        async with KubernetesApi("http://127.0.0.1:9", "default") as api:
            api.account = tmp_path
            with pytest.raises(EtudeError, match="account of this pod cannot be used"):
                await api.list("Pod", "a=b")

    asyncio.run(play())


def test_the_recipes_pods_become_a_backend() -> None:
    assert backend_of("local", ["kubernetes:team/etude"]) == "remote:kubernetes:team/etude"
