"""Sandboxes that were frozen, in the store: packed changes beside the memory of programs, sealed by whoever dumped it.

    memory/DIGEST/changes       everything the sandbox changed, packed
    memory/DIGEST/0..n/         CRIU's images of each program
    memory/DIGEST/facts.json    layers, limits, and what each program's streams were
    memory/DIGEST/seal          made with the store's key, which only its owner can read
    memory.key

Root makes processes of these images: a forged one would be a way out of every sandbox. So nothing is given out but what
this store wrote itself, whole and unchanged, on the machine's present boot. Knows no sandbox and no process.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from etude.core.errors import EtudeError
from etude.sandbox.base import FrozenSandbox, SandboxFailure
from etude.sandbox.store.layers import Store, boot

_SEAL, _FACTS, CHANGES = "seal", "facts.json", "changes"


def save(store: Store, folder: Path, facts: dict[str, Any]) -> FrozenSandbox:
    """What lies in `folder`, a scratch one of the store, under its name and with the store's seal."""
    try:
        folder.chmod(0o700)
        # Inside the facts, so the digest covers it: monotonic clocks start anew with each boot.
        (folder / _FACTS).write_text(json.dumps({**facts, "boot": boot()}))
        digest, size = _digest(folder)
        (folder / _SEAL).write_text(_seal(store, digest))
        final = _folder(store, digest)
        final.parent.mkdir(mode=0o700, exist_ok=True)
        if not final.exists():
            folder.rename(final)
    except OSError as error:
        raise SandboxFailure("store", f"a frozen sandbox cannot be saved: {error.strerror or error}") from error
    return FrozenSandbox(digest, final, tuple(store.layer(each) for each in facts["layers"]), size)


def verified(store: Store, frozen: FrozenSandbox) -> tuple[Path, dict[str, Any]]:
    """The folder and the facts of a frozen sandbox that this store wrote itself; everything else is refused."""
    folder = _folder(store, frozen.digest)
    name = f"frozen sandbox {frozen.digest[:12]}"
    try:
        seal = (folder / _SEAL).read_text()
        digest, _ = _digest(folder)
    except OSError as error:
        raise SandboxFailure("store", f"{name} cannot be read: {error.strerror}") from None
    # The digest shows that nothing changed, the seal that this store wrote it.
    if digest != frozen.digest or not hmac.compare_digest(seal, _seal(store, digest)):
        raise EtudeError(f"{name} was not written by the store {store.root}, or was changed since: it is not thawed")
    facts: dict[str, Any] = json.loads((folder / _FACTS).read_text())
    if facts["boot"] != boot():
        raise EtudeError(f"{name} is from before the machine's last start, and so are its clocks: it cannot be thawed")
    return folder, facts


def load(store: Store, digest: str) -> FrozenSandbox:
    """A frozen sandbox by its digest, as another process kept it."""
    folder = _folder(store, digest)
    try:
        facts = json.loads((folder / _FACTS).read_text())
    except OSError:
        raise EtudeError(f"the store {store.root} has no frozen sandbox {digest[:12]}") from None
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return FrozenSandbox(digest, folder, tuple(store.layer(each) for each in facts["layers"]), size)


def _folder(store: Store, digest: str) -> Path:
    # Before it becomes a path: a digest with ".." would lead out of the store.
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise EtudeError(f"{digest[:80]!r} is not the digest of a frozen sandbox")
    return store.root / "memory" / digest


def _digest(folder: Path) -> tuple[str, int]:
    """Over the names and contents of all files, and their bytes. Links and the like are refused: no dump makes any."""
    total, size = hashlib.sha256(), 0
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise OSError(0, f"{path} is not a plain file")
        if path.is_dir() or path == folder / _SEAL:
            continue
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
        total.update(str(path.relative_to(folder)).encode() + b"\0" + content)
        size += path.stat().st_size
    return total.hexdigest(), size


def _seal(store: Store, digest: str) -> str:
    path = store.root / "memory.key"
    # Linked into place whole, so that two processes at once get the same key.
    if not path.exists():
        with store.scratch() as partial, suppress(FileExistsError):  # another process was first
            made = partial / "key"
            made.touch(mode=0o600)
            made.write_bytes(secrets.token_bytes(32))
            path.hardlink_to(made)
    owner = path.stat()
    # Whoever reads the key can seal images of their own, which root would make processes of.
    if owner.st_uid != os.geteuid() or owner.st_mode & 0o077:
        raise EtudeError(f"{path} can be read by others: nothing sealed with it can be trusted; remove it")
    return hmac.new(path.read_bytes(), digest.encode(), hashlib.sha256).hexdigest()
