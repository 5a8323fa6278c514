"""What the audit unpacks: bombs and locked archives are refused with a reason, damage and noise hurt nobody."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import tarfile
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from etude.forge.leaks.bytecode import BadBytecode, code_of_source, read_bytecode
from etude.forge.leaks.git_and_sqlite import read_pack, read_rows
from etude.forge.leaks.unpack import UnpackedText, UnpackLimits, Unsearchable, unpack
from redteam.leaks.hiding_places import HIDING_PLACES, bytecode

SMALL = UnpackLimits(member=1 << 20, total=4 << 20, members=200, depth=4)


def zipped(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return made.getvalue()


def tarred(name: str, data: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return made.getvalue()


def matryoshka(depth: int) -> bytes:
    data = b"the innermost text of all " * 10
    for number in range(depth):
        data = zipped({f"{number}.zip": data})
    return data


# Made when a test asks for one: packing them takes two seconds, and every process of the suite reads this file.
BOMBS: dict[str, Callable[[], bytes]] = {
    "zip": lambda: zipped({"zeros.txt": bytes(2 << 20)}),
    "gz": lambda: gzip.compress(bytes(40 << 20)),
    "bz2": lambda: bz2.compress(bytes(40 << 20)),
    "xz": lambda: lzma.compress(bytes(40 << 20)),
    "zlib": lambda: zlib.compress(bytes(40 << 20)),
    "gz in a binary": lambda: b"\0\1\2\3" * 99 + gzip.compress(bytes(2 << 20)) + b"\0",
    "many members": lambda: zipped({f"{number}.txt": b"a" for number in range(300)}),
    "many megabytes": lambda: zipped({f"{number}.txt": bytes(900_000) for number in range(8)}),
    "deep": lambda: matryoshka(8),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_with_its_reason(name: str) -> None:
    bomb = BOMBS[name]()
    tracemalloc.start()
    started = time.process_time()
    found = list(unpack(bomb, "file.bin", SMALL))
    seconds, (_, peak) = time.process_time() - started, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    refused = [each for each in found if isinstance(each, Unsearchable)]
    assert refused and all(each.cause == "bomb" and each.why for each in refused)
    assert peak < 64 << 20
    assert seconds < 10


def test_a_bomb_in_the_workspace_is_a_finding(audit: Any) -> None:
    (leak,) = audit({"tests/data/bomb.zip": zipped({"zeros.txt": bytes(40 << 20)})})
    assert leak.kind == "unsearchable"
    assert "tests/data/bomb.zip!zeros.txt" in leak.place and "cannot be searched" in leak.why


def test_an_encrypted_member_is_named() -> None:
    data = bytearray(zipped({"secret.py": b"x = 1\n" * 50}))
    for mark in (b"PK\x03\x04", b"PK\x01\x02"):
        data[data.index(mark) + (6 if mark == b"PK\x03\x04" else 8)] |= 1
    found = list(unpack(bytes(data), "x.zip", SMALL))
    assert [(each.inner, each.cause) for each in found if isinstance(each, Unsearchable)] == [("!secret.py", "locked")]


@pytest.mark.parametrize("name", ["wheel", "sdist", "tar-bz2", "git-pack", "type-checker-database", "stale-bytecode"])
def test_damaged_files_never_fail(name: str, shop: Any) -> None:
    (data,) = HIDING_PLACES[name](shop["path"], shop["module"]).values()
    rng = random.Random(name)
    for _ in range(60):
        broken = bytearray(data)
        for _ in range(rng.randint(1, 12)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        cut = bytes(broken[: rng.randint(1, len(broken))])
        for found in unpack(cut, "file", SMALL):
            assert isinstance(found, UnpackedText | Unsearchable)


def test_noise_is_searched_and_hides_nothing() -> None:
    rng = random.Random(3)
    for size in (0, 1, 17, 300, 5000):
        assert all(isinstance(found, UnpackedText) for found in unpack(rng.randbytes(size), "noise", SMALL))


def test_bytecode_is_read_as_the_interpreter_has_it(shop: Any) -> None:
    compiled = compile(shop["module"], "ledger.py", "exec", dont_inherit=True)
    method = next(each for each in compiled.co_consts if hasattr(each, "co_name") and each.co_name == "Ledger")
    settle = next(each for each in method.co_consts if getattr(each, "co_name", "") == "settle")
    read = {code.qualname: code for code in read_bytecode(bytecode(shop["module"]))}
    assert set(read) == {"<module>", "Ledger", "Ledger.__init__", "Ledger.settle", "Ledger.total"}
    assert read["Ledger.settle"].words[: len(settle.co_names)] == settle.co_names
    assert {"balance", "transfers", "paid"} <= set(read["Ledger.settle"].words)
    assert {"self", "rounding"}.isdisjoint(read["Ledger.settle"].words)  # a stub shows the arguments as well
    assert code_of_source(shop["module"]) == list(read.values())


def test_bytecode_that_lies_about_lengths_is_refused() -> None:
    header = bytecode("x = 1")[:16]
    endless = header + b"\xe3" + bytes(20) + b"(" + b"\xff\xff\xff\x7f" + b"N" * 50
    nested = header + b"\xe3" + bytes(20) + b")\x01" * 5000
    looped = header + b"\xe3" + bytes(20) + b"r\x63\x00\x00\x00"
    for hostile in (endless, nested, looped):
        with pytest.raises(BadBytecode):
            read_bytecode(hostile)


def test_deltas_that_point_nowhere_end_the_pack(shop: Any) -> None:
    (data,) = HIDING_PLACES["git-pack"](shop["path"], shop["module"]).values()
    whole = dict(read_pack(data, 1 << 20))
    assert whole["blob 1"] == shop["module"].encode()
    assert dict(read_pack(data[:40], 1 << 20)) == {}


def test_rows_over_several_pages_are_joined(shop: Any) -> None:
    long = "\n".join(f"line {number} of a long text" for number in range(2000))
    (data,) = HIDING_PLACES["type-checker-database"](shop["path"], long).values()
    assert any(long.encode() in row for row in read_rows(data, 1 << 20))
