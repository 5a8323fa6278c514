import gzip
import io
import random
import struct
import tarfile
import tracemalloc
import zipfile

import pytest

from etude.core.errors import EtudeError
from etude.corpus.document import Document, Rejected
from etude.corpus.sources.table import open_sources

HOSTILE = [
    "../up.py",
    "/abs.py",
    "a/../../b.py",
    "a\\b.py",
    "C:x.py",
    "new\nline.py",
    "x/" * 600 + "long.py",
    "a/./b.py",
]


def read(path, **settings):
    found = list(open_sources([{"use": "archive", "path": str(path), **settings}])[0].documents())
    documents = {f.path: f for f in found if isinstance(f, Document)}
    return documents, [f.reason for f in found if isinstance(f, Rejected)]


def write_zip(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def write_tar(path, members):
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


WRITERS = {"a.zip": write_zip, "a.whl": write_zip, "a.tar": write_tar, "a.tar.gz": write_tar, "a.tgz": write_tar}


@pytest.mark.parametrize("name", WRITERS)
def test_members_are_read_with_their_licence(tmp_path, name):
    members = {"p/LICENSE": b"MIT License", "./p/a.py": b"a = 1\n", "p/b/c.py": b"c = 1\n", "other.py": b"o = 1\n"}
    members |= {"p/bin.py": b"\0", "p/readme.txt": b"text"}
    members |= {f"p/many/{n}.py": b"m = %d\n" % n for n in range(50)}
    documents, reasons = read(WRITERS[name](tmp_path / name, members), repositories="children")
    assert documents["p/b/c.py"].text == "c = 1\n" and documents["p/many/49.py"].text == "m = 49\n"
    assert documents["p/a.py"].license == "permissive" and documents["other.py"].license == "unknown"
    assert documents["p/a.py"].repo == f"{name}/p"
    assert len(documents) == 53 and reasons == ["binary"]


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz"])
def test_names_that_point_elsewhere_are_refused(tmp_path, name):
    members = dict.fromkeys(HOSTILE, b"x = 1\n") | {"good.py": b"g = 1\n"}
    documents, reasons = read(WRITERS[name](tmp_path / name, members))
    assert list(documents) == ["good.py"]
    assert reasons == ["unsafe name"] * len(HOSTILE)
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]


def test_nothing_but_plain_files_leaves_a_tar(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE):
            info = tarfile.TarInfo(f"kind{ord(kind)}.py")
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    documents, reasons = read(tmp_path / "a.tar")
    assert not documents and reasons == ["link or unreadable"] * 5


def test_nothing_but_plain_files_leaves_a_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        link = zipfile.ZipInfo("link.py")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("bz.py", b"x = 1", zipfile.ZIP_BZIP2)
    documents, reasons = read(tmp_path / "a.zip")
    assert not documents and reasons == ["link or unreadable"] * 2


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
def test_a_huge_member_is_skipped_without_being_held(tmp_path, name):
    path = WRITERS[name](tmp_path / name, {"bomb.py": b"\n" * 30_000_000, "good.py": b"g = 1\n"})
    assert path.stat().st_size < 100_000
    tracemalloc.start()
    documents, reasons = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert list(documents) == ["good.py"] and reasons == ["too big"]
    assert peak < 5_000_000


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
def test_an_archive_that_inflates_past_its_limit_is_refused(tmp_path, name):
    path = WRITERS[name](tmp_path / name, {f"{n}.py": b"\n" * 900_000 for n in range(20)})
    with pytest.raises(EtudeError, match="unpacks to more than 5000000 bytes"):
        read(path, max_total_bytes=5_000_000)


def test_a_bomb_hidden_in_a_member_nobody_wants_is_refused(tmp_path):
    path = write_tar(tmp_path / "a.tar.gz", {"zeros.bin": b"\0" * 20_000_000, "good.py": b"g = 1\n"})
    with pytest.raises(EtudeError, match="unpacks to more than"):
        read(path, max_total_bytes=5_000_000)


def test_a_member_that_lies_about_its_size_gives_no_text(tmp_path):
    path = write_zip(tmp_path / "a.zip", {"bomb.py": b"\n" * 5_000_000})
    raw = path.read_bytes().replace(struct.pack("<L", 5_000_000), struct.pack("<L", 10))
    path.write_bytes(raw)
    documents, reasons = read(path)
    assert not documents and reasons == ["damaged"]


def test_a_list_of_contents_that_would_fill_the_memory_is_refused(tmp_path):
    path = write_zip(tmp_path / "a.zip", {"a.py": b"a = 1"})
    raw = bytearray(path.read_bytes())
    raw[-10:-6] = struct.pack("<L", 100_000_000)
    path.write_bytes(raw)
    with pytest.raises(EtudeError, match="too many members"):
        read(path)


def test_a_header_that_asks_for_gigabytes_is_refused(tmp_path):
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, 7 * 2**30
    with gzip.open(tmp_path / "a.tar.gz", "wb") as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT) + b"\0" * 2048)
    with pytest.raises(EtudeError, match="damaged"):
        read(tmp_path / "a.tar.gz", max_total_bytes=2**40)


def test_a_chain_of_long_names_does_not_break_the_reader(tmp_path):
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 5
    (tmp_path / "a.tar").write_bytes((info.tobuf(tarfile.GNU_FORMAT) + b"a.py\0".ljust(512, b"\0")) * 5000)
    with pytest.raises(EtudeError, match="damaged"):
        read(tmp_path / "a.tar")


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz"])
def test_a_damaged_archive_gives_documents_or_one_sentence(tmp_path, name):
    whole = WRITERS[name](tmp_path / name, {f"p/{n}.py": b"value = %d\n" % n for n in range(8)}).read_bytes()
    rng = random.Random(0)
    for _ in range(150):
        raw = bytearray(whole)
        for _ in range(rng.randrange(1, 8)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        (tmp_path / name).write_bytes(raw[: rng.choice([len(raw), rng.randrange(len(raw))])])
        try:
            documents, _ = read(tmp_path / name)
        except EtudeError as error:
            assert "\n" not in str(error)
        else:
            assert len(documents) <= 8


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "a.rar").write_bytes(b"Rar!")
    with pytest.raises(EtudeError, match=r"must end in one of .zip"):
        read(tmp_path / "a.rar")
    (tmp_path / "a.zip").write_bytes(b"")
    with pytest.raises(EtudeError, match="damaged or no archive"):
        read(tmp_path / "a.zip")
