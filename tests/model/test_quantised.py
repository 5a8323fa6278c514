"""Quantised weights against a loop over single entries, and against bytes that compressed-tensors wrote."""

from __future__ import annotations

import math
import struct

import pytest
import torch

from etude.model.checkpoint import quantise
from etude.model.checkpoint import quantised_formats as quantised

# A matrix of 2 x 64 with groups of 32, written by compressed-tensors 0.20.0: PackedQuantizationCompressor.compress of
# (torch.randn(2, 64, generator=seed 11) * 0.05).bfloat16() with these scales gave the words, .decompress the values.
WORDS = (
    "b7874878776f9b85c94458aca7aa5db5978369866a997fb66849a97a8b8596c9"
    "a497558e35c8ba838a6717b9888bbf8379b6355b9ec4d69a6a19049829a6a8b5"
)
SCALES = "9e3ca33c8b3ca13c"
VALUES = (
    "9ebc6d3d9ebc000000009ebd00009ebc9ebc9ebc0a3e1ebd6d3d9e3c6dbd00009e3c9e3d9ebd9ebd00006dbd9e3d1e3d9ebc1e3d1e3d1e3d"
    "c63d6dbd6dbd6d3da3bca33cccbd0000a33c23bd23bd0000233d23bda33ca33c0f3ea3bc23bd743d000023bda33ca3bda33c233d233da3bc"
    "743d000074bd000023bda33ca33ca33d8bbd0b3d8bbc8b3c50bd50bdd03d000050bdaebd00008b3d0b3d503daebd00000b3d00008bbc0bbd"
    "8bbcf3bd8b3c503d00000000503d0000f33d503daebd0000a13ca1bc21bd723d72bdc9bd723d72bdf23da13ca1bda13d21bdc93d213da13c"
    "213d21bda13c0dbea1bd21be0000a13ca13cf2bd21bd213d0000213d72bd723d"
)

SHAPES = [(1, 1), (128, 128), (129, 127), (5, 260), (200, 300), (256, 384)]


def fp8_of_byte(byte: int) -> float:
    """e4m3fn by its definition: sign, four bits of exponent with bias 7, three of fraction; no infinities."""
    sign = -1.0 if byte & 128 else 1.0
    exponent, fraction = byte >> 3 & 15, byte & 7
    if exponent == 15 and fraction == 7:
        return math.nan
    return sign * (fraction / 8 * 2.0**-6 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7))


def single(value: float) -> float:
    """Rounded to float32, by the C library and not by torch."""
    return struct.unpack("f", struct.pack("f", value))[0]


def random_fp8(shape: tuple[int, int], seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    numbers[(numbers & 127) == 127] = 1  # not a number
    return numbers.view(torch.float8_e4m3fn)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fp8_blocks_equal_a_loop_over_entries_bit_for_bit(shape: tuple[int, int]) -> None:
    stored = random_fp8(shape)
    rows, columns = (-(-size // 128) for size in shape)
    scale = torch.rand(rows, columns, generator=torch.Generator().manual_seed(1)) * 1e-2 + 1e-4
    values = quantised.dequantise_fp8(stored, scale)
    table, bytes_, factors = [fp8_of_byte(b) for b in range(256)], stored.view(torch.uint8).tolist(), scale.tolist()
    loop = [
        [single(table[bytes_[i][j]] * factors[i // 128][j // 128]) for j in range(shape[1])] for i in range(shape[0])
    ]
    assert values.dtype == torch.float32
    assert torch.equal(values, torch.tensor(loop))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fp8_quantised_again_gives_the_stored_bytes(shape: tuple[int, int]) -> None:
    stored = random_fp8(shape)
    rows, columns = (-(-size // 128) for size in shape)
    for seed, size in enumerate((1e-4, 1.0, 2.0**-9)):
        scale = torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed)) * size + size / 50
        values = quantised.dequantise_fp8(stored, scale)
        assert torch.equal(quantise.quantise_fp8(values, scale).view(torch.uint8), stored.view(torch.uint8))
        if size == 1.0:  # also after a rounding to bfloat16, which keeps more bits than fp8 has
            again = quantise.quantise_fp8(values.bfloat16(), scale)
            assert torch.equal(again.view(torch.uint8), stored.view(torch.uint8))


def test_fp8_scales_use_the_whole_range_and_forgive_a_block_of_zeros() -> None:
    weight = torch.randn(200, 300, generator=torch.Generator().manual_seed(0))
    weight[:128, 128:256] = 0
    scale = quantise.fp8_scale(weight)
    assert scale.shape == (2, 3)
    stored = quantise.quantise_fp8(weight, scale)
    assert float(stored[128:, 256:].float().abs().max()) == 448
    assert not stored[:128, 128:256].float().any()
    error = (quantised.dequantise_fp8(stored, scale) - weight).abs()
    step = torch.kron(scale, torch.ones(128, 128))[:200, :300] * 2**-10  # half of the smallest number's distance to 0
    assert bool((error <= weight.abs() / 16 + step).all())


INT4_SHAPES = [(1, 1, 32), (3, 32, 32), (5, 64, 32), (4, 33, 32), (2, 100, 16), (7, 8, 8), (3, 61, 128)]


@pytest.mark.parametrize(("rows", "columns", "group"), INT4_SHAPES)
def test_int4_equals_a_loop_over_entries_bit_for_bit(rows: int, columns: int, group: int) -> None:
    generator = torch.Generator().manual_seed(0)
    words = -(-columns // 8)
    packed = torch.randint(-(2**31), 2**31, (rows, words), generator=generator).to(torch.int32)
    scale = (torch.rand(rows, -(-columns // group), generator=generator) * 0.1 + 1e-3).bfloat16()
    values = quantised.dequantise_int4(packed, scale, columns, group)
    numbers, factors = packed.tolist(), scale.tolist()
    loop = []
    for i in range(rows):
        nibbles = [(numbers[i][j // 8] % 2**32 >> 4 * (j % 8) & 15) - 8 for j in range(columns)]
        loop.append([single(nibble * factors[i][j // group]) for j, nibble in enumerate(nibbles)])
    assert values.dtype == torch.float32
    assert torch.equal(values, torch.tensor(loop))


@pytest.mark.parametrize(("rows", "columns", "group"), INT4_SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_int4_quantised_again_gives_the_packed_words(rows: int, columns: int, group: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    numbers = torch.randint(-8, 8, (rows, columns), generator=generator)
    packed = quantise.pack_int4(numbers)
    assert torch.equal(quantised.unpack_int4(packed, columns), numbers.to(torch.int8))
    scale = (torch.rand(rows, -(-columns // group), generator=generator) * 0.1 + 1e-3).bfloat16()
    values = quantised.dequantise_int4(packed, scale, columns, group).to(dtype)
    assert torch.equal(quantise.quantise_int4(values, scale, group), packed)


def test_int4_scales_are_those_of_compressed_tensors() -> None:
    weight = torch.randn(6, 70, generator=torch.Generator().manual_seed(0))
    weight[2, 32:64] = 0
    scale = quantise.int4_scale(weight, 32)
    assert scale.shape == (6, 3)
    assert scale.dtype == torch.bfloat16
    # Its rule: the largest entry over half of the range of 15; where that is zero, the epsilon of the dtype.
    whole = torch.nn.functional.pad(weight, (0, 26)).view(6, 3, 32)
    wanted = (torch.maximum(whole.amax(2), -whole.amin(2)) / (15 / 2)).bfloat16()
    wanted[2, 1] = torch.finfo(torch.bfloat16).eps
    assert torch.equal(scale, wanted)
    numbers = quantised.unpack_int4(quantise.quantise_int4(weight, scale, 32), 70)
    assert int(numbers.max()) == 7 and int(numbers.min()) == -8
    assert not numbers[2, 32:64].any()


def test_int4_reads_and_writes_what_compressed_tensors_wrote() -> None:
    def tensor(text: str, dtype: torch.dtype) -> torch.Tensor:
        return torch.frombuffer(bytearray.fromhex(text), dtype=dtype).view(2, -1)

    packed, scale = tensor(WORDS, torch.int32), tensor(SCALES, torch.bfloat16)
    values = quantised.dequantise_int4(packed, scale, 64, 32).bfloat16()
    assert torch.equal(values.view(torch.int16), tensor(VALUES, torch.int16))
    assert torch.equal(quantise.quantise_int4(values, scale, 32), packed)
