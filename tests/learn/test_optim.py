"""Muon against torch's own, against an exact orthogonalisation, and head by head; AdamW against its formula."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from etude.core.settings import OptimSettings
from etude.learn.optim import Optimiser, rate
from etude.model.decoder import Decoder
from etude.model.matrices import orthogonal, slices

SETTINGS = OptimSettings(muon_lr=0.02, weight_decay=0.1, momentum=0.9, lr=0.01)


def newton_schulz(matrix: Tensor) -> Tensor:
    """The published iteration on one matrix, in float64."""
    x = matrix.double()
    x = x.T if x.shape[0] > x.shape[1] else x
    x = x / x.norm()
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def test_singular_values_come_near_one_and_directions_stay() -> None:
    torch.manual_seed(0)
    for shape in ((6, 8, 20), (3, 16, 16)):
        x = torch.randn(shape)
        for matrix, found in zip(x, orthogonal(x), strict=True):
            u, _, vh = torch.linalg.svd(matrix.double(), full_matrices=False)
            core = u.T @ found.double() @ vh.T  # in the singular basis an orthogonal factor is diagonal
            values = core.diagonal()
            assert float((core - values.diag()).abs().max()) < 1e-4
            assert 0.6 < float(values.min()) <= float(values.max()) < 1.3
            torch.testing.assert_close(found.double(), newton_schulz(matrix), rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [(24, 16), (16, 24), (16, 16)], ids=str)
def test_a_whole_matrix_moves_as_torch_muon_moves_it(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    start = torch.randn(shape)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimiser = Optimiser({"model.layers.0.mlp.up_proj.weight": ours}, SETTINGS, {})
    reference = torch.optim.Muon(
        [theirs], lr=0.02, weight_decay=0.1, momentum=0.9, nesterov=True, adjust_lr_fn="match_rms_adamw"
    )
    for _ in range(4):
        gradient = torch.randn(shape)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimiser.step(1.0)
        reference.step()
    # torch iterates in bfloat16; one update is about 0.02 * 0.2 in RMS
    assert float((ours - theirs).square().mean().sqrt().detach()) < 4e-4


def test_each_attention_head_is_orthogonalised_by_itself() -> None:
    torch.manual_seed(0)
    head, width = 4, 12
    shapes = {"q": (16, width), "k": (8, width), "v": (8, width), "o": (width, 16)}
    names = {key: f"model.layers.1.self_attn.{key}_proj.weight" for key in shapes}
    parameters = {names[key]: nn.Parameter(torch.randn(shape)) for key, shape in shapes.items()}
    before = {name: p.detach().double().clone() for name, p in parameters.items()}
    optimiser = Optimiser(parameters, SETTINGS, dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), head))
    for p in parameters.values():
        p.grad = torch.randn_like(p)
    gradients = {name: p.grad.double().clone() for name, p in parameters.items() if p.grad is not None}
    optimiser.step(0.5)
    lr = 0.02 * 0.5
    for key, name in names.items():
        expected = before[name] * (1 - lr * 0.1)
        update = gradients[name] * (1 - 0.9) * 0.9 + gradients[name] * (1 - 0.9)  # first step: momentum, then Nesterov
        for h in range(shapes[key][1 if key == "o" else 0] // head):
            cut = slice(h * head, (h + 1) * head)
            part = update[:, cut] if key == "o" else update[cut]
            moved = lr * 0.2 * math.sqrt(max(part.shape)) * newton_schulz(part)
            if key == "o":
                expected[:, cut] -= moved
            else:
                expected[cut] -= moved
        torch.testing.assert_close(parameters[name].detach().double(), expected, rtol=0, atol=1e-6)


def test_stacked_experts_are_orthogonalised_one_by_one() -> None:
    weight = torch.randn(5, 6, 4)
    assert slices("model.layers.0.mlp.experts.down_proj", weight, {}).shape == (5, 4, 6)


def test_who_moves_by_which_rule(make_decoder: Callable[..., Decoder]) -> None:
    decoder = make_decoder(0, mtp=1)
    optimiser = Optimiser(dict(decoder.named_parameters()), SETTINGS, decoder.config.head_dims)
    assert "model.layers.0.mlp.gate_proj.weight" in optimiser.muon
    assert "mtp.0.eh_proj.weight" in optimiser.muon
    assert not {"model.embed_tokens.weight", "model.norm.weight", "model.layers.0.self_attn.q_norm.weight"} & set(
        optimiser.muon
    )
    plain = Optimiser(dict(decoder.named_parameters()), OptimSettings(matrices="adamw"), decoder.config.head_dims)
    assert plain.muon == []
    assert plain.decay["model.embed_tokens.weight"] == 0.0
    assert plain.decay["model.layers.0.mlp.gate_proj.weight"] == OptimSettings().weight_decay


def test_adamw_follows_its_formula() -> None:
    torch.manual_seed(0)
    p = nn.Parameter(torch.randn(5, 3))
    optimiser = Optimiser({"model.embed_tokens.weight": p}, SETTINGS, {})
    x, m, v = p.detach().double().clone(), torch.zeros(5, 3).double(), torch.zeros(5, 3).double()
    for step in range(1, 5):
        p.grad = torch.randn_like(p)
        g = p.grad.double()
        optimiser.step(0.5)
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
        x = x - 0.01 * 0.5 * (m / (1 - 0.9**step)) / ((v / (1 - 0.95**step)).sqrt() + 1e-8)
    torch.testing.assert_close(p.detach().double(), x, rtol=0, atol=1e-6)


def test_adamw_moves_weights_to_the_bits_of_torchs_own() -> None:
    torch.manual_seed(0)
    names = ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "model.norm.weight"]
    ours = {name: nn.Parameter(torch.randn(8, 8)) for name in names} | {"model.never.bias": nn.Parameter(torch.ones(3))}
    theirs = {name: nn.Parameter(p.detach().clone()) for name, p in ours.items()}
    settings = OptimSettings(matrices="adamw", weight_decay=0.1, lr=0.01)
    optimiser = Optimiser(ours, settings, {})
    groups = [{"params": [theirs[names[1]]]}, {"params": [theirs[name] for name in names[::2]], "weight_decay": 0.0}]
    reference = torch.optim.AdamW(
        groups, lr=0.01 * 0.7, betas=settings.betas, eps=settings.eps, weight_decay=0.1, fused=True
    )
    versions = {name: p._version for name, p in ours.items()}
    for _ in range(5):
        for name in names:
            ours[name].grad = torch.randn(8, 8)
            theirs[name].grad = ours[name].grad.clone()  # type: ignore[union-attr]
        optimiser.step(0.7)
        reference.step()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert all(ours[name]._version > versions[name] for name in names)  # who keeps what it made of a weight looks there


def test_schedules_have_their_shapes() -> None:
    def curve(**settings: object) -> list[float]:
        optim = OptimSettings(final_lr=0.1, **settings)  # type: ignore[arg-type]
        return [rate(step, 100, optim) for step in range(100)]

    for kind in ("cosine", "linear", "constant", "wsd"):
        values = curve(schedule=kind, warmup=0.1, decay=0.3)
        assert values[:10] == pytest.approx([(step + 1) / 11 for step in range(10)])
        assert max(values) <= 1.0
    assert set(curve(schedule="constant", warmup=0.0)) == {1.0}
    wsd = curve(schedule="wsd", warmup=0.1, decay=0.3)
    assert wsd[10:70] == [1.0] * 60
    assert wsd[-1] == pytest.approx(0.1)
    assert wsd[84] == pytest.approx(0.1 + 0.9 / 2)
    linear = curve(schedule="linear", warmup=0.0)
    assert linear[49] == pytest.approx(0.55)
    cosine = curve(schedule="cosine", warmup=0.0)
    assert cosine[49] == pytest.approx(0.55)
    assert cosine[24] == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2)
    assert cosine[-1] == linear[-1] == pytest.approx(0.1)
    assert rate(250, 100, OptimSettings(schedule="cosine", final_lr=0.1)) == pytest.approx(0.1)
