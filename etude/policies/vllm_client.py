"""vLLM as an engine of the training loop: the same calls as to our own engine, in vLLM's routes.

Token ids in and out (`/inference/v1/generate`), log-probabilities of the distribution sampled from, and the version of
each token from its `weight_versions` spans. An update is pause(mode=keep), load, resume: requests under way are kept,
and their keys and values are computed again under the new weights. The weights come from a delta chain through our
plugin inside vLLM (`etude.model.weight_transfer.vllm_plugin`); only the version is sent. Never imports torch.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from etude.core.errors import EtudeError
from etude.core.frame_calls import Caller
from etude.core.policy import Experts, Sample, StopReason, Version
from etude.core.transport import Frame
from etude.model.weight_transfer.object_store import open_store
from etude.policies.engine_client import EngineClient, PinnedEngine
from etude.policies.engine_protocol import EngineFacts

LOOK = 0.05  # seconds between two looks at the head of the chain
REASONS: dict[str, StopReason] = {"stop": "stop", "length": "length", "abort": "abort"}


class VLLMClient(EngineClient):
    """A vLLM server at an address (`unix:/path` or `http://host:port`), which `cluster.vllm_server` started."""

    keep_alive = False  # its server closes an idle connection after 5 s, at whatever moment that is
    chain: str = ""  # the delta chain that it was attached to

    def __init__(self, address: str, **given: Any) -> None:
        super().__init__(address, **given)
        self._under_way: dict[str, asyncio.Future[StopReason]] = {}  # how each request ends that was asked for here

    async def attach(self, chain: str, version: Version) -> None:
        """Tells the server where its weights come from, and which version those are that it was started with."""
        self.chain = chain
        await self._call("POST", "/update_weight_version", {"new_version": str(version)})
        if chain:
            place = {"address": chain, "seconds": 0.9 * self.deadline}
            await self._call("POST", "/init_weight_transfer_engine", {"init_info": place})

    async def score_all(self, sequences: Sequence[Sequence[int]], temperature: float = 1.0) -> list[tuple[float, ...]]:
        if temperature != 1.0:
            raise EtudeError("vLLM scores given ids at temperature 1 only")
        return [tuple(await self._score(ids)) for ids in sequences]

    async def _score(self, ids: Sequence[int]) -> list[float]:
        wanted = {"max_tokens": 1, "prompt_logprobs": 0, "temperature": 1.0, "detokenize": False, "ignore_eos": True}
        body = {"token_ids": list(ids), "sampling_params": wanted}
        answer = await self._call("POST", "/inference/v1/generate", body, self.sample_deadline)
        try:
            told = answer["prompt_logprobs"]
            found = [float(place[str(token)]["logprob"]) for token, place in zip(ids[1:], told[1:], strict=True)]
        except (KeyError, TypeError, ValueError) as wrong:
            raise EtudeError(f"vLLM's answer to a score cannot be read ({wrong!r})") from None
        return [0.0, *found]

    async def abort(self, name: str) -> bool:
        ended = self._under_way.get(name)
        while ended is not None and not ended.done():
            # It knows nobody's own names: this is what its route for token ids makes of one. And it says yes to any,
            # also of a request that it has not begun yet and then computes to its end: so it is asked until it ends.
            await self._call("POST", "/abort_requests", {"request_ids": [f"generate-tokens-{name}"]})
            await asyncio.wait({ended}, timeout=LOOK)
        return ended is not None and not ended.cancelled() and ended.result() == "abort"

    async def pause(self) -> None:
        await self._call("POST", "/pause?mode=keep")

    async def update(self, version: Version) -> dict[str, Any]:
        """Waits for the version to be published, then swaps it in. A refused one leaves the weights as they are."""
        if await self.version() == version:
            return {"version": str(version), "seconds": 0.0}
        if not self.chain:
            raise EtudeError("this vLLM server was started without cluster.weights, so it cannot be updated")
        facts = await self._published(version)
        begin = time.monotonic()
        await self.pause()
        try:
            await self._call("POST", "/start_weight_update")
            try:
                await self._call("POST", "/update_weights", {"update_info": {"version": str(version)}})
            except EtudeError:
                await self._call("POST", "/finish_weight_update", {"weight_version": None})
                raise
            await self._call("POST", "/finish_weight_update", {"weight_version": str(version)})
        finally:
            await self.resume()
        return {"version": str(version), "seconds": time.monotonic() - begin} | facts

    async def _published(self, version: Version) -> dict[str, Any]:
        """Until the chain has the version: vLLM must not stand still while it is uploaded. What its link says."""
        store, until, why = open_store(self.chain), time.monotonic() + self.deadline, ""
        while True:
            try:
                data, _ = await asyncio.to_thread(store.read_head, "HEAD")
                links = [link for link in json.loads(data or b"{}").get("links", ()) if link["version"] == str(version)]
                if links:
                    sums = {key: sum(part[key] for part in links[-1]["parts"]) for key in ("size", "values", "changed")}
                    return {
                        "publish_bytes": sums["size"],
                        "publish_density": sums["changed"] / max(1, sums["values"]),
                    }
            # A store that is away for a moment, as for our own engine; or a head that is not whole.
            except (EtudeError, AttributeError, KeyError, TypeError, ValueError) as failed:
                why = f": {failed}"
            if time.monotonic() > until:
                said = f"version {version} did not appear at {self.chain} within {self.deadline:g} s"
                raise EtudeError(said + why)
            await asyncio.sleep(LOOK)

    async def pin(self, version: Version) -> PinnedEngine:
        raise EtudeError("vLLM holds one version at a time, so an evaluation beside training cannot be of one model")

    async def version(self) -> Version:
        told = (await self._call("GET", "/weight_info"))["weight_version"]
        try:
            return Version.parse(told)
        except (ValueError, AttributeError):
            raise EtudeError(f"vLLM says that its weights are {told!r}, which is no version of ours") from None

    async def health(self) -> dict[str, Any]:
        return {"ok": True} | await self._call("GET", "/is_paused")

    async def stats(self) -> dict[str, Any]:
        return await self._call("GET", "/load")

    async def facts(self) -> EngineFacts:
        return EngineFacts(
            "vllm",
            await self.version(),
            routed_experts=False,  # told only by its second model runner, which needs a GPU
            seeds=False,  # its engine dies of a seed whose prompt is computed in pieces, so none is sent
            pins=False,
            keeps_cache=False,
        )

    async def _answer(self, body: dict[str, Any], on_news: Callable[[Frame], None]) -> Sample:
        given = body["sampling"]
        wanted = {
            "max_tokens": given["max_tokens"],
            "temperature": given["temperature"],
            "top_p": given["top_p"],
            "top_k": given["top_k"],
            "stop_token_ids": list(given["stop_ids"]),
            "ignore_eos": True,  # which ids end an answer is said by who asks
            "logprobs": 0,  # of the sampled token alone
            "detokenize": False,
        }
        name = body.get("id") or uuid.uuid4().hex
        request = {"request_id": name, "token_ids": body["ids"], "sampling_params": wanted}
        ended: asyncio.Future[StopReason] = asyncio.get_running_loop().create_future()
        self._under_way[name] = ended
        try:
            answer = await self._call("POST", "/inference/v1/generate", request, self.sample_deadline)
            sample = _read(answer, body.get("routed", 0))
            ended.set_result(sample.stop)
            return sample
        finally:
            del self._under_way[name]
            ended.cancel()

    def _caller(self) -> Caller | None:
        return None


def _read(answer: dict[str, Any], routed: int) -> Sample:
    """A sample; one whose tokens, log-probabilities and versions do not match is refused."""
    try:
        (choice,) = answer["choices"]
        ids = tuple(map(int, choice["token_ids"]))
        content = (choice["logprobs"] or {}).get("content") or []
        logprobs = tuple(float(each["logprob"]) for each in content)
        versions: list[Version] = []
        for span in choice["weight_versions"] or ():
            assert span["start"] == len(versions)
            versions += [Version.parse(span["version"])] * (span["end"] - span["start"])
        stop = REASONS[choice["finish_reason"]]
        cached = ((answer.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        experts: Experts | None = None
        if choice.get("routed_experts"):
            told = np.load(io.BytesIO(base64.b64decode(choice["routed_experts"])), allow_pickle=False)
            experts = told.astype(np.int16)[routed:]
    except (KeyError, TypeError, ValueError, AssertionError) as wrong:
        raise EtudeError(f"vLLM's answer cannot be read ({wrong!r}); is it version 0.32?") from None
    if not len(ids) == len(logprobs) == len(versions):
        raise EtudeError("vLLM's answer contradicts itself: its tokens, log-probabilities and versions differ")
    return Sample("", stop, ids, logprobs, tuple(versions), int(cached), experts)
