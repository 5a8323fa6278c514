"""Outlines that read or draw their weights later give the very weights of a decoder that has them all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.scale.layouts import config
from etude.model.checkpoint.directory import load_model, named_weights, save_model
from etude.model.checkpoint.outlines import draw_outline, each_weight, load_outline
from etude.model.decoder import Decoder


def test_an_outline_draws_and_reads_what_the_whole_decoder_has(tmp_path: Path) -> None:
    shape = replace(config("moe"), num_hidden_layers=3, num_nextn_predict_layers=1)
    decoder = Decoder(shape, seed=4)
    for router in (block.mlp.gate for block in decoder.model.layers if block.sparse):
        router.e_score_correction_bias.normal_()
    save_model(tmp_path, decoder)
    drawn, read = (dict(each_weight(x)) for x in (draw_outline(shape, 4), load_outline(tmp_path)))
    expected = named_weights(load_model(tmp_path))
    assert list(read) == list(expected) == list(drawn)
    for name, weight in expected.items():
        assert torch.equal(read[name], weight), name
        assert name.endswith("e_score_correction_bias") or torch.equal(drawn[name], weight), name
