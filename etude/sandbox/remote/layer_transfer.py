"""Layers and snapshots from one store to another in blocks, by digest: what arrives is taken in only if it matches.

The receiving side keeps a transfer in a file without a name, so a sender or receiver that dies leaves nothing. Knows
stores; no socket and no session.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable
from typing import Final

from etude.core.errors import EtudeError
from etude.sandbox.base import Layer, SandboxFailure, Snapshot
from etude.sandbox.remote.messages import BLOCK, LayerName, PublishRequest
from etude.sandbox.store.layers import Store

MOST_BYTES: Final = 64 << 30  # of one transfer: above every environment that we know, below a disk

SendBlock = Callable[[int, bytes], Awaitable[None]]  # (offset, data)
ReadBlock = Callable[[int], Awaitable[bytes]]  # from an offset; nothing at the end


def names_of(layers: tuple[Layer, ...]) -> tuple[LayerName, ...]:
    return tuple(LayerName(layer.digest, layer.shows) for layer in layers)


async def send_layer(store: Store, layer: Layer, send: SendBlock, transfer: int) -> PublishRequest:
    """Sends the layer's files; the answer says what they are."""
    file, listed = await asyncio.to_thread(store.pack_layer, layer)
    try:
        await _send(file, send)
    finally:
        os.close(file)
    return PublishRequest(transfer, layer.digest, layer.shows, (), "tree" if listed else "changes")


async def send_snapshot(snapshot: Snapshot, send: SendBlock, transfer: int) -> PublishRequest:
    try:
        file = os.open(snapshot.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise SandboxFailure("store", f"snapshot {snapshot.digest[:12]} cannot be read: {error.strerror}") from None
    try:
        await _send(file, send)
    finally:
        os.close(file)
    return PublishRequest(transfer, snapshot.digest, (), names_of(snapshot.layers), "snapshot")


async def _send(file: int, send: SendBlock) -> None:
    at = 0
    while data := await asyncio.to_thread(os.pread, file, BLOCK, at):
        await send(at, data)
        at += len(data)


async def receive(file: int, size: int, read: ReadBlock) -> None:
    """What another store sends, into a file; all of it or a `SandboxFailure`."""
    at = 0
    while data := await read(at):
        await asyncio.to_thread(write_block, file, at, data)
        at += len(data)
    if at != size:
        raise SandboxFailure("store", f"{at} bytes of a snapshot arrived, of {size}")


def write_block(file: int, offset: int, data: bytes) -> None:
    """One block of a transfer."""
    if offset < 0 or offset + len(data) > MOST_BYTES:
        raise EtudeError(f"a layer of more than {MOST_BYTES >> 30} GB is not taken")
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written


def publish(store: Store, file: int, request: PublishRequest) -> None:
    """Takes what was sent into the store, if it is what its name says."""
    if request.kind != "snapshot":
        store.add_packed(file, request.digest, request.shows, listed=request.kind == "tree")
        return
    layers = tuple(store.layer(each.digest) for each in request.layers)
    with open(os.dup(file), "rb") as source:  # noqa: PTH123 - a descriptor
        source.seek(0)
        if hashlib.file_digest(source, "sha256").hexdigest() != request.digest:
            raise EtudeError(f"snapshot {request.digest[:12]} came with another content than its name says")
        source.seek(0)
        with store.writing_snapshot(layers) as (target, made):
            while data := source.read(BLOCK):
                write_block(target, source.tell() - len(data), data)
    if made[0].digest != request.digest:
        raise SandboxFailure("store", f"snapshot {request.digest[:12]} arrived as {made[0].digest[:12]}")
