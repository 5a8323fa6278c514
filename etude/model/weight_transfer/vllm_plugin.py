"""vLLM reads our delta chain: a backend of its weight-transfer interface, registered as a plugin of vLLM.

vLLM loads `register` in each of its processes (entry point `vllm.general_plugins` of this package, which therefore has
to be installed in vLLM's environment). A server that was started with
`--weight-transfer-config '{"backend": "etude"}'` is told where the chain is once, and then only which version to have.
Runs inside vLLM and is imported by nothing else here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from etude.core.policy import Version
from etude.model.weight_transfer.receive import ChainSource

BACKEND = "etude"


@dataclass
class ChainPlace(WeightTransferInitInfo):  # type: ignore[misc]
    """Where the chain is."""

    address: str
    seconds: float = 60.0  # that a version may take to be there


@dataclass
class WantedVersion(WeightTransferUpdateInfo):  # type: ignore[misc]
    """What to have now."""

    version: str


class ChainEngine(WeightTransferEngine[ChainPlace, WantedVersion]):  # type: ignore[misc]
    """Reads a version whole, checks it, and only then loads it as vLLM loads a checkpoint."""

    init_info_cls = ChainPlace
    update_info_cls = WantedVersion

    def init_transfer_engine(self, init_info: ChainPlace) -> None:
        self.source = ChainSource(init_info.address, init_info.seconds)

    def start_weight_update(self) -> None:
        """Nothing yet: a version that cannot be read must leave the model as it is."""

    def receive_weights(self, update_info: WantedVersion) -> None:
        weights, _ = self.source.read(Version.parse(update_info.version))
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        # On a CPU each tensor's own memory is written, but for experts: nothing else was packed, since `register`
        # turned oneDNN off. Elsewhere every layer is loaded as at the start and copied into the memory that it has.
        on_cpu = self.device.type == "cpu"
        reloaded = packed_experts(self.model) if on_cpu else [self.model]
        for layer in reloaded:
            if on_cpu:
                # vLLM packs experts for its CPU kernel only where it makes that kernel, so not again at an update: the
                # plain weights then stood where packed ones are read, 0.3 nats off. So the kernel is made again.
                layer.quant_method.moe_kernel = None
            initialize_layerwise_reload(layer)
        self.model.load_weights((name, tensor.to(self.device)) for name, tensor in weights.items())
        for layer in reloaded:
            finalize_layerwise_reload(layer, self.model_config)

    def finish_weight_update(self) -> None:
        """`receive_weights` left nothing to do."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":  # the base class waits for an accelerator, which a CPU is not
            torch.accelerator.synchronize()

    def shutdown(self) -> None:
        """The chain stays as it is."""


def packed_experts(model: torch.nn.Module) -> list[Any]:
    """Layers whose weights are held in the layout of a kernel for experts."""
    methods = ((layer, getattr(layer, "quant_method", None)) for layer in model.modules())
    return [layer for layer, method in methods if getattr(method, "moe_kernel", None) is not None]


def register() -> None:
    """Called by vLLM in each of its processes."""
    import vllm._custom_ops as custom_ops
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        # With oneDNN vLLM packs a layer's weight and empties the tensor, so that nothing can be loaded into it again;
        # a tied head then stayed at the old version, 1.3e-3 off, without a word.
        custom_ops._supports_onednn = False
    if BACKEND not in WeightTransferEngineFactory._registry:  # a process may load its plugins twice
        WeightTransferEngineFactory.register_engine(BACKEND, ChainEngine)
