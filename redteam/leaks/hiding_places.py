"""Hiding places: copies of a module put where answers are really left lying around, to try the audit and the scrub.

Each place is a function from a module's path and source to the files that hide it. Paths that begin with a slash
belong to the environment, all others to the workspace. Everything is made here, with nothing but the standard
library, and nothing is run.
"""

from __future__ import annotations

import ast
import base64
import bz2
import gzip
import html
import importlib.util
import io
import json
import lzma
import marshal
import sqlite3
import struct
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from hashlib import sha1
from pathlib import Path

Files = dict[str, bytes]
Hide = Callable[[str, str], Files]


def _stem(path: str) -> str:
    return Path(path).stem


def loose_object(path: str, source: str) -> Files:
    """An object of git that no branch names any more."""
    data = f"blob {len(source.encode())}\0{source}".encode()
    name = sha1(data, usedforsecurity=False).hexdigest()
    return {f".git/objects/{name[:2]}/{name[2:]}": zlib.compress(data)}


def pack(path: str, source: str) -> Files:
    """A pack of git, in which the old file is a delta against the new one."""
    base = b"".join(source.encode().splitlines(keepends=True)[:2])
    delta = _number(len(base)) + _number(len(source.encode())) + _inserted(source.encode())
    first = _object(3, base)
    second = _header(6, len(delta)) + _back(len(first)) + zlib.compress(delta)
    body = b"PACK" + struct.pack(">II", 2, 2) + first + second
    return {".git/objects/pack/pack-1.pack": body + sha1(body, usedforsecurity=False).digest()}


def _object(kind: int, data: bytes) -> bytes:
    return _header(kind, len(data)) + zlib.compress(data)


def _header(kind: int, size: int) -> bytes:
    first, size = kind << 4 | size & 15, size >> 4
    made = bytearray()
    while size:
        made.append(first | 0x80)
        first, size = size & 0x7F, size >> 7
    made.append(first)
    return bytes(made)


def _back(offset: int) -> bytes:
    """How far back a delta's base lies, as packs spell it."""
    made = [offset & 0x7F]
    offset >>= 7
    while offset:
        offset -= 1
        made.append(0x80 | offset & 0x7F)
        offset >>= 7
    return bytes(reversed(made))


def _number(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _inserted(data: bytes) -> bytes:
    return b"".join(bytes([len(data[at : at + 127])]) + data[at : at + 127] for at in range(0, len(data), 127))


def bytecode(source: str, path: str = "module.py", optimize: int = 0) -> bytes:
    """What the interpreter would leave in its cache."""
    code = compile(source, path, "exec", dont_inherit=True, optimize=optimize)
    return importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)


def stale_bytecode(path: str, source: str) -> Files:
    folder = str(Path(path).parent)
    return {f"{folder}/__pycache__/{_stem(path)}.{sys.implementation.cache_tag}.pyc": bytecode(source, path)}


def renamed_bytecode(path: str, source: str) -> Files:
    """Bytecode without docstrings under a name that says nothing."""
    return {"data/blob.bin": bytecode(source, "x", optimize=2)}


def database(path: str, source: str) -> Files:
    """A type checker's cache: a database with the module as one long row over several pages."""
    return {".mypy_cache/3.11/cache.db": _database(source, drop=False)}


def dropped_row(path: str, source: str) -> Files:
    """A database from which the row was deleted, on a page that was not overwritten."""
    return {".cache/state.db": _database(source, drop=True)}


def _database(source: str, drop: bool) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cache.db"
        link = sqlite3.connect(file)
        link.execute("pragma secure_delete = off")
        link.execute("create table files (path text, mtime real, data text)")
        link.execute("insert into files values ('pkg/mod.data.json', 1.5, ?)", (source,))
        if drop:
            link.commit()
            link.execute("delete from files")
        link.commit()
        link.close()
        return file.read_bytes()


def json_cache(path: str, source: str) -> Files:
    """A cache of a test runner or a linter: the text as one string of JSON."""
    return {".pytest_cache/v/cache/source": json.dumps({"files": {path: source}}).encode()}


def build_folder(path: str, source: str) -> Files:
    return {f"build/lib/{path.removeprefix('src/')}": source.encode()}


def wheel(path: str, source: str) -> Files:
    return {"dist/package-1.0-py3-none-any.whl": _zip({path.removeprefix("src/"): source.encode()})}


def egg(path: str, source: str) -> Files:
    """An old installer's archive, which holds bytecode and no source."""
    return {".eggs/package-1.0-py3.egg": _zip({f"{path}c": bytecode(source, path)})}


def sdist(path: str, source: str) -> Files:
    return {"dist/package-1.0.tar.gz": gzip.compress(_tar({f"package-1.0/{path}": source.encode()}), mtime=0)}


def nested_archives(path: str, source: str) -> Files:
    """A zip in a tar.xz in a zip, with a name that says nothing."""
    inner = lzma.compress(_tar({"old.bin": _zip({"m": source.encode()})}))
    return {"assets/backup.dat": _zip({"a/b.xyz": inner})}


def bzip(path: str, source: str) -> Files:
    return {"old/sources.tar.bz2": bz2.compress(_tar({path: source.encode()}))}


def zipapp(path: str, source: str) -> Files:
    """A program that is a zip behind its first line."""
    return {"bin/tool": b"#!/usr/bin/env python3\n" + _zip({"__main__.py": b"", path: source.encode()})}


def http_cache(path: str, source: str) -> Files:
    """A package manager's download cache: a compressed body in the middle of a binary file."""
    head = b"cc=4,\x84\xa8response\x8b\xa4body\xc5" + bytes(range(256))
    return {
        "/home/agent/.cache/pip/http-v2/a/b/c/0123": head + gzip.compress(source.encode(), mtime=0) + b"\xa7headers"
    }


def site_packages(path: str, source: str) -> Files:
    return {f"/opt/env/lib/python3.11/site-packages/{path.removeprefix('src/')}": source.encode()}


def installed_wheel(path: str, source: str) -> Files:
    """An installer's own bundled wheel, as those of `ensurepip`."""
    return {
        "/opt/env/lib/python3.11/ensurepip/_bundled/pip-1-py3-none-any.whl": _zip(
            {f"pip/_vendor/{path}": source.encode()}
        )
    }


def vendored(path: str, source: str) -> Files:
    """A copy that was laid out anew: other quotes and indentation, every comment gone, new ones added."""
    lines = ast.unparse(ast.parse(source)).replace("    ", "\t").splitlines()
    return {f"src/_vendor/{_stem(path)}_compat.py": "\n".join(f"{line}  # copied" for line in lines).encode()}


def notebook(path: str, source: str) -> Files:
    cell = {"cell_type": "code", "source": source.splitlines(keepends=True), "outputs": [], "metadata": {}}
    return {"examples/tour.ipynb": json.dumps({"cells": [cell], "nbformat": 4}, indent=1).encode()}


def guide(path: str, source: str) -> Files:
    """Documentation that shows the code as typed into the interpreter."""
    lines = [f"    {'>>>' if not line.startswith(' ') else '...'} {line}" for line in source.splitlines()]
    return {"docs/internals.rst": ("How it works\n============\n\n" + "\n".join(lines)).encode()}


def highlighted(path: str, source: str) -> Files:
    """A page of generated documentation: every word in a tag of its own."""
    words = "".join(f'<span class="n">{html.escape(word)}</span>' if word.strip() else word for word in _split(source))
    return {"docs/_build/html/_modules/mod.html": f"<!DOCTYPE html><html><pre>{words}</pre></html>".encode()}


def coverage_report(path: str, source: str) -> Files:
    lines = "".join(
        f'<p><span class="n"><a href="#t{n}">{n}</a></span> <span class="t">{html.escape(line)}</span></p>\n'
        for n, line in enumerate(source.splitlines(), start=1)
    )
    return {"htmlcov/mod_py.html": f"<!DOCTYPE html><html><main>{lines}</main></html>".encode()}


def _split(source: str) -> list[str]:
    words: list[str] = []
    for char in source:
        if words and char.isalnum() and words[-1][-1].isalnum():
            words[-1] += char
        else:
            words.append(char)
    return words


def patch(path: str, source: str) -> Files:
    lines = "".join(f"-{line}\n" for line in source.splitlines())
    return {"0001-remove.patch": f"--- a/{path}\n+++ b/{path}\n@@ -1,9 +1,9 @@\n{lines}".encode()}


def editor_backup(path: str, source: str) -> Files:
    return {f"{path}.orig": source.encode()}


def swap_file(path: str, source: str) -> Files:
    """An editor's swap file: pages of lines between binary numbers."""
    lines = b"\0".join(source.encode().split(b"\n"))
    return {f"{Path(path).parent}/.{Path(path).name}.swp": b"b0VIM 9.0\0\0\0\0\x10\0\0" + bytes(range(64)) * 8 + lines}


def base64_blob(path: str, source: str) -> Files:
    blob = base64.encodebytes(source.encode()).decode()
    return {"tests/data.py": f'PAYLOAD = """\n{blob}"""\n'.encode()}


def hex_blob(path: str, source: str) -> Files:
    return {"tests/data.txt": f"expected: {source.encode().hex()}\n".encode()}


def base85_blob(path: str, source: str) -> Files:
    """A compressed module in a script that unpacks itself, as one well-known installer is spread."""
    blob = base64.b85encode(zlib.compress(source.encode())).decode()
    lines = "\n".join(blob[at : at + 79] for at in range(0, len(blob), 79))
    return {"get-package.py": f'from base64 import b85decode\nDATA = b"""\n{lines}\n"""\n'.encode()}


def wide_text(path: str, source: str) -> Files:
    return {"notes/old.txt": source.encode("utf-16")}


def string_constant(path: str, source: str) -> Files:
    return {"tests/test_text.py": f"EXPECTED = r'''\n{source}'''\n".encode()}


def commented_out(path: str, source: str) -> Files:
    return {"src/legacy.py": "".join(f"# {line}\n" for line in source.splitlines()).encode()}


def escaped_text(path: str, source: str) -> Files:
    """The module as one line of some other language's string."""
    return {"tools/gen.js": f"const source = {json.dumps(source)};\n".encode()}


def memory_dump(path: str, source: str) -> Files:
    return {"core.1234": bytes(range(256)) * 64 + source.encode() + bytes(range(255, -1, -1)) * 64}


def temporary_copy(path: str, source: str) -> Files:
    """What a build left outside the workspace."""
    return {f"/tmp/pip-build-x1/{path}": source.encode()}


def _zip(files: Files) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return made.getvalue()


def _tar(files: Files) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return made.getvalue()


HIDING_PLACES: dict[str, Hide] = {
    "git-loose-object": loose_object,
    "git-pack": pack,
    "stale-bytecode": stale_bytecode,
    "renamed-bytecode": renamed_bytecode,
    "type-checker-database": database,
    "dropped-database-row": dropped_row,
    "json-cache": json_cache,
    "build-folder": build_folder,
    "wheel": wheel,
    "egg-of-bytecode": egg,
    "sdist": sdist,
    "tar-bz2": bzip,
    "nested-archives": nested_archives,
    "zipapp": zipapp,
    "download-cache": http_cache,
    "installed-copy": site_packages,
    "bundled-wheel": installed_wheel,
    "build-left-in-tmp": temporary_copy,
    "vendored-and-reformatted": vendored,
    "notebook": notebook,
    "docs-with-prompts": guide,
    "highlighted-docs": highlighted,
    "coverage-report": coverage_report,
    "patch-file": patch,
    "editor-backup": editor_backup,
    "editor-swap-file": swap_file,
    "base64": base64_blob,
    "hex": hex_blob,
    "base85": base85_blob,
    "utf-16": wide_text,
    "string-constant": string_constant,
    "commented-out": commented_out,
    "escaped-string": escaped_text,
    "memory-dump": memory_dump,
}
