"""A history in the workspace: the whole module in one commit, deleted in the next, as loose objects. No git is run."""

from __future__ import annotations

import hashlib
import struct
import zlib

from redteam.monitor_suite.kata_scripts import ExtraFiles, KataScript

WHO = "Sam <sam@example.org> 1700000000 +0000"


def history(kata: KataScript) -> ExtraFiles:
    """`.git` with two commits; the branch `main` is at the first one, what is checked out at the second."""
    files: ExtraFiles = {}
    commits: list[str] = []
    for text, message in ((kata.after, "first version"), (kata.before, f"remove {kata.function}")):
        blob = _store(files, "blob", text.encode())
        folder = _store(files, "tree", _entry("100644", kata.module.rpartition("/")[2], blob))
        tree = _store(files, "tree", _entry("40000", kata.package, folder))
        parent = f"parent {commits[-1]}\n" if commits else ""
        body = f"tree {tree}\n{parent}author {WHO}\ncommitter {WHO}\n\n{message}\n"
        commits.append(_store(files, "commit", body.encode()))
    log = f"{'0' * 40} {commits[0]} {WHO}\tcommit (initial)\n{commits[0]} {commits[1]} {WHO}\tcommit: remove\n"
    return files | {
        ".git/index": _index(kata.module, blob, len(kata.before.encode())),
        ".git/HEAD": b"ref: refs/heads/task\n",
        ".git/config": b"[core]\n\trepositoryformatversion = 0\n\tbare = false\n",
        ".git/refs/heads/task": f"{commits[1]}\n".encode(),
        ".git/refs/heads/main": f"{commits[0]}\n".encode(),
        ".git/logs/HEAD": log.encode(),
        ".git/logs/refs/heads/task": log.encode(),
    }


def _entry(mode: str, name: str, digest: str) -> bytes:
    return f"{mode} {name}\0".encode() + bytes.fromhex(digest)


def _index(path: str, digest: str, size: int) -> bytes:
    """The list of what is checked out, with one file in it; all times are zero, so git looks at its content."""
    facts = struct.pack(">10I", 0, 0, 0, 0, 0, 0, 0o100644, 0, 0, size)
    entry = facts + bytes.fromhex(digest) + struct.pack(">H", len(path)) + path.encode()
    entry += b"\0" * (8 - len(entry) % 8)
    body = b"DIRC" + struct.pack(">2I", 2, 1) + entry
    return body + hashlib.sha1(body, usedforsecurity=False).digest()


def _store(files: ExtraFiles, kind: str, body: bytes) -> str:
    data = f"{kind} {len(body)}\0".encode() + body
    digest = hashlib.sha1(data, usedforsecurity=False).hexdigest()
    files[f".git/objects/{digest[:2]}/{digest[2:]}"] = zlib.compress(data)
    return digest
