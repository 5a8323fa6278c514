"""An API server with a kubelet behind it, as far as these tests go: pods are real processes of this machine.

Objects are kept as they were posted; a pod's command is started with its variables filled in, each pod on a loopback
address of its own. What the real ones check beyond that is not here: the objects are held against the published schema
by a test of their own.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web

KINDS = {"pods": "Pod", "secrets": "Secret", "networkpolicies": "NetworkPolicy"}


class StubCluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}  # by plural and name
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.refuse = 0  # answers that are errors, from the next on
        self.asked: list[str] = []
        self._numbers = itertools.count(2)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        app = web.Application()
        for prefix in ("/api/v1", "/apis/networking.k8s.io/v1"):
            place = f"{prefix}/namespaces/{{namespace}}/{{plural}}"
            app.router.add_post(place, self._create)
            app.router.add_get(place, self._list)
            app.router.add_delete(place + "/{name}", self._delete)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
            yield f"http://127.0.0.1:{port}"
        finally:
            for name in list(self.processes):
                self.lose(name)
            await runner.cleanup()

    def pods(self) -> list[str]:
        return [name for plural, name in self.objects if plural == "pods"]

    def lose(self, name: str) -> None:
        """A pod goes with its node: the process at once, the object when the cluster has noticed."""
        process = self.processes.pop(name, None)
        if process is not None:
            process.kill()
            process.wait()
        self.objects.pop(("pods", name), None)

    async def _create(self, request: web.Request) -> web.Response:
        plural, body = request.match_info["plural"], await request.json()
        self.asked.append(f"POST {plural}")
        if self.refuse:
            self.refuse -= 1
            return _status(403, "pods is forbidden: the account may not create them")
        name = body["metadata"]["name"]
        if body["kind"] != KINDS[plural] or (plural, name) in self.objects:
            return _status(409 if (plural, name) in self.objects else 400, f"{plural} {name} already exists")
        self.objects[plural, name] = body
        if plural == "pods":
            self._start(name, body)
        return web.json_response(body, status=201)

    async def _list(self, request: web.Request) -> web.Response:
        key, _, value = request.query["labelSelector"].partition("=")
        self.asked.append("GET")
        await asyncio.gather(*(self._look(name) for name in self.pods()))
        found = [
            each
            for (plural, _), each in self.objects.items()
            if plural == request.match_info["plural"] and each["metadata"]["labels"].get(key) == value
        ]
        return web.json_response({"kind": "List", "items": found})

    async def _delete(self, request: web.Request) -> web.Response:
        plural, name = request.match_info["plural"], request.match_info["name"]
        self.asked.append(f"DELETE {plural}")
        if (plural, name) not in self.objects:
            return _status(404, f"{plural} {name} not found")
        found = self.objects.pop((plural, name))
        process = self.processes.pop(name, None)
        if process is not None:
            process.terminate()
            await asyncio.to_thread(process.wait, 20)
        return web.json_response(found)

    def _start(self, name: str, body: dict[str, Any]) -> None:
        # Of this process alone: pods have one port, and the tests may run twice on a machine.
        place = f"127.{os.getpid() >> 8 & 127}.{os.getpid() & 255}.{next(self._numbers)}"
        container = body["spec"]["containers"][0]
        variables = {"POD_IP": place}
        for each in container["env"]:
            secret = each["valueFrom"].get("secretKeyRef")
            if secret is not None:
                data = self.objects["secrets", secret["name"]]["data"][secret["key"]]
                variables[each["name"]] = base64.b64decode(data).decode()
        command = [re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], word) for word in container["command"]]
        assert command[0] == "etude"
        mounted = container["volumeMounts"][0]["mountPath"]
        command = [word.replace(mounted, str(self.folder / name)) for word in command]
        log = (self.folder / f"{name}.log").open("wb")
        # Nothing of this process's own variables: a pod has none of them.
        kept = {key: os.environ[key] for key in ("PATH", "HOME", "PYTHONPATH") if key in os.environ}
        self.processes[name] = subprocess.Popen(
            [sys.executable, "-m", *command], env=kept | variables, stdout=log, stderr=log
        )
        body["status"] = {"phase": "Pending", "podIP": place, "conditions": [{"type": "Ready", "status": "False"}]}

    async def _look(self, name: str) -> None:
        body = self.objects[("pods", name)]
        code = self.processes[name].poll()
        if code is not None:
            body["status"] |= {"phase": "Succeeded" if code == 0 else "Failed", "conditions": []}
            return
        port = body["spec"]["containers"][0]["readinessProbe"]["tcpSocket"]["port"]
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(body["status"]["podIP"], port)
            writer.close()
            body["status"] |= {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def _status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "status": "Failure", "message": message, "code": code}, status=code)
