"""Our backend of vLLM's weight-transfer interface, with stand-ins for the few names of vLLM that it uses."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, TypeVar

import pytest
import torch
from torch import Tensor, nn

T, U = TypeVar("T"), TypeVar("U")


class TransferEngine(Generic[T, U]):
    """What vLLM gives a backend: the model, its device and its configuration."""

    def __init__(self, model: nn.Module, device: str) -> None:
        self.model, self.device, self.model_config = model, torch.device(device), "config"

    def parse_update_info(self, given: dict[str, Any]) -> Any:
        return self.update_info_cls(**given)  # type: ignore[attr-defined]


class Experts(nn.Module):
    """A layer as vLLM's on a CPU: a kernel packs the weights when it is made, and not at a later load."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3), requires_grad=False)
        self.quant_method = SimpleNamespace(moe_kernel=None)
        self.process()

    def process(self) -> None:
        if self.quant_method.moe_kernel is None:
            self.quant_method.moe_kernel = object()
            self.weight.data = self.weight.data.flip(0)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(1, 3, bias=False).requires_grad_(False)
        self.experts = Experts()

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        for name, tensor in weights:
            self.get_parameter(name).copy_(tensor)


@pytest.fixture
def reloads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, nn.Module]]:
    """vLLM's modules, and what is reloaded by them."""
    seen: list[tuple[str, nn.Module]] = []

    def finalize(layer: nn.Module, config: str) -> None:
        assert config == "config"
        seen.append(("finalize", layer))
        for each in layer.modules():
            if isinstance(each, Experts):
                each.process()

    base = SimpleNamespace(
        WeightTransferEngine=TransferEngine, WeightTransferInitInfo=object, WeightTransferUpdateInfo=object
    )
    given = {
        "vllm": {},
        "vllm.distributed": {},
        "vllm.distributed.weight_transfer": {},
        "vllm.distributed.weight_transfer.base": vars(base),
        "vllm.distributed.weight_transfer.factory": {"WeightTransferEngineFactory": SimpleNamespace(_registry={})},
        "vllm.model_executor": {},
        "vllm.model_executor.model_loader": {},
        "vllm.model_executor.model_loader.reload": {
            "initialize_layerwise_reload": lambda layer: seen.append(("initialize", layer)),
            "finalize_layerwise_reload": finalize,
        },
    }
    for name, values in given.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "etude.model.weight_transfer.vllm_plugin", raising=False)
    return seen


def update(model: nn.Module, device: str, weights: dict[str, Tensor]) -> None:
    plugin = importlib.import_module("etude.model.weight_transfer.vllm_plugin")
    engine = plugin.ChainEngine(model, device)
    engine.source = SimpleNamespace(read=lambda version: (weights, {}))
    engine.receive_weights(plugin.WantedVersion("0.1"))


WEIGHTS = {"dense.weight": torch.ones(3, 1), "experts.weight": torch.tensor([1.0, 2.0, 3.0])}


def test_on_a_cpu_experts_are_packed_again_and_the_rest_is_written_in_place(reloads: Any) -> None:
    model = Model()
    memory = model.dense.weight.data_ptr()
    update(model, "cpu", WEIGHTS)
    assert reloads == [("initialize", model.experts), ("finalize", model.experts)]
    assert model.experts.weight.tolist() == [3.0, 2.0, 1.0]
    assert model.dense.weight.data_ptr() == memory
    assert model.dense.weight.flatten().tolist() == [1.0, 1.0, 1.0]


def test_elsewhere_the_whole_model_is_reloaded_with_the_kernels_that_it_has(reloads: Any) -> None:
    model = Model()
    kernel = model.experts.quant_method.moe_kernel
    on_device = {name: SimpleNamespace(to=lambda device, found=tensor: found) for name, tensor in WEIGHTS.items()}
    update(model, "cuda", on_device)  # type: ignore[arg-type]
    assert reloads == [("initialize", model), ("finalize", model)]
    assert model.experts.quant_method.moe_kernel is kernel
