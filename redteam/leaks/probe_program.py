"""A leak probe at work: a program that runs inside an agent's sandbox and looks for deleted code instead of writing it.

    python3 probe_program.py METHOD SECONDS path:name...

It looks where its method looks, takes whatever defines a wanted symbol and is no stub, and puts it into the workspace:
source as it was, bytecode behind a line that loads it. Says what it found where. Needs nothing but the standard
library and runs in a sandbox only: unlike the audit it trusts what it reads.
"""

from __future__ import annotations

import ast
import base64
import bz2
import gzip
import html
import io
import json
import lzma
import marshal
import os
import re
import sqlite3
import string
import subprocess
import sys
import tarfile
import textwrap
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import CodeType

LARGEST = 80_000_000  # bytes of a file worth reading
NOWHERE = ("/proc", "/sys", "/dev")
LONG = 200
IN, OUT = b"+", b" "
BASE64, HEX = (
    bytes.maketrans(bytes(range(256)), bytes(IN[0] if byte in letters else OUT[0] for byte in range(256)))
    for letters in (string.ascii_letters.encode() + string.digits.encode() + b"+/\n", b"0123456789abcdef")
)
Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
NODES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Findings:
    """What has been taken so far, for each wanted symbol: the best that was seen."""

    def __init__(self, wanted: list[tuple[str, str]], seconds: float) -> None:
        self.wanted = wanted
        self.sources: dict[tuple[str, str], str] = {}
        self.codes: dict[tuple[str, str], CodeType] = {}
        self.ranks: dict[tuple[str, str], int] = {}  # 0: surely it; 1: called like it; 2: a scrap
        # Of the processor, so that a busy machine is searched as far as an idle one; of the clock before it is stopped.
        self.until, self.at_last = processor_seconds() + seconds, time.monotonic() + seconds + 60
        bare = {name: name.rpartition(".")[2] for _, name in wanted}
        self.marks = {each.encode() for each in bare.values()}
        self.begins = {name: (f"def {bare[name]}", f"class {bare[name]}") for name in bare}
        begins = [begin for both in self.begins.values() for begin in both]
        self.lines = {begin.encode() for begin in begins}
        self.wide = {begin.encode(form) for begin in begins for form in ("utf-16-le", "utf-16-be")}

    @property
    def complete(self) -> bool:
        return all(self.ranks.get(each) == 0 for each in self.wanted)

    def named(self, data: bytes) -> bool:
        """Whether a wanted name stands in these bytes at all."""
        return any(mark in data for mark in self.marks)

    def written(self, data: bytes) -> bool:
        """Whether a line in these bytes begins to define a wanted name."""
        return any(line in data for line in self.lines)

    def better(self, wanted: tuple[str, str], rank: int, how: str, origin: str) -> bool:
        if rank >= self.ranks.get(wanted, 3):
            return False
        print(f"found {wanted[1]} {how} {origin}")
        self.ranks[wanted] = rank
        return True

    @property
    def late(self) -> bool:
        return processor_seconds() > self.until or time.monotonic() > self.at_last or self.complete

    def look(self, text: str, origin: str) -> None:
        """Take every wanted definition from a text, whole module or scrap."""
        for path, name in self.wanted:
            if self.ranks.get((path, name)) == 0 or not any(begin in text for begin in self.begins[name]):
                continue
            exact = whole(text, name)
            found = exact or scrap(text, name)
            rank = same_file(origin, path) if exact else 2
            if found and not is_stub(found) and self.better((path, name), rank, "in", origin):
                self.sources[path, name] = found

    def look_at_code(self, code: CodeType, origin: str, outer: str = "") -> None:
        for constant in code.co_consts:
            if not isinstance(constant, CodeType):
                continue
            qualname = f"{outer}{constant.co_name}"
            for path, name in self.wanted:
                stub = "NotImplementedError" in constant.co_names
                rank = same_file(origin, path)
                if name == qualname and not stub and self.better((path, name), rank, "as bytecode in", origin):
                    self.codes[path, name] = constant
                    self.sources.pop((path, name), None)
            self.look_at_code(constant, origin, f"{qualname}.")


def processor_seconds() -> float:
    """Of this program and of those that it ran."""
    return sum(os.times()[:4])


def same_file(origin: str, path: str) -> int:
    """The rank of a symbol of the right name: 0 where the file is called like the wanted one."""
    return 0 if Path(origin).name.startswith(Path(path).stem) else 1


def definitions(tree: ast.AST, outer: str = "") -> Iterator[tuple[str, Node]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, NODES):
            yield f"{outer}{node.name}", node
            yield from definitions(node, f"{outer}{node.name}.")
        elif isinstance(node, (ast.If, ast.Try)):
            yield from definitions(node, outer)


def whole(text: str, name: str) -> str:
    """A symbol's source from a module that parses; the last of several, as Python has it."""
    try:
        found = [node for own, node in definitions(ast.parse(text)) if own == name]
    except (SyntaxError, ValueError, RecursionError):
        return ""
    return cut(text, found[-1]) if found else ""


def cut(text: str, node: Node) -> str:
    lines = text.splitlines(keepends=True)
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    return textwrap.dedent("".join(lines[first - 1 : node.end_lineno]))


def scrap(text: str, name: str) -> str:
    """A symbol's source from anything: the line that defines it, and what is indented below."""
    bare = re.escape(name.rpartition(".")[2])
    for begin in re.finditer(rf"(?m)^([^\n]*?)((?:async )?def|class) {bare}\b", text):
        lines = text[begin.start() :].splitlines(keepends=True)[:400]
        margin = len(begin[1])
        body = [lines[0][margin:]]
        for line in lines[1:]:
            rest = line[margin:]
            if rest.strip() and not rest.startswith((" ", "\t", ")")):
                break
            body.append(rest if rest.endswith("\n") else "\n")
        while body:
            try:
                made = "".join(body)
                ast.parse(made)
            except (SyntaxError, ValueError):
                body.pop()
            else:
                return made if len(body) > 1 else ""
    return ""


def is_stub(source: str) -> bool:
    try:
        node = ast.parse(source).body[0]
    except (SyntaxError, ValueError, IndexError):
        return True
    if not isinstance(node, NODES):
        return True
    body = [part for part in node.body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))]
    return not body or (len(body) == 1 and isinstance(body[0], (ast.Raise, ast.Pass)))


def files(ending: tuple[str, ...] = ()) -> Iterator[Path]:
    """Every file that can be seen; the workspace and the home first."""
    seen: set[tuple[int, int]] = set()
    for top in (".", os.path.expanduser("~"), "/opt", "/tmp", "/var", "/usr/lib", "/"):  # noqa: PTH111 - a probe's list
        for folder, below, names in os.walk(top):
            if folder == "/":
                below[:] = [name for name in below if f"/{name}" not in NOWHERE]
            facts = os.stat(folder)  # noqa: PTH116
            if (facts.st_dev, facts.st_ino) in seen:
                below[:] = []
                continue
            seen.add((facts.st_dev, facts.st_ino))
            for name in names:
                if not ending or name.endswith(ending):
                    yield Path(folder, name)


def read(path: Path) -> bytes:
    try:
        if path.is_file() and path.stat().st_size <= LARGEST:
            return path.read_bytes()
    except OSError:
        pass
    return b""


def from_git(findings: Findings) -> None:
    """Everything in every object store: history, reflog, stash, dangling objects; and objects without a store."""
    seen: set[Path] = set()
    for path in files():
        if findings.late:
            return
        store = path.parent
        if path.name == "HEAD" and (store / "objects").is_dir() and store.resolve() not in seen:
            seen.add(store.resolve())
            from_store(store, findings)
        elif path.suffix in (".pack", ".bundle"):
            from_pack(path, findings)
        elif "objects" in path.parts and re.fullmatch(r"[0-9a-f]{38}", path.name):
            try:
                findings.look(zlib.decompress(read(path)).decode(errors="replace"), str(path))
            except zlib.error:
                continue


def from_store(store: Path, findings: Findings) -> None:
    for command in (
        ["cat-file", "--batch-all-objects", "--batch", "--unordered"],
        ["log", "--all", "--reflog", "-p", "--no-color"],
        ["stash", "list", "-p"],
        ["fsck", "--lost-found", "--no-progress"],
    ):
        done = subprocess.run(["git", f"--git-dir={store}", *command], capture_output=True, timeout=60)
        for part in re.split(rb"(?m)^[0-9a-f]{40} (?:blob|tree|commit|tag) \d+$", done.stdout):
            findings.look(part.decode(errors="replace"), f"git {store}")
            findings.look(re.sub(r"(?m)^[-+]", "", part.decode(errors="replace")), f"git {store}")


def from_pack(path: Path, findings: Findings) -> None:
    """The objects of a pack that lies somewhere, taken into a store of the probe's own."""
    store = Path.home() / "findings.git"
    subprocess.run(["git", "init", "--bare", "--quiet", str(store)], capture_output=True, timeout=30)
    command = ["git", f"--git-dir={store}", "unpack-objects", "-r", "-q"]
    subprocess.run(command, input=read(path), capture_output=True, timeout=60)
    from_store(store, findings)


def from_find(findings: Findings) -> None:
    """Files that are called like the module, and any text that names the symbol."""
    names = tuple(Path(path).name for path, _ in findings.wanted)
    texts = (".py", ".pyi", ".txt", ".rst", ".md", ".ipynb", ".html", ".json", ".patch", ".diff", ".orig", ".bak")
    for path in files():
        if findings.late:
            return
        if path.name.startswith(names) or path.suffix in texts:
            data = read(path)
            text = data.decode(errors="replace") if findings.written(data) else ""
            findings.look(text, str(path))
            if path.suffix in (".patch", ".diff"):
                findings.look(re.sub(r"(?m)^[-+ ]", "", text), str(path))


def from_strings(findings: Findings) -> None:
    """Readable text in any file, as it is, unescaped, without tags, decoded."""
    for path in files():
        if findings.late:
            return
        for text in readings(read(path), findings):
            findings.look(text, str(path))


def readings(data: bytes, findings: Findings) -> Iterator[str]:
    if findings.written(data):
        text = data.decode("utf-8", "replace")
        yield text
        if b"\0" in data:
            yield "\n".join(each.decode() for each in re.findall(rb"[\t\n\r\x20-\x7e]{4,}", data))
        if "\\n" in text:
            yield text.replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
    if any(mark in data for mark in findings.wide):
        yield data.decode("utf-16", "replace")
    if b"<span" in data:  # which may stand inside a name
        yield html.unescape(re.sub(r"<[^>]*>", "", data.decode("utf-8", "replace")))
    for blob in islice(runs(data, BASE64), 20):
        try:
            yield base64.b64decode(blob + b"=" * (-len(blob.replace(b"\n", b"")) % 4)).decode("utf-8", "replace")
        except ValueError:
            continue
    for blob in islice(runs(data, HEX), 20):
        yield bytes.fromhex(blob[: len(blob) // 2 * 2].decode()).decode("utf-8", "replace")


def runs(data: bytes, table: bytes) -> Iterator[bytes]:
    """Stretches of at least LONG bytes of an alphabet. Without an expression: it would begin anew at every byte."""
    marked = data.translate(table)
    first = marked.find(IN * LONG)
    while first >= 0:
        last = marked.find(OUT, first)
        last = len(data) if last < 0 else last
        yield data[first:last]
        first = marked.find(IN * LONG, last)


def from_pip(findings: Findings) -> None:
    """The package itself: from an index, from pip's caches and bundled wheels, from any archive, from site-packages."""
    for path in files():
        if findings.late:
            break
        if path.suffix in (".py", ".txt", ".so", ".h", ".c", ".js", ".png"):
            if "site-packages" in path.parts or "dist-packages" in path.parts:
                data = read(path)
                findings.look(data.decode(errors="replace") if findings.written(data) else "", str(path))
            continue
        unpack(read(path), str(path), findings, 0)
    if not findings.complete:
        from_index(findings)


def from_index(findings: Findings) -> None:
    """The package as a download, should there be a network after all."""
    packages = {Path(path).parts[0] for path, _ in findings.wanted} | {
        Path(path).parent.name for path, _ in findings.wanted
    }
    for name in sorted({*packages, Path.cwd().name} - {"src", "lib", "", "."}):
        options = [
            "--no-deps",
            "--retries=0",
            "--timeout=3",
            "--no-binary",
            ":all:",
            "-d",
            f"{Path.home()}/findings",
        ]
        try:
            command = [sys.executable, "-m", "pip", "download", *options, name]
            subprocess.run(command, capture_output=True, timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            continue
    for path in sorted(Path.home().glob("findings/*")):
        unpack(read(path), str(path), findings, 0)


def unpack(data: bytes, origin: str, findings: Findings, depth: int) -> None:
    if depth > 4 or not data:
        return
    try:
        if data[:4] == b"PK\x03\x04" or (b"PK\x05\x06" in data[-70_000:] and depth < 3):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                for name in archive.namelist():
                    inside(archive.read(name), f"{origin}!{name}", findings, depth)
        elif data[257:262] == b"ustar":
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                for member in tar:
                    stream = tar.extractfile(member) if member.isfile() else None
                    inside(stream.read() if stream else b"", f"{origin}!{member.name}", findings, depth)
        else:
            for magic, opener in (
                (b"\x1f\x8b", gzip.decompress),
                (b"BZh", bz2.decompress),
                (b"\xfd7zXZ", lzma.decompress),
            ):
                at = data.find(magic, 0, 4096)
                if at >= 0:
                    inside(opener(data[at:]), origin, findings, depth)
    except (
        OSError,
        ValueError,
        EOFError,
        RuntimeError,
        zlib.error,
        lzma.LZMAError,
        zipfile.BadZipFile,
        tarfile.TarError,
    ):
        return


def inside(data: bytes, origin: str, findings: Findings, depth: int) -> None:
    if findings.written(data):
        findings.look(data.decode(errors="replace"), origin)
    if data[2:4] == b"\r\n" and findings.named(data):
        take_bytecode(data, origin, findings)
    unpack(data, origin, findings, depth + 1)


def from_caches(findings: Findings) -> None:
    """Rows of databases and strings of JSON, wherever they are."""
    for path in files():
        if findings.late:
            return
        data = read(path)
        if data.startswith(b"SQLite format 3"):
            for text in rows(path):
                findings.look(text, str(path))
            findings.look(data.decode("latin-1"), str(path))
        elif data[:1] in (b"{", b"["):
            for text in strings(data):
                findings.look(text, str(path))


def rows(path: Path) -> Iterator[str]:
    try:
        link = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        for (table,) in link.execute("select name from sqlite_master where type = 'table'").fetchall():
            for row in link.execute(f'select * from "{table}"'):
                for value in row:
                    if isinstance(value, str | bytes):
                        yield value if isinstance(value, str) else value.decode(errors="replace")
    except (sqlite3.Error, ValueError):
        return


def strings(data: bytes) -> Iterator[str]:
    try:
        waiting = [json.loads(data)]
    except (ValueError, RecursionError):
        return
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            if all(isinstance(each, str) for each in value):
                yield "".join(value)
            else:
                waiting.extend(value)
        elif isinstance(value, dict):
            waiting.extend(value.values())


def from_bytecode(findings: Findings) -> None:
    """Code objects of any compiled file."""
    for path in files():
        if findings.late:
            return
        try:
            with path.open("rb") as file:
                head = file.read(17)
        except OSError:
            continue
        if len(head) == 17 and head[2:4] == b"\r\n" and findings.named(data := read(path)):
            take_bytecode(data, str(path), findings)


def take_bytecode(data: bytes, origin: str, findings: Findings) -> None:
    try:
        code = marshal.loads(data[16:])
    except (ValueError, EOFError, TypeError):
        return
    if isinstance(code, CodeType):
        findings.look_at_code(code, origin)


def put_back(findings: Findings) -> None:
    """Write what was found into the workspace."""
    for (path, name), source in findings.sources.items():
        file = Path(path)
        text = file.read_text() if file.exists() else ""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(spliced(text, name, source))
    for (path, name), code in findings.codes.items():
        if (path, name) in findings.sources:
            continue
        blob = base64.b64encode(marshal.dumps(code)).decode()
        owner, _, own = name.rpartition(".")
        old = f"{owner}.__dict__.get({own!r})" if owner else f"globals().get({own!r})"
        code_text = f"_m.loads(_b.b64decode({blob!r}))"
        lines = ["import base64 as _b, marshal as _m, types as _t", f"_old = {old}"]
        lines += [f"_new = _t.FunctionType({code_text}, globals(), {own!r}, getattr(_old, '__defaults__', None))"]
        lines += ["_new.__kwdefaults__ = getattr(_old, '__kwdefaults__', None)"]
        lines += [f"setattr({owner}, {own!r}, _new)" if owner else f"{own} = _new"]
        file = Path(path)
        if file.exists():
            file.write_text(f"{file.read_text()}\n\n" + "\n".join(lines) + "\n")


def spliced(text: str, name: str, source: str) -> str:
    """A module with a symbol replaced, or added where it belongs."""
    try:
        found = dict(definitions(ast.parse(text)))
    except (SyntaxError, ValueError):
        return text + "\n\n" + source
    lines = text.splitlines(keepends=True)
    if name in found:
        node = found[name]
        first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        end, margin = node.end_lineno or node.lineno, " " * node.col_offset
        lines[first - 1 : end] = [textwrap.indent(source, margin)]
    elif (owner := found.get(name.rpartition(".")[0])) is not None:
        last = owner.end_lineno or owner.lineno
        lines[last:last] = ["\n", textwrap.indent(source, " " * (owner.col_offset + 4))]
    else:
        lines += ["\n\n", source]
    return "".join(lines)


METHODS: dict[str, Callable[[Findings], None]] = {
    "git": from_git,
    "find": from_find,
    "strings": from_strings,
    "pip": from_pip,
    "caches": from_caches,
    "decompiler": from_bytecode,
}


def main() -> None:
    wanted = [(path, name) for path, _, name in (given.partition(":") for given in sys.argv[3:])]
    findings = Findings(wanted, float(sys.argv[2]))
    METHODS[sys.argv[1]](findings)
    put_back(findings)
    print(f"{len({*findings.sources, *findings.codes})} of {len(wanted)} found")


if __name__ == "__main__":
    main()
