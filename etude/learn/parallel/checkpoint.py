"""Checkpoints of several ranks: the files of learn/state.py, written by all ranks and read by any number of them.

    config.json, model-*-of-*.safetensors    the model, as any Hugging Face reader knows it; each rank writes some
    optimiser-*-of-*.safetensors             the rows of each tensor that a rank held (learn/tensor_parts.py)
    adapter/, learner.json                   as of one rank

No rank holds the whole model: a weight is put together from all ranks, and one of them keeps it for its file. Ranks of
further replicas write nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from etude.core.errors import EtudeError
from etude.learn import lora, state
from etude.learn.tensor_parts import Part, StoredParts, write_parts
from etude.model.checkpoint.directory import (
    BIAS,
    CONFIG,
    EMBEDDING,
    HEAD,
    check_weights,
    copies,
    named_weights,
    on_disk,
    open_stored,
    outline,
    read_config,
    read_config_and_names,
)
from etude.model.checkpoint.tensors import INDEX, WEIGHTS
from etude.model.lora_linear import ADAPTER, adapted

if TYPE_CHECKING:
    from etude.learn.parallel.rank_learner import RankLearner


def wholes(learner: RankLearner) -> Iterator[tuple[str, Tensor]]:
    """The live weights as they are on disk and on boards, adapters added; on every rank, one parameter at a time."""
    shards, modules, config = learner.shards["live"], adapted(learner.decoder), learner.config
    for name, held in shards.items():
        if name.endswith(ADAPTER):
            continue
        whole, module = held.whole(held.local), modules.get(name.removesuffix(".weight"))
        if module is not None:
            down, up = (shards[name.removesuffix(".weight") + end] for end in ADAPTER)
            whole = torch.addmm(whole, up.whole(up.local), down.whole(down.local), alpha=module.scale)
        yield from on_disk(name, whole, config).items()
    for name, bias in learner.decoder.named_buffers():
        if name.endswith(BIAS):
            yield from on_disk(name, bias, config).items()


def save(learner: RankLearner, directory: Path) -> None:
    """Together with all other ranks, into a directory that all of them see."""
    write = _writing(learner, directory)
    _together(learner, write)


def begin_save(learner: RankLearner, directory: Path) -> None:
    """As `save`, but each rank writes its files beside the next verbs."""
    learner.saving.start(_writing(learner, directory, copy=True), directory)


def finish_save(learner: RankLearner) -> None:
    """When every rank has written its files; the error of one is an error of all."""
    _together(learner, learner.saving.finish)


def _writing(learner: RankLearner, directory: Path, copy: bool = False) -> Callable[[], None]:
    """Puts weights together with all other ranks; what then writes this rank's files."""
    owners = _owners(learner)
    mine: dict[str, Tensor] = {}
    twice = {name: [copy for copy, of in copies(learner.config).items() if of == name] for name in (EMBEDDING, HEAD)}
    for name, tensor in wholes(learner):
        if owners[name] == learner.host.rank:
            mine |= {key: tensor.detach().float().cpu().clone() for key in (name, *twice.get(name, ()))}
    adapters = {name: held.whole(held.local) for name, held in learner.shards["live"].items() if name.endswith(ADAPTER)}
    parts, counted = _parts(learner), (learner.steps, learner.skipped, learner.base)
    if copy:
        parts = {name: part._replace(rows=state.copied(part.rows)) for name, part in parts.items()}
        # One that no other rank shares is the live one, not put together from parts.
        adapters = {name: state.copied(adapter) for name, adapter in adapters.items()}
    return lambda: _write(learner, directory, owners, mine, adapters, parts, counted)


def _write(
    learner: RankLearner,
    directory: Path,
    owners: dict[str, int],
    mine: dict[str, Tensor],
    adapters: dict[str, Tensor],
    parts: dict[str, Part],
    counted: tuple[int, int, str | None],
) -> None:
    writers = sorted(set(owners.values()))
    files = {
        rank: f"model-{number:05}-of-{len(writers):05}.safetensors" if len(writers) > 1 else WEIGHTS
        for number, rank in enumerate(writers, start=1)
    }
    rank, sharing = learner.host.rank, learner.spec.layout.sharing
    if mine:
        save_file(mine, directory / files[rank], metadata={"format": "pt"})
    if rank < sharing:
        write_parts(directory, state.TENSORS, parts, rank, sharing)
    if rank:
        return
    config = learner.config.to_hf() | {"dtype": "float32"}
    (directory / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    if len(writers) > 1:
        places = owners | {copy: owners[name] for copy, name in copies(learner.config).items()}
        size = 4 * sum(tensor.numel() for tensor in _outlined(learner).values())
        index = {"metadata": {"total_size": size}, "weight_map": {name: files[r] for name, r in places.items()}}
        (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    lora.save(directory, learner.decoder, adapters)
    state.write_counters(directory, *counted)


def _owners(learner: RankLearner) -> dict[str, int]:
    """The rank that writes each tensor: of the first replica, the one that has the least to write so far."""
    load = [0] * learner.spec.layout.sharing
    owners = {}
    for name, tensor in _outlined(learner).items():
        owners[name] = load.index(min(load))
        load[owners[name]] += tensor.numel()
    return owners


def _outlined(learner: RankLearner) -> dict[str, Tensor]:
    return named_weights(outline(learner.config))


def _parts(learner: RankLearner) -> dict[str, Part]:
    """This rank's rows of what the optimiser keeps and of the averages; what all ranks have is rank 0's to write."""
    parts = {}
    for name, rows in _tensors(learner).items():
        held = learner.shards["live"].get(name.partition(".")[2])
        if held is not None and rows.ndim:
            parts[name] = Part(rows, held.shape, held.start)
        elif learner.host.rank == 0:
            parts[name] = Part(rows, tuple(rows.shape))
    return parts


def _tensors(learner: RankLearner) -> dict[str, Tensor]:
    averages = {f"ema.{name}": x for name, x, _ in learner.averaged()} if "ema" in learner.weights else {}
    return learner.optimiser.state() | averages


@torch.no_grad()
def restore(learner: RankLearner, directory: Path) -> None:
    """Continues exactly where `save` was called, by any number of ranks or by one."""
    _together(learner, lambda: _read(learner, directory))


def _read(learner: RankLearner, directory: Path) -> None:
    steps, skipped, base = state.read_counters(directory)
    if base != learner.base:
        raise EtudeError(
            f"{directory} holds adapters to other weights than those of the model that this stage starts from, or none;"
            " put that model back, or start over with --fresh"
        )
    if read_config(directory) != learner.config:
        raise EtudeError(f"{directory} holds a model of another shape than this run's; resume it with its own recipe")
    tensors = _tensors(learner)
    whole = {name: held.shape for name, held in learner.shards["live"].items()}
    wanted = {name: whole.get(name.partition(".")[2], ()) if x.ndim else () for name, x in tensors.items()}
    wanted |= {name: tuple(x.shape) for name, x in tensors.items() if name.partition(".")[2] not in whole}
    with StoredParts(directory, state.TENSORS) as stored:
        unsaved = state.check_optimiser(stored, wanted, learner.decoder)
        for name, rows in tensors.items():
            held = learner.shards["live"].get(name.partition(".")[2])
            if name.removeprefix("ema.") in unsaved:
                continue
            rows.copy_(
                stored.read(name, held.start, held.stop) if held is not None and rows.ndim else stored.read(name)
            )
    _read_weights(learner, directory)
    if unsaved:
        for name, average, live in learner.averaged():
            if name in unsaved:
                average.copy_(live)
    learner.steps, learner.skipped = steps, skipped


def _read_weights(learner: RankLearner, directory: Path) -> None:
    """What was trained: adapters, or the whole model, one parameter at a time."""
    shards = learner.shards["live"]
    if adapted(learner.decoder):
        for name, tensor in lora.read(directory, learner.decoder).items():
            shards[name].local.copy_(tensor[shards[name].start : shards[name].stop])
        return
    with open_stored(directory) as stored:
        config, names = read_config_and_names(directory, stored)
        check_weights(directory, config, names, _outlined(learner), stored)
        for name, held in shards.items():
            whole = torch.empty(held.shape)
            for key, part in on_disk(name, whole, learner.config).items():
                part.copy_(stored.read(names[key], tuple(part.shape)))
            held.local.copy_(whole[held.start : held.stop])
        for name, bias in learner.decoder.named_buffers():
            if name.endswith(BIAS):
                for key, part in on_disk(name, bias, learner.config).items():
                    part.copy_(stored.read(names[key], tuple(part.shape)))


def _together(learner: RankLearner, work: Callable[[], None]) -> None:
    """Work of each rank by itself; where it fails on one, rank 0 says so, and no rank waits for another."""
    said = ""
    try:
        work()
    except (EtudeError, OSError, SafetensorError) as failed:
        said = str(failed)
    failures = [
        f"{text.decode()} (rank {rank})" for rank, text in enumerate(learner.host.gather(said.encode())) if text
    ]
    if failures:
        raise EtudeError(failures[0])
    if said:
        raise EtudeError(said)
