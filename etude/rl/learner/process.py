"""The learner in a process of its own: `python -m etude.rl.learner.process SPEC ...`, one verb at a time.

    forward_backward  items, correction   -> metrics
    ..._files         a manifest of files -> metrics; each of several ranks opens its own
    score             items, weights      -> scores
    score_files       a manifest, weights -> scores
    step                                  -> metrics
    save              directory           -> the model, its tokenizer and all that an exact resume needs lie there
    publish           version             -> it is on the weight board, or on its way to the delta chain
    trouble                               -> what keeps it from getting there, in words

Every answer says how many seconds the verb took here; while it runs, heartbeats go out. A refusal is an answer; a bug
ends the process with its traceback in the log. Whoever started it is the only one it serves: when the connection or
the parent ends, it ends, and removes board and socket. Loading this file does not load torch: as a program it must
prepare its process first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket as sockets
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core import child_process as child
from etude.core.errors import EtudeError
from etude.core.tcp_address import TcpAddress, accept_one
from etude.core.transport import PREFIX_BYTES, Frame, from_json, pack, read_frame, read_prefix, unpack, write_frame
from etude.learn.item_checks import check_ids
from etude.learn.parallel.manifest import Manifest
from etude.learn.streams import Item, Twin
from etude.model.torch_process import prepare
from etude.rl.learner.messages import (
    READY,
    Done,
    LearnerSpec,
    PublishRequest,
    SaveRequest,
    ScoreFiles,
    Scores,
    StepRequest,
    read_batch,
    read_score_request,
)
from etude.tokens.checkpoint_files import TokenFiles

if TYPE_CHECKING:
    from etude.learn.learner import AnyLearner
    from etude.learn.parallel.lead import LeadLearner
    from etude.model.weight_transfer.publish import Publisher

BEAT = 1.0  # seconds between heartbeats
PATIENCE = 60.0  # seconds for the parent to connect, and for the rest of a frame that has begun


class Verbs:
    """The learner's verbs as frames in and frames out."""

    def __init__(self, learner: AnyLearner, weights: Publisher, model: Path) -> None:
        self.learner, self.weights = learner, weights
        # read now: a checkpoint that we started from may be cleaned away while we train
        self.tokens = TokenFiles.read(model)
        saving = (self.save, self.saved, self.finish_save)
        train = (self.forward_backward, self.forward_backward_files)
        verbs = (*train, self.score, self.score_files, self.step, *saving, self.publish, self.trouble)
        self._verbs: dict[str, Callable[[Frame], Any]] = {verb.__name__: verb for verb in verbs}

    def answer(self, request: Frame) -> Frame:
        begin = time.perf_counter()
        name, number = request.header.get("verb"), request.header.get("number")
        try:
            if not isinstance(name, str) or name not in self._verbs:
                raise EtudeError(f"the learner has no verb {name!r}; it has: {list(self._verbs)}")
            answer = pack(self._verbs[name](request) or Done())
        except EtudeError as refused:
            answer = Frame({"error": str(refused)})
        return Frame(answer.header | {"number": number, "seconds": time.perf_counter() - begin}, answer.arrays)

    def forward_backward(self, request: Frame) -> Done:
        batch = read_batch(request)
        self._check(batch.items)
        return Done(_floats(self.learner.forward_backward(batch)))

    def forward_backward_files(self, request: Frame) -> Done:
        return Done(_floats(self._several().forward_backward_files(unpack(Manifest, request))))

    def score(self, request: Frame) -> Scores:
        wanted = read_score_request(request)
        weights = self._weights(wanted.weights)
        self._check(wanted.items)
        return Scores(self.learner.score(wanted.items, weights))

    def score_files(self, request: Frame) -> Scores:
        wanted = unpack(ScoreFiles, request)
        return Scores(self._several().score_files(wanted.batch, self._weights(wanted.weights)))

    def step(self, request: Frame) -> Done:
        from etude.learn.optim import measured_update

        wanted = unpack(StepRequest, request)
        if wanted.lr is not None and wanted.lr != self.learner.optim.lr:
            self.learner.optim = self.learner.optimiser.settings = replace(self.learner.optim, lr=wanted.lr)
        if wanted.total_steps is not None:
            self.learner.total_steps = wanted.total_steps
        with measured_update(self.learner.optimiser.parameters.values()) as update:
            metrics = self.learner.step()
        return Done(_floats(metrics | {"update_rms": update.rms}))

    def save(self, request: Frame) -> None:
        from safetensors import SafetensorError

        wanted = unpack(SaveRequest, request)
        directory = Path(wanted.directory)
        if not directory.is_dir() or any(directory.iterdir()):
            raise EtudeError(f"the learner saves into an empty folder, which {directory} is not")
        try:
            self.tokens.write(directory)
            (self.learner.begin_save if wanted.background else self.learner.save)(directory)
        except (OSError, SafetensorError) as failed:
            raise EtudeError(f"the learner cannot save into {directory}: {failed}") from None

    def saved(self, request: Frame) -> Done:
        return Done({"saved": float(self.learner.saved)})

    def finish_save(self, request: Frame) -> None:
        from safetensors import SafetensorError

        try:
            self.learner.finish_save()
        except (OSError, SafetensorError) as failed:
            raise EtudeError(f"the learner could not save its checkpoint: {failed}") from None

    def publish(self, request: Frame) -> None:
        self.learner.publish(self.weights, unpack(PublishRequest, request).version)

    def trouble(self, request: Frame) -> Done:
        return Done({"trouble": self.weights.trouble})

    def _several(self) -> LeadLearner:
        from etude.learn.parallel.lead import LeadLearner

        if not isinstance(self.learner, LeadLearner):
            raise EtudeError("a learner of one rank is sent its items; only several ranks open files")
        return self.learner

    def _check(self, items: Sequence[Item]) -> None:
        """Refuse what this model does not have; found inside a kernel, it would end the process or read wild memory."""
        for item in items:
            for stream in item.streams:
                if isinstance(stream.target, Twin):
                    self._weights(stream.target.weights)
        check_ids(items, self.learner.decoder.config)

    def _weights(self, name: object) -> str:
        if name not in self.learner.weights:
            raise EtudeError(f"the learner has no {name!r} weights; it has: {', '.join(self.learner.weights)}")
        return str(name)


class Line:
    """The connection to the parent: frames in, frames out, and heartbeats in between."""

    def __init__(self, connection: sockets.socket) -> None:
        self._connection = connection
        self._writing = threading.Lock()

    def receive(self) -> Frame | None:
        """The next frame, however long that takes; None when the other side has left."""
        # Between two verbs any time may pass; the rest of a frame that has begun has `PATIENCE` seconds (`_read`).
        self._connection.settimeout(None)
        prefix = self._read(PREFIX_BYTES)
        if prefix is None:
            return None
        header, body = read_prefix(prefix)
        try:
            parts = self._read(header), self._read(body)
        except TimeoutError:
            raise EtudeError(f"the rest of a frame did not come within {PATIENCE:g} s") from None
        if parts[0] is None or parts[1] is None:
            return None
        return read_frame(parts[0], parts[1])

    def send(self, frame: Frame) -> None:
        # The heartbeat's thread writes as well, and two frames must not mix.
        with self._writing:
            self._connection.settimeout(None)
            self._connection.sendall(write_frame(frame))

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Heartbeats from a thread of their own while the block runs."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(BEAT):
                try:
                    self.send(Frame({"beat": True}))
                except OSError:
                    return  # the parent has left; the main thread finds out by itself

        thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _read(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            # In pieces: what a prefix announces is no reason to take the memory before the bytes are there.
            piece = self._connection.recv(min(count - len(data), 1 << 20))
            if not piece:
                return None
            data += piece
            self._connection.settimeout(PATIENCE)
        return bytes(data)


def serve(verbs: Verbs, listener: sockets.socket, address: TcpAddress | None = None) -> None:
    """Answers the first who connects, and knows the token of `address`, until they leave."""
    listener.settimeout(PATIENCE)
    try:
        if address is None:
            connection, _ = listener.accept()
        else:
            connection = asyncio.run(accept_one(listener, address, PATIENCE))
    except TimeoutError:
        raise EtudeError(f"nobody connected within {PATIENCE:g} s") from None
    with connection:
        line = Line(connection)
        try:
            while (request := line.receive()) is not None:
                with line.beating():
                    answer = verbs.answer(request)
                line.send(answer)
        except (BrokenPipeError, ConnectionResetError):
            return


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m etude.rl.learner.process", description="Train a model for another process."
    )
    parser.add_argument("spec", help="JSON object, see messages.LearnerSpec")
    child.add_arguments(parser)
    options = parser.parse_args()
    spec = from_json(LearnerSpec, json.loads(options.spec))
    leaves = [path for path in (spec.board, options.socket, options.announce, options.folder) if path is not None]
    child.end_with(options, leaves)
    # As an exception in the main thread, so that the `finally` below removes board and socket.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        prepare(spec.threads)
        _train(spec, options)
        child.remove(leaves)  # the parent has left: it was done, or it was killed and the folder is nobody's
    except EtudeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        child.remove([spec.board, options.socket])
    return 0


def _train(spec: LearnerSpec, options: argparse.Namespace) -> None:
    import torch

    from etude.learn.lora import adapt
    from etude.learn.start_learner import start_learner
    from etude.model.checkpoint.directory import load_model
    from etude.model.checkpoint.outlines import load_outline
    from etude.model.lora_linear import copy_trained
    from etude.model.weight_transfer.publish import ChainPublisher
    from etude.model.weight_transfer.shared_memory import WeightBoard, create_board

    try:
        torch.empty(0, device=spec.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise EtudeError(f"device is {spec.device!r}, which does not work here: {reason}") from None
    several = spec.ranks.ranks > 1
    decoder = load_outline(spec.model) if several else load_model(spec.model, spec.device)
    frozen = load_outline(spec.frozen) if several and spec.frozen is not None else None
    if spec.frozen is not None and not several:  # adapters leave the weights that we start from as they are
        same = spec.lora.rank > 0 and spec.frozen == spec.model
        frozen = copy_trained(decoder.requires_grad_(False)) if same else load_model(spec.frozen, spec.device)
    adapt(decoder, spec.lora, spec.seed)
    with start_learner(
        decoder,
        spec.optim,
        spec.total_steps,
        spec.micro_tokens,
        device=spec.device,
        compute=spec.compute,
        lora=spec.lora,
        frozen=frozen,
        ranks=spec.ranks,
        threads=spec.threads,
    ) as learner:
        if spec.restore is not None:
            learner.restore(spec.restore)
        weights: Publisher
        if spec.weights:
            weights = ChainPublisher(
                spec.weights,
                uuid.uuid4().hex,
                base_every=spec.weights_base_every,
                served=spec.weights_dtype,
            )
        else:
            weights = WeightBoard.create(spec.board, decoder) if several else create_board(spec.board, decoder)
        del decoder, frozen
        verbs = Verbs(learner, weights, spec.model)
        listening = child.Listening(options)
        with listening.socket as listener:
            print(READY, listening.name, flush=True)
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nobody reads on: the rest that is printed is the log's
            serve(verbs, listener, listening.address)


def _floats(metrics: dict[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


if __name__ == "__main__":
    sys.exit(main())
