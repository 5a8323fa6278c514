"""The decoder against `transformers`: the same weights, the same tokens, the same logits, both ways."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from etude.model.attention import PackedAttend
from etude.model.checkpoint.directory import load_model, save_model
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder


def config(**changes: object) -> ModelConfig:
    base = {
        "vocab_size": 97,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
    }
    return ModelConfig(**{**base, **changes})  # type: ignore[arg-type]


def shaken(decoder: Decoder, seed: int = 1) -> Decoder:
    """Norm weights away from one and logits of a useful size, so that nothing cancels by accident."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return decoder


def packed_logits(decoder: Decoder, sequences: list[torch.Tensor]) -> list[torch.Tensor]:
    lengths = [len(s) for s in sequences]
    positions = torch.cat([torch.arange(n) for n in lengths])
    hidden = decoder(torch.cat(sequences), positions, PackedAttend(lengths))
    return list(decoder.logits(hidden).split(lengths))


def random_sequences(lengths: list[int], vocab: int = 97, seed: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab, (n,), generator=generator) for n in lengths]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_transformers_opens_what_we_save_and_gives_the_same_logits(tmp_path: Path, tied: bool, bias: bool) -> None:
    ours = shaken(Decoder(config(tie_word_embeddings=tied, attention_bias=bias)))
    save_model(tmp_path, ours)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    sequences = random_sequences([70, 5, 33, 33, 1, 64])
    with torch.no_grad():
        for mine, tokens in zip(packed_logits(ours, sequences), sequences, strict=True):
            assert torch.allclose(mine, theirs(tokens[None]).logits[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("tied", [True, False])
def test_we_open_what_transformers_saves_and_give_the_same_logits(tmp_path: Path, tied: bool) -> None:
    torch.manual_seed(0)
    hf = Qwen3Config(
        **{
            k: v
            for k, v in config(tie_word_embeddings=tied).to_hf().items()
            if k not in ("architectures", "model_type", "qk_norm", "num_nextn_predict_layers")
        }
    )
    theirs = Qwen3ForCausalLM(hf).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    theirs.save_pretrained(tmp_path, max_shard_size="60KB")  # small shards: the index is read too
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    ours = load_model(tmp_path)
    sequences = random_sequences([40, 12])
    with torch.no_grad():
        for mine, tokens in zip(packed_logits(ours, sequences), sequences, strict=True):
            assert torch.allclose(mine, theirs(tokens[None]).logits[0], atol=1e-4, rtol=0)


def test_save_and_load_give_back_the_same_bits(tmp_path: Path) -> None:
    ours = shaken(Decoder(config(num_nextn_predict_layers=1)))
    save_model(tmp_path, ours)
    again = load_model(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), again.parameters(), strict=True))


def test_a_sequence_does_not_see_its_neighbours_in_the_pack() -> None:
    ours = shaken(Decoder(config()))
    sequences = random_sequences([9, 30, 17, 30, 2])
    alone = [packed_logits(ours, [s])[0] for s in sequences]
    together = packed_logits(ours, sequences)
    assert all(torch.allclose(a, b, atol=2e-5) for a, b in zip(alone, together, strict=True))


def test_gradients_equal_those_of_transformers(tmp_path: Path) -> None:
    ours = shaken(Decoder(config()))
    save_model(tmp_path, ours)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = random_sequences([50])[0]
    logits = packed_logits(ours, [tokens])[0]
    torch.nn.functional.cross_entropy(logits[:-1], tokens[1:]).backward()
    theirs(tokens[None], labels=tokens[None]).loss.backward()
    reference = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        assert torch.allclose(parameter.grad, reference[name].grad, atol=1e-5), name


def test_a_next_token_module_never_looks_past_the_token_it_is_given() -> None:
    ours = shaken(Decoder(config(num_nextn_predict_layers=1)))
    tokens = random_sequences([20])[0]
    changed = tokens.clone()
    changed[12:] = (changed[12:] + 1) % 97

    def drafted(ids: torch.Tensor) -> torch.Tensor:
        positions, attend = torch.arange(len(ids)), PackedAttend([len(ids)])
        return ours.mtp_hidden(1, ours(ids, positions, attend), ids.roll(-1), positions, attend)

    # position 10 is given token 11 and predicts token 12; position 11 is given the changed token 12
    first, second = drafted(tokens), drafted(changed)
    assert torch.allclose(first[:11], second[:11], atol=1e-6)
    assert not torch.allclose(first[11], second[11], atol=1e-3)


def test_a_seed_is_a_model() -> None:
    first, again, other = Decoder(config(), seed=1), Decoder(config(), seed=1), Decoder(config(), seed=2)
    assert torch.equal(first.lm_head.weight, again.lm_head.weight)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def test_late_positions_grow_the_rope_table() -> None:
    ours = shaken(Decoder(config()))
    tokens = random_sequences([4])[0]
    near = ours(tokens, torch.arange(4), PackedAttend([4]))
    far = ours(tokens, torch.arange(4) + 3000, PackedAttend([4]))
    assert torch.allclose(near, far, atol=1e-3)  # rotary attention depends on distances only


def test_a_backward_pass_leaves_nothing_for_the_collector() -> None:
    """What attention keeps for its gradient must go with the graph, not wait for a garbage collection."""
    ours, tokens = Decoder(config()), random_sequences([40, 40])
    packed_logits(ours, tokens)[0].sum().backward()
    gc.collect()
    gc.disable()
    try:
        before = _with_a_graph()  # of other tests: a compiler's, for one
        packed_logits(ours, tokens)[0].sum().backward()
        kept = _with_a_graph() - before
    finally:
        gc.enable()
    assert kept <= 0


def _with_a_graph() -> int:
    tensors = [x for x in gc.get_objects() if issubclass(type(x), torch.Tensor)]
    return sum(x.grad_fn is not None for x in tensors)
