"""Adapters: what they compute, what they leave alone, and that an engine, `peft` and a resumed run get the same."""

from __future__ import annotations

import json
import math
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from etude.core import recipe as recipes
from etude.core.errors import EtudeError
from etude.core.policy import Assistant, User, Version
from etude.core.run import Run
from etude.core.run_files import read_metrics
from etude.core.settings import LoraSettings, OptimSettings
from etude.learn.learner import Learner
from etude.learn.lora import adapt, parameters
from etude.learn.streams import Batch, Correction, Item, Label, Sampled, Stream, Twin
from etude.model.attention import PackedAttend
from etude.model.checkpoint.directory import load_model, named_weights, save_model
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.experts import balance
from etude.model.lora_linear import adapted, copy_trained, merged
from etude.model.size import adapter_parameters
from etude.model.weight_transfer.shared_memory import WeightBoard
from etude.pipeline.execute import execute
from etude.tokens.conversations import write_conversations
from etude.tokens.tokenizer import Tokenizer

Make = Callable[..., Decoder]
VOCAB = 37
LORA = LoraSettings(rank=4, alpha=6.0)
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {
    **EXPERTS,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "rope_interleave": True,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "scoring": "sigmoid",
    "qk_norm": False,
    "tie_word_embeddings": False,
}
SHAPES = {
    "qwen2": {"model_type": "qwen2", "qk_norm": False, "attention_bias": True},
    "qwen3": {"model_type": "qwen3"},
    "qwen3_moe": {"model_type": "qwen3_moe", "tie_word_embeddings": False, **EXPERTS},
    "deepseek_v3": {"model_type": "deepseek_v3", **LATENT, "q_lora_rank": 12, "n_group": 2, "topk_group": 1},
    "kimi_k2": {"model_type": "kimi_k2", **LATENT, "num_nextn_predict_layers": 1},
}


def shaped(shape: str, seed: int = 0) -> Decoder:
    decoder = Decoder(ModelConfig(**SIZES | SHAPES[shape]), seed=seed)
    generator = torch.Generator().manual_seed(seed + 1000)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.2, generator=generator)
    return decoder


def shaken(decoder: Decoder) -> Decoder:
    """Adapters as training might leave them: far from nothing."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in parameters(decoder).values():
            parameter.normal_(0.0, 0.2, generator=generator)
    return decoder


TOKENS = torch.from_numpy(np.random.default_rng(3).integers(0, VOCAB, 21))


@torch.no_grad()
def logits(decoder: Decoder, attend: object = None) -> Tensor:
    attend = attend or PackedAttend([len(TOKENS)])
    return decoder.logits(decoder(TOKENS, torch.arange(len(TOKENS)), attend))  # type: ignore[arg-type]


class Absorbing:
    """Causal attention that wants latents, as a cache does."""

    latent = True

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        scores = torch.einsum("thd,shd->hts", q, k) / math.sqrt(q.shape[2])
        scores = scores + torch.full_like(scores[0], -torch.inf).triu(1)
        return torch.einsum("hts,shd->thd", scores.softmax(-1), v)


def labels(seed: int, lengths: tuple[int, ...] = (9, 17, 4)) -> list[Item]:
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, VOCAB, length) for length in lengths]
    return [Item(row, [Stream("main", np.full(len(row), 0.05, np.float32), Label(row))]) for row in rows]


def mixed(seed: int) -> Batch:
    """Labels, sampled tokens and a twin under averaged weights."""
    rng = np.random.default_rng(seed)
    tokens, weight = rng.integers(0, VOCAB, 15), np.full(15, 0.1, np.float32)
    noise = rng.normal(size=(2, 15)).astype(np.float32)
    targets = (Sampled(noise[0], noise[1] - 3), Twin(tokens_U=tokens, align_T=np.arange(15), weights="ema"))
    return Batch([*labels(seed), Item(tokens, [Stream("main", weight, t) for t in targets])], Correction("truncate"))


# What an adapter computes


@pytest.mark.parametrize("shape", SHAPES)
def test_a_new_adapter_adds_nothing_and_a_saved_model_has_it_added(shape: str, tmp_path: Path) -> None:
    before = logits(shaped(shape))
    decoder = adapt(shaped(shape), LORA, seed=1)
    assert torch.equal(logits(decoder), before)
    unmerged = logits(shaken(decoder))
    assert float((unmerged - before).abs().max()) > 0.1
    save_model(tmp_path, decoder)
    torch.testing.assert_close(logits(load_model(tmp_path)), unmerged, rtol=0, atol=1e-4)


@pytest.mark.parametrize("shape", ["deepseek_v3", "kimi_k2"])
def test_a_weight_that_is_used_as_a_tensor_has_its_adapter(shape: str) -> None:
    """Over a cache latent attention takes the up-projection apart instead of calling it."""
    decoder = shaken(adapt(shaped(shape), LORA, seed=1))
    torch.testing.assert_close(logits(decoder, Absorbing()), logits(decoder), rtol=0, atol=1e-4)


def test_gradients_follow_from_those_of_the_whole_weights() -> None:
    """With dW of a plain model in float64 whose weights are the sums: dA = s B' dW and dB = s dW A'."""
    decoder = shaken(adapt(shaped("qwen3"), LORA, seed=1))
    whole = Decoder(decoder.config).double()
    with torch.no_grad():
        for (name, weight), (named, tensor) in zip(
            named_weights(whole).items(), merged(decoder, named_weights(decoder)), strict=True
        ):
            assert name == named
            weight.copy_(tensor)
    items = labels(2)
    Learner(decoder, OptimSettings(), 1, 64).forward_backward(Batch(items))
    for item in items:
        ids = torch.from_numpy(item.tokens_T)
        hidden = whole(ids, torch.arange(len(ids)), PackedAttend([len(ids)]))
        (0.05 * nn.functional.cross_entropy(whole.logits(hidden[:-1]), ids[1:], reduction="sum")).backward()
    gradients = {name: p.grad for name, p in whole.named_parameters()}
    scale = LORA.alpha / LORA.rank
    for name, module in adapted(decoder).items():
        whole_grad = gradients[f"{name}.weight"]
        assert whole_grad is not None and module.lora_A.weight.grad is not None
        a, b = (factor.weight.detach().double() for factor in (module.lora_A, module.lora_B))
        expected = scale * b.T @ whole_grad, scale * whole_grad @ a.T
        for factor, wanted in zip((module.lora_A, module.lora_B), expected, strict=True):
            torch.testing.assert_close(factor.weight.grad.double(), wanted, rtol=1e-3, atol=1e-5)


# Which projections


def test_all_projections_of_the_blocks_get_adapters_but_experts_and_router_stay_frozen() -> None:
    decoder = adapt(shaped("deepseek_v3"), LORA, seed=1)
    found = {name.removeprefix("model.layers.") for name in adapted(decoder)}
    attention = {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"}
    expected = {f"{layer}.self_attn.{name}" for layer in range(3) for name in attention}
    expected |= {f"0.mlp.{name}_proj" for name in ("gate", "up", "down")}
    expected |= {f"{layer}.mlp.shared_experts.{name}_proj" for layer in (1, 2) for name in ("gate", "up", "down")}
    assert found == expected
    trained = {name for name, p in decoder.named_parameters() if p.requires_grad}
    assert trained == parameters(decoder).keys()


@pytest.mark.parametrize("shape", SHAPES)
def test_they_are_as_many_as_a_model_is_said_to_need(shape: str) -> None:
    decoder = adapt(shaped(shape), LORA, seed=1)
    assert sum(p.numel() for p in parameters(decoder).values()) == adapter_parameters(decoder.config, LORA.rank)


def test_targets_are_chosen_by_name_and_unknown_ones_refused() -> None:
    decoder = adapt(shaped("qwen3"), LoraSettings(rank=2, targets=["q_proj", "down_proj"]), seed=1)
    assert {name.rpartition(".")[2] for name in adapted(decoder)} == {"q_proj", "down_proj"}
    assert len(adapted(decoder)) == 6
    known = "can have adapters are k_proj, o_proj, q_proj, v_proj"
    with pytest.raises(EtudeError, match=known):
        adapt(shaped("qwen3_moe"), LoraSettings(rank=2, targets=[]), seed=1)
    for target in ("gate_up_proj", "experts", "gate"):
        fresh = shaped("qwen3_moe")
        with pytest.raises(EtudeError, match=f"{target}.*{known} .*frozen"):
            adapt(fresh, LoraSettings(rank=2, targets=[target]), seed=1)
        assert not adapted(fresh) and all(p.requires_grad for p in fresh.parameters())


def test_rank_0_trains_all_weights() -> None:
    decoder = adapt(shaped("qwen3"), LoraSettings(), seed=1)
    assert not adapted(decoder) and all(p.requires_grad for p in decoder.parameters())


def test_a_seed_is_an_adapter() -> None:
    same, again, other = (parameters(adapt(shaped("qwen3"), LORA, seed)) for seed in (1, 1, 2))
    assert all(torch.equal(same[name], again[name]) for name in same)
    assert not any(torch.equal(same[name], other[name]) for name in same if name.endswith("lora_A.weight"))


# Training


@pytest.mark.parametrize("shape", ["qwen3", "deepseek_v3"])
def test_frozen_weights_keep_their_bits_and_cost_no_gradient_moment_or_average(shape: str) -> None:
    plain = dict(shaped(shape).state_dict())
    learner = Learner(adapt(shaped(shape), LORA, seed=1), OptimSettings(lr=2e-3, ema=0.9), 4, 40)
    base = {name: p for name, p in learner.decoder.named_parameters() if not p.requires_grad}
    names = parameters(learner.decoder).keys()
    losses = []
    for _ in range(4):
        losses.append(learner.forward_backward(Batch(labels(0)))["loss"])
        assert all(p.grad is None for p in base.values())
        learner.step()
        balance(learner.decoder, 0.1)
    assert losses[-1] < losses[0]
    held = {name.partition(".")[2] for name in learner.optimiser.state()}
    assert held == names and not learner.optimiser.muon
    stored = {p.data_ptr() for p in learner.weights["ema"].parameters()}
    assert all(p.data_ptr() in stored for p in base.values())
    for name, tensor in learner.decoder.state_dict().items():
        if name in plain:
            assert torch.equal(tensor, plain[name]), name
    assert plain.keys() == learner.decoder.state_dict().keys() - names


def test_the_model_that_training_starts_from_is_a_reference_without_memory_of_its_own() -> None:
    decoder = shaped("deepseek_v3")
    before = logits(decoder)
    reference = copy_trained(decoder.requires_grad_(False))
    assert {p.data_ptr() for p in reference.parameters()} == {p.data_ptr() for p in decoder.parameters()}
    assert not torch.equal(logits(shaken(adapt(decoder, LORA, seed=1))), before)
    assert torch.equal(logits(reference), before)


def everything(learner: Learner) -> dict[str, Tensor]:
    named = {f"{name}/{key}": p for name, decoder in learner.weights.items() for key, p in decoder.named_parameters()}
    return {key: x.detach().clone() for key, x in (named | learner.optimiser.state()).items()}


@pytest.mark.parametrize("threads", [1, 3])
def test_a_resume_from_the_first_model_and_the_adapters_is_exact_to_the_bit(tmp_path: Path, threads: int) -> None:
    def learner() -> Learner:
        return Learner(adapt(shaped("deepseek_v3"), LORA, seed=1), OptimSettings(ema=0.9, warmup=0.3), 6, 20)

    def train(learner: Learner, steps: range) -> None:
        for step in steps:
            learner.forward_backward(mixed(step))
            learner.step()

    torch.set_num_threads(threads)
    try:
        straight, first, second = learner(), learner(), learner()
        assert len(straight.replicas.decoders) == threads
        train(straight, range(6))
        train(first, range(3))
        first.save(tmp_path)
        second.restore(tmp_path)
        assert second.steps == 3
        train(second, range(3, 6))
    finally:
        torch.set_num_threads(1)
    wanted, found = everything(straight), everything(second)
    assert wanted.keys() == found.keys()
    assert [name for name in wanted if not torch.equal(wanted[name], found[name])] == []


def test_a_resume_on_other_weights_or_with_other_adapters_is_refused(tmp_path: Path) -> None:
    Learner(adapt(shaped("qwen3"), LORA, seed=1), OptimSettings(), 6, 40).save(tmp_path)
    another = adapt(shaped("qwen3", seed=2), LORA, seed=1)
    with pytest.raises(EtudeError, match="other weights than those of the model that this stage starts from"):
        Learner(another, OptimSettings(), 6, 40).restore(tmp_path)
    for changed in (LoraSettings(rank=2), LoraSettings(rank=4, targets=["q_proj"])):
        with pytest.raises(EtudeError, match="adapters of other settings"):
            Learner(adapt(shaped("qwen3"), changed, seed=1), OptimSettings(), 6, 40).restore(tmp_path)
    (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(b"{}")
    with pytest.raises(EtudeError, match=r"adapter_model\.safetensors cannot be read"):
        Learner(adapt(shaped("qwen3"), LORA, seed=1), OptimSettings(), 6, 40).restore(tmp_path)


# Out to others


@pytest.mark.parametrize("shape", ["qwen3", "deepseek_v3"])
def test_an_engine_gets_the_sums_and_agrees_within_the_bounds_of_the_loop(shape: str, tmp_path: Path) -> None:
    learner = Learner(shaken(adapt(shaped(shape), LORA, seed=1)), OptimSettings(), 6, 400)
    board = WeightBoard.create(tmp_path / "board", learner.decoder)
    learner.publish(board, Version(0, 3))
    plain = Decoder(learner.decoder.config)
    WeightBoard.attach(tmp_path / "board").load_into(plain, Version(0, 3))
    items = labels(1, (200, 150, 162))
    engine = Learner(plain, OptimSettings(), 6, 400)
    apart = np.abs(np.concatenate(learner.score(items)) - np.concatenate(engine.score(items)))
    assert apart.mean() < 1e-5 and apart.max() < 1e-3


def test_sums_are_made_one_at_a_time() -> None:
    decoder = shaken(adapt(shaped("qwen3"), LORA, seed=1))
    names = {f"{name}.weight" for name in adapted(decoder)}
    last: weakref.ref[Tensor] | None = None
    for name, tensor in merged(decoder, named_weights(decoder)):
        if name in names:
            assert last is None or last() is None
            last = weakref.ref(tensor)
        del tensor
    assert last is not None


def test_an_adapter_of_a_weight_without_a_name_is_never_left_out_in_silence() -> None:
    decoder = adapt(shaped("qwen3"), LORA, seed=1)
    with pytest.raises(RuntimeError, match="21 adapters belong to none"):
        list(merged(decoder, {"model.norm.weight": decoder.model.norm.weight}))


@pytest.mark.parametrize("shape", ["qwen2", "qwen3", "qwen3_moe", "deepseek_v3"])
def test_peft_loads_the_adapter_and_transformers_the_whole_model(shape: str, tmp_path: Path) -> None:
    base, saved = tmp_path / "base", tmp_path / "saved"
    save_model(base, shaped(shape))
    learner = Learner(shaken(adapt(load_model(base), LORA, seed=1)), OptimSettings(), 6, 40)
    saved.mkdir()
    learner.save(saved)
    ours = logits(learner.decoder)
    theirs = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    with torch.no_grad():
        assert float((theirs(TOKENS[None]).logits[0] - ours).abs().max()) > 0.1
        theirs = PeftModel.from_pretrained(theirs, saved / "adapter").eval()
        torch.testing.assert_close(theirs(TOKENS[None]).logits[0], ours, rtol=0, atol=1e-4)
        whole = AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32).eval()
        torch.testing.assert_close(whole(TOKENS[None]).logits[0], ours, rtol=0, atol=1e-4)
    config = json.loads((saved / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (4, 6.0, "LORA")


# From the recipe


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """A model directory and conversations beside it."""
    texts = [f"Add {n} to the sum of {n * 7}, please. It is {n * 8} now." for n in range(40)]
    tokenizer = Tokenizer.train(texts, 320)
    folder = tmp_path / "model"
    save_model(folder, Decoder(ModelConfig(**SIZES | {"vocab_size": tokenizer.vocab_size}), seed=1))
    tokenizer.save(folder)
    talks = [(User(f"Add {n} to the sum, please."), Assistant("", f"It is {n + 1} now.")) for n in range(24)]
    write_conversations(tmp_path / "talks.jsonl", talks)
    return folder


def test_fine_tuning_with_adapters_needs_the_recipe_alone_and_continues_to_the_same_bits(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ["run.threads=1", "run.keep_checkpoints=9", f"sft.model={start}", f"sft.data={tmp_path / 'talks.jsonl'}"]
    size = ["sft.batch_tokens=160", "sft.micro_tokens=80", "sft.sequence=80", "sft.save_every=2"]
    recipe = recipes.load(None, [*data, *size, "sft.lora.rank=4", "sft.lora.alpha=8"])
    straight = execute("sft", recipe, tmp_path / "straight").model
    log = Run.log

    def stopping(run: Run, stage: str, step: int, **values: float) -> None:
        log(run, stage, step, **values)
        run.stopping = step == 3

    with monkeypatch.context() as patch:
        patch.setattr(Run, "log", stopping)
        assert execute("sft", recipe, tmp_path / "stopped").stopped == "sft"
    resumed = execute("sft", recipe, tmp_path / "stopped").model
    assert straight is not None and resumed is not None and straight.name == resumed.name
    for name in ("model.safetensors", "optimiser.safetensors", "learner.json", "adapter/adapter_model.safetensors"):
        assert (straight / name).read_bytes() == (resumed / name).read_bytes(), name
    rows = read_metrics(tmp_path / "straight")
    assert rows[-1]["loss"] < rows[0]["loss"]
    before, after = (named_weights(load_model(folder)) for folder in (start, straight))
    moved = {name.rpartition(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert moved == adapted(adapt(load_model(start), LORA, 0)).keys()
