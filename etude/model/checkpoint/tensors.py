"""The tensors of a checkpoint directory: where each lies, and its values, whatever format they are stored in.

Opening reads the headers of the safetensors files and nothing else; a weight is read, and made float32 again where
it was stored in fewer bits, when it is asked for. So a model that is larger than half of the memory can be loaded.
Nothing is ever unpickled: a checkpoint from outside is data. Knows nothing of shapes of models.
"""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from etude.core.errors import EtudeError
from etude.model.checkpoint import quantise
from etude.model.checkpoint import quantised_formats as quantised

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
OPEN_FILES = 2  # mapped at a time, so that files do not fill the memory; a weight and its scale may lie in two
PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl")
PLAIN = {"F64", "F32", "F16", "BF16"}
FP8 = "F8_E4M3"
PACKED, SCALE, SHAPE, SCALE_INV = "weight_packed", "weight_scale", "weight_shape", "_scale_inv"


@dataclass(frozen=True)
class Quantisation:
    """What `quantization_config` says about the weights that are stored in fewer bits."""

    block: tuple[int, int] = quantised.FP8_BLOCK  # of fp8 weights
    group: int = 0  # columns that share a scale of packed INT4 weights; 0: there are none


@dataclass(frozen=True)
class TensorEntry:
    file: int
    dtype: str  # as safetensors spells it
    shape: tuple[int, ...]
    bytes: int


class Stored:
    """The tensors by name. A weight stored as INT4 goes by the name it would have unquantised; scales are no names."""

    def __init__(self, directory: Path, quantisation: Quantisation, device: str | torch.device = "cpu") -> None:
        self.directory, self.quantisation = directory, quantisation
        weight_map = _weight_map(directory)
        self._files, self._device = _weight_files(directory, weight_map), device
        self._open: OrderedDict[int, Any] = OrderedDict()  # files under our hands, the one used last at the end
        self._entries: dict[str, TensorEntry] = {}
        self._read_headers(weight_map)
        self._packed = {_base(name) + "weight" for name in self._entries if name.endswith(f".{PACKED}")}
        companions = {_base(name) + part for name in self._packed for part in (PACKED, SCALE, SHAPE)}
        companions |= {name + SCALE_INV for name, entry in self._entries.items() if entry.dtype == FP8}
        self.names = (set(self._entries) | self._packed) - companions

    def __enter__(self) -> Stored:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keep_open(0)

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self._entries.values())

    @property
    def files(self) -> int:
        return len(self._files)

    @property
    def quantised(self) -> bool:
        """Whether any weight is stored in fewer bits, with scales."""
        return bool(self._packed) or any(entry.dtype == FP8 for entry in self._entries.values())

    def dtypes(self) -> dict[str, int]:
        """How many bytes are stored in each dtype, the most first."""
        found: Counter[str] = Counter()
        for entry in self._entries.values():
            found[entry.dtype] += entry.bytes
        return dict(found.most_common())

    def describe(self) -> str:
        """The format in words."""
        if self._packed:
            return f"INT4, packed, in groups of {self.quantisation.group}"
        if self.quantised:
            return "FP8 in blocks of {} x {}".format(*self.quantisation.block)
        return " and ".join(self.dtypes())

    def place(self, name: str) -> tuple[int, str]:
        """Weights sorted by it are read file by file."""
        return self._entries[_base(name) + PACKED if name in self._packed else name].file, name

    def where(self, name: str) -> Path:
        return self._files[self.place(name)[0]]

    def shape(self, name: str) -> tuple[int, ...]:
        """That of the weight, however it is stored."""
        if name not in self._packed:
            return self._entries[name].shape
        return tuple(int(size) for size in self._companion(_base(name) + SHAPE, name, "its shape"))

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(self._files)

    def parts(self, name: str) -> dict[str, Tensor]:
        """The tensors that a weight is stored as, by their names and as they are."""
        parts = (PACKED, SCALE, SHAPE)
        names = [_base(name) + part for part in parts] if name in self._packed else [name]
        names += [name + SCALE_INV] if name + SCALE_INV in self._entries else []
        return {part: self._tensor(part) for part in names if part in self._entries}

    def quantise(self, name: str, weight: Tensor) -> dict[str, Tensor]:
        """Other values of a weight, as the tensors that it is stored as here."""
        stored = self.parts(name)
        if name in self._packed:
            base, group = _base(name), self.quantisation.group
            scale = quantise.int4_scale(weight, group, stored[base + SCALE].dtype)
            return stored | {base + SCALE: scale, base + PACKED: quantise.quantise_int4(weight, scale, group)}
        if name + SCALE_INV in stored:
            # rounded first: a reader multiplies by what is stored
            scale = quantise.fp8_scale(weight, self.quantisation.block).to(stored[name + SCALE_INV].dtype)
            made = quantise.quantise_fp8(weight, scale, self.quantisation.block)
            return {name: made, name + SCALE_INV: scale}
        return {name: weight.to(stored[name].dtype)}

    def check_shape(self, name: str, wanted: tuple[int, ...]) -> None:
        """Refuses a weight that has another shape; that of a packed one is known when it is read."""
        if name not in self._packed:
            self._compare(name, self._entries[name].shape, wanted)

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The weight, which has to have this shape."""
        if name in self._packed:
            return self._read_int4(name, shape)
        entry = self._entries[name]
        if entry.dtype not in PLAIN | {FP8}:
            raise EtudeError(f"{self.where(name)} holds {name!r} as {entry.dtype}, a format that is not read here")
        self._compare(name, entry.shape, shape)
        stored = self._tensor(name)
        if entry.dtype != FP8:
            return stored
        if len(shape) != 2:
            raise EtudeError(f"{self.where(name)} holds {name!r} in fp8, but only matrices can be stored in its blocks")
        block = self.quantisation.block
        wanted = tuple(quantised.blocks(size, step) for size, step in zip(shape, block, strict=True))
        scale = self._companion(name + SCALE_INV, name, "a scale for each block")
        self._compare(name + SCALE_INV, tuple(scale.shape), wanted)
        return quantised.dequantise_fp8(stored, scale, block)

    def _read_int4(self, name: str, shape: tuple[int, ...]) -> Tensor:
        base, group = _base(name), self.quantisation.group
        if not group:
            raise EtudeError(
                f"{self.where(name)} holds {base + PACKED!r}, but quantization_config in config.json does not say "
                "how large its groups are (format pack-quantized)"
            )
        said = tuple(int(size) for size in self._companion(base + SHAPE, name, "its shape"))
        self._compare(name, said, shape)
        if len(shape) != 2:
            raise EtudeError(f"{self.where(name)} holds {name!r} as packed INT4, but only matrices are packed")
        scale = self._companion(base + SCALE, name, "a scale for each group")
        packed, (rows, columns) = self._companion(base + PACKED, name, "its values"), shape
        if packed.dtype != torch.int32:
            raise EtudeError(f"{self.where(name)} holds {base + PACKED!r} as {packed.dtype}, not as 32-bit words")
        wanted = (rows, quantised.blocks(columns, quantised.INT4_IN_WORD))
        self._compare(base + PACKED, tuple(packed.shape), wanted)
        self._compare(base + SCALE, tuple(scale.shape), (rows, quantised.blocks(columns, group)))
        return quantised.dequantise_int4(packed, scale, columns, group)

    def _companion(self, name: str, of: str, what: str) -> Tensor:
        if name not in self._entries:
            raise EtudeError(f"{self.directory} lacks {name!r}: {of!r} is stored in fewer bits and needs {what}")
        return self._tensor(name)

    def _compare(self, name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
        if found != wanted:
            raise EtudeError(
                f"{self.directory} holds {name!r} with shape {found}, but its config.json asks for {wanted}; weights "
                "and configuration are of different models"
            )

    def _tensor(self, name: str) -> Tensor:
        file = self._entries[name].file
        if file not in self._open:
            self._keep_open(OPEN_FILES - 1)
            self._open[file] = _opened(self._files[file], self._device).__enter__()
        self._open.move_to_end(file)
        try:
            found: Tensor = self._open[file].get_tensor(name)
        except (SafetensorError, OSError, ValueError) as broken:
            raise EtudeError(f"{self._files[file]}: {name!r} cannot be read ({broken})") from None
        return found

    def _keep_open(self, count: int) -> None:
        while len(self._open) > count:
            self._open.popitem(last=False)[1].__exit__(None, None, None)

    def _read_headers(self, weight_map: Mapping[str, str]) -> None:
        for number, path in enumerate(self._files):
            with _opened(path, "cpu") as file:
                for name in file.keys():  # noqa: SIM118 (a safetensors file is no mapping)
                    if weight_map.get(name, path.name) != path.name:
                        continue  # a second copy: the index says which one counts
                    part = file.get_slice(name)
                    shape, dtype = tuple(part.get_shape()), str(part.get_dtype())
                    self._entries[name] = TensorEntry(number, dtype, shape, _bytes(shape, dtype))
        for name, file in weight_map.items():
            if name not in self._entries:
                raise EtudeError(f"{self.directory / file} lacks {name!r}, which {INDEX} says is in it")


def read_quantisation(hf: Mapping[str, Any], where: str) -> Quantisation:
    """From `quantization_config`, of the model or of its text part; formats that are not read here are refused."""
    inner = hf.get("text_config")
    said = hf.get("quantization_config") or (inner.get("quantization_config") if isinstance(inner, Mapping) else None)
    if not said:
        return Quantisation()
    if not isinstance(said, Mapping):
        raise EtudeError(f"quantization_config in {where} is not a table")
    method = said.get("quant_method")
    if method == "fp8":
        block = said.get("weight_block_size")
        if not (isinstance(block, list) and len(block) == 2 and all(type(size) is int and size > 0 for size in block)):
            raise EtudeError(
                f"quantization_config in {where} says fp8 with weight_block_size {block!r}; fp8 is read in blocks, "
                "such as [128, 128]"
            )
        return Quantisation(block=(block[0], block[1]))
    if method == "compressed-tensors" and said.get("format") == "pack-quantized":
        return Quantisation(group=_int4_group(said, where))
    raise EtudeError(
        f"quantization_config in {where} says {method!r}, format {said.get('format')!r}; what is read here is fp8 in "
        "blocks, and compressed-tensors with format pack-quantized"
    )


def _int4_group(said: Mapping[str, Any], where: str) -> int:
    groups = said.get("config_groups")
    groups = groups if isinstance(groups, Mapping) else {}
    sizes = []
    for name, members in groups.items():
        weights = members.get("weights") if isinstance(members, Mapping) else None
        weights = weights if isinstance(weights, Mapping) else {}
        for key, value in {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group"}.items():
            if weights.get(key) != value:
                raise EtudeError(
                    f"quantization_config in {where} says {key} = {weights.get(key)!r} for the weights of {name!r}; "
                    f"packed weights are read with {key} = {value!r}"
                )
        sizes.append(weights.get("group_size"))
    size = sizes[0] if sizes else None
    if type(size) is not int or size < 1 or sizes.count(size) < len(sizes):
        raise EtudeError(f"quantization_config in {where} does not say one group_size for its packed weights")
    return size


def _weight_files(directory: Path, weight_map: Mapping[str, str]) -> list[Path]:
    if weight_map:
        return [directory / name for name in sorted(set(weight_map.values()))]
    if (directory / WEIGHTS).exists():
        return [directory / WEIGHTS]
    pickles = sorted(path.name for pattern in PICKLES for path in directory.glob(pattern))
    if pickles:
        raise EtudeError(
            f"{directory} has no {WEIGHTS}, only {pickles[0]}: a pickle can run any code when it is opened, so it is "
            "never opened here; convert it to safetensors first"
        )
    raise EtudeError(f"{directory} has no {WEIGHTS}; is it a model checkpoint?")


def _weight_map(directory: Path) -> dict[str, str]:
    """Which file each tensor is in, by the index; empty without one."""
    index = directory / INDEX
    if not index.exists():
        return {}
    try:
        found = json.loads(index.read_text())["weight_map"]
        names = set(found.values())
    except (ValueError, KeyError, AttributeError, TypeError):
        raise EtudeError(f"{index} is damaged: it has no readable weight_map") from None
    if not names:
        raise EtudeError(f"{index} is damaged: its weight_map is empty")
    for name in names:
        # A name with a slash in it could lead out of the directory.
        if not isinstance(name, str) or Path(name).name != name:
            raise EtudeError(f"{index} names {name!r}, which is not a file of that directory")
        if not name.endswith(".safetensors"):
            raise EtudeError(f"{index} names {name!r}; only safetensors files are opened")
        if not (directory / name).is_file():
            tensor = next(tensor for tensor, file in found.items() if file == name)
            raise EtudeError(f"{directory} lacks {name}, a shard with {tensor!r} in it; download or copy it again")
    return dict(found)


def _opened(path: Path, device: str | torch.device) -> Any:
    try:
        return safe_open(str(path), framework="pt", device=str(device))
    except (SafetensorError, OSError) as broken:
        if name := _cut_off(path):
            raise EtudeError(f"{path} is cut short: it ends before {name!r} does; download or copy it again") from None
        raise EtudeError(f"{path} cannot be read ({broken}); the checkpoint is damaged or cut short") from None


def _cut_off(path: Path) -> str | None:
    """The first tensor that the file is too short for, if its header can still be read."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            # A damaged length could ask for any amount of memory.
            if length > path.stat().st_size:
                return None
            header = json.loads(file.read(length))
        there = path.stat().st_size - 8 - length
        ends = {name: facts["data_offsets"][1] for name, facts in header.items() if name != "__metadata__"}
        return min((name for name, end in ends.items() if end > there), key=ends.__getitem__, default=None)
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None


def _base(name: str) -> str:
    """What the names of a weight and of its parts begin with, up to the last dot."""
    return name[: name.rindex(".") + 1]


def _bytes(shape: tuple[int, ...], dtype: str) -> int:
    bits = int("".join(c for c in dtype.partition("_")[0] if c.isdigit()) or 8)  # BOOL has no number
    return math.prod(shape) * bits // 8
