"""Experts against a plain loop in float64; routing that is told what to choose; the bias that balances."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.core.errors import EtudeError
from etude.core.policy import UNROUTED
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.experts import Experts, MixtureOfExperts, Router, Routing, balance
from etude.model.packed_forward import Packed
from etude.model.replicas import Replicas


def shape(**changes: object) -> ModelConfig:
    base = {
        "vocab_size": 61,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "model_type": "deepseek_v3",
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "v_head_dim": 10,
        "rope_interleave": True,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 16,
        "n_shared_experts": 1,
        "scoring": "sigmoid",
        "routed_scaling_factor": 1.5,
        "first_k_dense_replace": 1,
        "tie_word_embeddings": False,
        "qk_norm": False,
    }
    return ModelConfig(**{**base, **changes})  # type: ignore[arg-type]


def lively(config: ModelConfig, seed: int = 0) -> Decoder:
    decoder = Decoder(config, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3, generator=generator)
    return decoder


def rows(count: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def test_stacked_experts_are_a_loop_over_tokens_and_their_experts_and_so_is_the_gradient() -> None:
    torch.manual_seed(0)
    experts = Experts(shape()).double()
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter)
    x_TD = rows(11, 24).double().requires_grad_()
    chosen_TK = torch.stack([torch.randperm(7)[:3].sort().values for _ in range(11)])  # expert 7 gets no token
    weight_TK = torch.rand(11, 3, dtype=torch.float64, requires_grad=True)
    out = experts(x_TD, chosen_TK, weight_TK)
    expected = []
    for t in range(11):
        total = torch.zeros(24, dtype=torch.float64)
        for k in range(3):
            e = chosen_TK[t, k]
            gate, up = (experts.gate_up_proj[e] @ x_TD[t]).chunk(2)
            total = total + weight_TK[t, k] * (experts.down_proj[e] @ (torch.nn.functional.silu(gate) * up))
        expected.append(total)
    torch.testing.assert_close(out, torch.stack(expected))
    inputs = [x_TD, weight_TK, *experts.parameters()]
    g = torch.randn_like(out)
    found = torch.autograd.grad(out, inputs, g, retain_graph=True)
    for a, b in zip(found, torch.autograd.grad(torch.stack(expected), inputs, g), strict=True):
        torch.testing.assert_close(a, b)


def test_a_routing_records_what_was_chosen_and_a_second_forward_repeats_it() -> None:
    decoder = lively(shape())
    tokens = [np.arange(9) % 61, np.arange(20) % 61]
    first = Packed(decoder, tokens)
    first.routing = Routing()
    hidden = first.hidden()[0]
    chosen_TBK = first.routing.chosen_TBK
    assert chosen_TBK.shape == (29, 2, 3) and (chosen_TBK.diff(dim=-1) > 0).all()
    experts = [part.numpy().astype(np.int16) for part in torch.split(chosen_TBK, [9, 20])]
    again = Packed(decoder, tokens, experts=experts)
    assert torch.equal(again.hidden()[0], hidden)
    assert again.routing is not None
    assert int(again.routing.replayed) == 29 * 2 * 3 and not int(again.routing.moved) and not int(again.routing.refused)


def test_replay_overrides_the_choice_and_the_gate_still_gets_gradients() -> None:
    config = shape()
    layer = MixtureOfExperts(config)
    torch.manual_seed(1)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x_TD = rows(6, 24)
    asked = torch.tensor([[0, 1, 2]] * 6, dtype=torch.int16)
    routing = Routing(asked[:, None])
    out_TD = layer(x_TD, routing)
    assert torch.equal(routing.chosen[0], asked.long())
    scores_TE = torch.sigmoid(x_TD @ layer.gate.weight.T)
    weight_TK = scores_TE[:, :3] / scores_TE[:, :3].sum(-1, keepdim=True) * 1.5
    expected = layer.experts(x_TD, asked.long(), weight_TK) + layer.shared_experts(x_TD)
    torch.testing.assert_close(out_TD, expected)
    out_TD.square().sum().backward()
    assert layer.gate.weight.grad is not None
    assert (layer.gate.weight.grad[:3] != 0).any() and (layer.gate.weight.grad[3:] == 0).all()


@pytest.mark.parametrize("scoring", ["sigmoid", "softmax"])
def test_the_plausibility_filter_is_what_brute_force_says(scoring: str) -> None:
    config = shape(scoring=scoring)
    router = Router(config)
    torch.nn.init.normal_(router.weight)
    x_TD, generator = rows(40, 24), torch.Generator().manual_seed(3)
    asked_TK = torch.stack([torch.randperm(8, generator=generator)[:3] for _ in range(40)]).to(torch.int16)
    asked_TK[5:9] = UNROUTED
    asked_TK[20, 1] = UNROUTED
    logits_TE = x_TD @ router.weight.T
    scores_TE = (logits_TE.sigmoid() if scoring == "sigmoid" else logits_TE.softmax(-1)).detach()
    for plausible in (0.0, 0.5, 0.9, 1.0):
        routing = Routing(asked_TK[:, None], plausible)
        chosen_TK = router.choose(router.scores(x_TD), routing)
        refused = moved = 0
        for t in range(40):
            order = scores_TE[t].argsort(descending=True).tolist()
            least = plausible * float(scores_TE[t, order[2]])
            wanted = [e for e in asked_TK[t].tolist() if e != UNROUTED]
            kept = [e for e in wanted if float(scores_TE[t, e]) >= least]
            refused += len(wanted) - len(kept)
            moved += sum(e not in order[:3] for e in wanted)
            expected = sorted(kept + [e for e in order if e not in kept][: 3 - len(kept)])
            assert chosen_TK[t].tolist() == expected
        counted = (int(routing.replayed), int(routing.moved), int(routing.refused))
        assert counted == (40 * 3 - 4 * 3 - 1, moved, refused)


def test_experts_of_another_model_are_refused() -> None:
    decoder = lively(shape())
    for wrong in (np.zeros((4, 3, 3), np.int16), np.full((4, 2, 3), 8, np.int16), np.zeros((3, 2, 3), np.int16)):
        with pytest.raises(EtudeError, match="of other tokens or by another model"):
            Packed(decoder, [np.arange(4)], experts=[wrong])


def test_balancing_raises_the_bias_of_idle_experts_until_the_load_is_even() -> None:
    config = shape(num_hidden_layers=2)
    decoder = lively(config)
    router = next(module for module in decoder.modules() if isinstance(module, Router))
    tokens = [np.random.default_rng(0).integers(0, 61, 400)]
    router.e_score_correction_bias[0] = 0.5  # everybody's choice
    unevenness = []
    for _ in range(150):
        Packed(decoder, tokens).hidden()
        before = router.e_score_correction_bias.clone()
        load_E = router.load_E.clone()
        unevenness.append(balance(decoder, 0.01)["load_max"])
        moved = router.e_score_correction_bias - before
        assert torch.equal(moved.sign(), torch.sign(load_E.mean() - load_E)) and not router.load_E.any()
    assert unevenness[0] > 1.5 and unevenness[-1] < 1.15


def test_nothing_is_counted_without_a_gradient() -> None:
    decoder = lively(shape())
    with torch.no_grad():
        Packed(decoder, [np.arange(20)]).hidden()
    assert balance(decoder, 0.1) == {}


def test_replicas_share_the_bias_and_add_up_their_loads() -> None:
    decoder = lively(shape())
    replicas = Replicas(decoder)
    replicas.run(lambda d, ids: Packed(d, [ids]).hidden()[0].sum().backward(), [np.arange(20), np.arange(7)])
    replicas.gather()
    routers = [[m for m in d.modules() if isinstance(m, Router)] for d in replicas.decoders]
    total = 27 if len(replicas.decoders) > 1 else 20
    assert all(float(router.load_E.sum()) == 3 * total for router in routers[0])
    balance(decoder, 0.1)
    for others in routers[1:]:
        for own, other in zip(routers[0], others, strict=True):
            assert other.e_score_correction_bias.any() and not other.load_E.any()
            assert own.e_score_correction_bias.data_ptr() == other.e_score_correction_bias.data_ptr()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_group": 3}, "n_group divide"),
        ({"n_group": 4, "topk_group": 5}, "topk_group at most"),
        ({"num_experts_per_tok": 9}, "8 experts to choose from"),
        ({"n_group": 8, "topk_group": 4}, "at least two"),
        ({"qk_rope_head_dim": 7}, "even number"),
    ],
)
def test_shapes_that_cannot_be_are_refused(changes: dict[str, int], words: str) -> None:
    with pytest.raises(EtudeError, match=words):
        shape(**changes)
