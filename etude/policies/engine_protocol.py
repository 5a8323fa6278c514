"""What the training loop asks of an engine, whoever wrote it: our own (`EngineClient`) or vLLM (`VLLMClient`).

`etude.policies.engine_conformance` holds every engine to what is said here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from etude.core.policy import Context, Sample, Sampling, Version


@dataclass(frozen=True)
class EngineFacts:
    """What an engine is, and which of the optional things it can do."""

    engine: str
    version: Version
    routed_experts: bool  # samples say which experts each token went to
    seeds: bool  # the same seed gives the same answer
    pins: bool  # keeps a second version for an evaluation
    keeps_cache: bool  # running requests keep the keys and values of the old weights over a swap


class InferenceEngine(Protocol):
    """An engine from outside. Every call has a deadline; what cannot be done is an `EtudeError` with a reason."""

    address: str

    async def sample(self, context: Context, sampling: Sampling, *, name: str | None = None) -> Sample:
        """Token ids in; ids, the log-probabilities they were sampled with, and the version of each token out."""

    async def score(self, ids: tuple[int, ...], temperature: float = 1.0) -> tuple[float, ...]:
        """The log-probability of each id under the present weights; the first has none: 0.0."""

    async def abort(self, name: str) -> bool:
        """Ends a request by its name; its `sample` returns what there is."""

    async def pause(self) -> None:
        """No token is computed until `resume`; requests under way are kept."""

    async def resume(self) -> None: ...

    async def update(self, version: Version) -> dict[str, Any]:
        """Swaps in a published version; requests under way go on. Asking twice is no error."""

    async def health(self) -> dict[str, Any]: ...

    async def facts(self) -> EngineFacts: ...

    async def close(self) -> None: ...
