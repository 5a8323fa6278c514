"""`etude sandbox pods`: keeps so many sandbox hosts of one name in a cluster; and finds those of a name.

A pod that has ended or was taken with its node is replaced. All go when the command is told to end. Should it be
killed, the pods end by themselves once no run has used them for long, and the next command of the name clears up.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import Callable
from typing import Final

from etude.core.errors import EtudeError
from etude.sandbox.kubernetes.api import KubernetesApi, unless
from etude.sandbox.kubernetes.manifest import (
    FLEET,
    Fleet,
    Manifest,
    address_of,
    is_over,
    network_policy,
    pod,
    secret,
    why_waiting,
)

NAMED: Final = "kubernetes:"  # before the name of a fleet, where an address is asked for
LOOK_SECONDS: Final = 5.0  # between two looks at the pods
_CONFLICT: Final = 409


class PodFleet:
    """The pods of one name."""

    def __init__(self, api: KubernetesApi, fleet: Fleet, count: int, token: str, say: Callable[[str], None]) -> None:
        self.api, self.fleet, self.count, self.token, self.say = api, fleet, count, token, say
        self._told: dict[str, str] = {}  # what was said of each pod last

    async def open(self) -> None:
        """Makes the secret and the network policy; refused where another command keeps pods of this name."""
        live = [each for each in await self._pods() if not is_over(each)]
        if live:
            raise EtudeError(
                f"there are {len(live)} pods of the name {self.fleet.name!r} in {self.api.namespace}: choose another "
                f"name, or remove them with `kubectl delete pod -l {FLEET}={self.fleet.name}`"
            )
        # A secret that a killed command left may hold another token.
        await self._clear()
        await self.api.create(secret(self.fleet, self.token))
        with unless(_CONFLICT):
            await self.api.create(network_policy(self.fleet))

    async def look(self) -> list[str]:
        """Replaces what has ended, and returns the addresses of pods that are ready."""
        pods = await self._pods()
        for each in pods:
            if is_over(each):
                await self.api.delete("Pod", _name(each))
        live = [each for each in pods if not is_over(each) and not each["metadata"].get("deletionTimestamp")]
        for _ in range(self.count - len(live)):
            name = f"{self.fleet.name}-{secrets.token_hex(4)}"
            await self.api.create(pod(self.fleet, name))
        for each in live:
            self._tell(_name(each), address_of(each) or why_waiting(each))
        return [address for each in live if (address := address_of(each))]

    async def keep(self, ended: asyncio.Event) -> None:
        """Until told to end. An API server that does not answer for a while changes nothing for the pods."""
        while not ended.is_set():
            try:
                await self.look()
            except EtudeError as error:
                self._tell("", str(error))
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await ended.wait()
            except TimeoutError:
                continue

    async def close(self) -> None:
        for each in await self._pods():
            await self.api.delete("Pod", _name(each))
        await self._clear()

    async def _clear(self) -> None:
        await self.api.delete("Secret", self.fleet.secret)
        await self.api.delete("NetworkPolicy", network_policy(self.fleet)["metadata"]["name"])

    async def _pods(self) -> list[Manifest]:
        return await self.api.list("Pod", f"{FLEET}={self.fleet.name}")

    def _tell(self, name: str, what: str) -> None:
        if what and self._told.get(name) != what:
            self._told[name] = what
            self.say(f"{name}: {what}" if name else what)


async def keep_pods(namespace: str, fleet: Fleet, count: int, token: str) -> None:
    """`etude sandbox pods`: until SIGTERM or SIGINT."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with KubernetesApi.find(namespace) as api:
        pods = PodFleet(api, fleet, count, token, lambda text: print(text, flush=True))
        await pods.open()
        try:
            print(
                f"{count} pods in {api.namespace}; a run names them as {NAMED}{api.namespace}/{fleet.name}", flush=True
            )
            await pods.keep(ended)
        finally:
            await pods.close()


async def addresses(name: str) -> list[str]:
    """Where the pods of `kubernetes:NAME` or `kubernetes:NAMESPACE/NAME` that are ready are reached."""
    namespace, _, fleet = name.removeprefix(NAMED).rpartition("/")
    async with KubernetesApi.find(namespace) as api:
        return sorted(filter(None, map(address_of, await api.list("Pod", f"{FLEET}={fleet}"))))


def _name(found: Manifest) -> str:
    return str(found["metadata"]["name"])
