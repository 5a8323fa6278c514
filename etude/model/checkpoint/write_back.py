"""A trained model in the format of the checkpoint that it was trained from: the same files, names and bits.

A weight that training left as it was is copied byte for byte. Another one is quantised as the reference quantisers do,
with new scales. What training does not know (a vision tower) is copied; what it added (prediction heads) goes
into a file of its own, unquantised. One file is in memory at a time.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from etude.core.errors import EtudeError
from etude.core.progress import track
from etude.model.checkpoint.directory import CONFIG, STALE, open_stored, read_config, read_json, text_names
from etude.model.checkpoint.tensors import INDEX, Stored

ADDED = "model-added.safetensors"
BESIDE = (".json", ".txt", ".jinja", ".model", ".md")  # tokenizer, chat template, generation settings


def write_back(trained: Path, original: Path, out: Path) -> dict[str, int]:
    """Writes `trained` to the new folder `out` as `original` is stored; how many weights were copied, and changed."""
    if out.exists() and any(out.iterdir()):
        raise EtudeError(f"{out} is not empty: choose a new folder")
    out.mkdir(parents=True, exist_ok=True)
    counts = {"copied": 0, "changed": 0, "added": 0}
    weight_map: dict[str, str] = {}
    with open_stored(trained) as new, open_stored(original) as old:
        sources = {stored: name for name, stored in text_names(read_json(original), old).items()}
        known = text_names(read_json(trained), new)
        by_file: dict[Path, list[str]] = {path: [] for path in old.paths}
        for name in sorted(old.names):
            by_file[old.where(name)].append(name)
        with track("writing weights", len(old.names), "tensors") as bar:
            for path, names in by_file.items():
                part: dict[str, Tensor] = {}
                for name in names:
                    found = _weight(new, known, sources.get(name, ""), old, name)
                    counts["copied" if found is None else "changed"] += 1
                    part |= old.parts(name) if found is None else old.quantise(name, found)
                    bar.advance()
                _save(part, out / path.name, weight_map)
        added = {name: new.parts(stored)[stored] for name, stored in known.items() if name not in sources.values()}
        if added:
            counts["added"] = len(added)
            _save({name: tensor.to(_plain(old)) for name, tensor in added.items()}, out / ADDED, weight_map)
    if len(by_file) > 1 or added:
        size = sum((out / file).stat().st_size for file in set(weight_map.values()))
        (out / INDEX).write_text(
            json.dumps({"metadata": {"total_size": size}, "weight_map": weight_map}, indent=2) + "\n"
        )
    (out / CONFIG).write_text(json.dumps(_config(trained, original), indent=2) + "\n")
    for path in _beside(original):
        shutil.copyfile(path, out / path.name)
    return counts


def _weight(new: Stored, known: dict[str, str], name: str, old: Stored, stored: str) -> Tensor | None:
    """The trained values of a weight; None where they are those that are stored."""
    if name not in known:
        return None
    shape = old.shape(stored)
    new.check_shape(known[name], shape)
    found, before = new.read(known[name], shape), old.read(stored, shape)
    # Trained masters are float32; what came as bfloat16 equals it exactly.
    return None if torch.equal(found.float(), before.float()) else found


def _plain(old: Stored) -> torch.dtype:
    """The dtype of the weights that are not quantised."""
    return torch.float32 if set(old.dtypes()) & {"F32"} and "BF16" not in old.dtypes() else torch.bfloat16


def _save(part: dict[str, Tensor], path: Path, weight_map: dict[str, str]) -> None:
    try:
        save_file({name: x.contiguous() for name, x in part.items()}, str(path), metadata={"format": "pt"})
    except OSError as error:
        raise EtudeError(f"cannot write {path}: {error}; make room and run it again") from None
    weight_map |= dict.fromkeys(part, path.name)


def _config(trained: Path, original: Path) -> dict[str, Any]:
    """That of the original, with what training changed (positions, prediction heads)."""
    hf = read_json(original)
    before, after = read_config(original).to_hf(), read_config(trained).to_hf()
    text = hf["text_config"] if isinstance(hf.get("text_config"), dict) else hf
    text |= {key: value for key, value in after.items() if before.get(key) != value and key != "dtype"}
    return hf


def _beside(original: Path) -> Iterator[Path]:
    for path in sorted(original.iterdir()):
        if path.is_file() and path.suffix in BESIDE and path.name != CONFIG and not STALE.fullmatch(path.name):
            yield path
