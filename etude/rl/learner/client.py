"""The learner from outside: its verbs as coroutines, spoken to process.py, and the start of that process.

Never imports torch. One verb at a time. While the process works it sends heartbeats, so a long step is not taken for a
dead or stuck process: every wait ends with an error that names the verb, and a death shows the end of the log.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from etude.cluster.placement import LEARNER, Placement, Program, Running
from etude.cluster.ranks import start_ranks
from etude.core.child_process import start
from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.core.tcp_address import FILE, connect, read_address
from etude.core.transport import PREFIX_BYTES, Frame, pack, read_frame, read_prefix, to_json, unpack, write_frame
from etude.learn.parallel.manifest import Manifest, remove_batch, write_batch
from etude.learn.streams import Batch, Floats, Item
from etude.rl.learner.messages import (
    READY,
    Done,
    LearnerSpec,
    PublishRequest,
    SaveRequest,
    ScoreFiles,
    ScoreRequest,
    Scores,
    StepRequest,
    read_metrics,
)

MODULE = "etude.rl.learner.process"
SILENCE = 30.0  # seconds without a heartbeat after which a working process is given up
BUFFER = 16 << 20  # bytes of an answer taken in at once
TICK = 1.0  # seconds between two looks at the clock


class LearnerClient:
    """A learner process that we started. `busy_seconds` is the time that finished verbs took inside it."""

    def __init__(
        self,
        child: Running,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        deadline: float = 600.0,
        batches: Path | None = None,
    ) -> None:
        self.child, self.batches = child, batches
        self.deadline = deadline  # seconds, for each verb
        self.silence = SILENCE
        self.busy_seconds = 0.0
        self._reader, self._writer = reader, writer
        self._turn = asyncio.Lock()
        self._number = 0  # of the last request
        self._batch = 0  # number of the last one that was written to files
        self._answer: asyncio.Future[Frame] | None = None
        self._quiet = 0.0  # seconds since the process was last heard
        self._listening = asyncio.create_task(self._listen(), name="learner answers")

    async def forward_backward(self, batch: Batch) -> dict[str, float]:
        """Adds the batch's gradients; the learner's metrics, with `seconds` that it took inside the process."""
        if self.batches is None:
            return read_metrics(await self._call("forward_backward", batch))
        async with self._written(batch, self.batches) as manifest:
            return read_metrics(await self._call("forward_backward_files", manifest))

    async def score(self, items: Sequence[Item], weights: str = "live") -> list[Floats]:
        """Log-probabilities of each item's tokens at its temperature under `live`, `ema` or `frozen` weights."""
        if self.batches is None:
            return list(unpack(Scores, await self._call("score", ScoreRequest(items, weights))).scores)
        async with self._written(Batch(items), self.batches) as manifest:
            return list(unpack(Scores, await self._call("score_files", ScoreFiles(manifest, weights))).scores)

    async def step(self, lr: float | None = None, total_steps: int | None = None) -> dict[str, float]:
        """Moves the weights; the learner's metrics (lr, grad_norm, skipped), with `seconds`.

        `lr` is another peak learning rate from this step on, `total_steps` another last step of its schedule.
        """
        return read_metrics(await self._call("step", StepRequest(lr, total_steps)))

    async def save(self, directory: Path) -> None:
        """Writes model, tokenizer and all that an exact resume needs into `directory`, which exists and is empty."""
        await self._call("save", SaveRequest(str(directory.absolute())))

    async def begin_save(self, directory: Path) -> None:
        """As `save`, written beside the next verbs; all is there when `finish_save` has returned."""
        await self._call("save", SaveRequest(str(directory.absolute()), background=True))

    async def saved(self) -> bool:
        """Whether `finish_save` would not wait."""
        return bool(read_metrics(await self._call("saved", Done()))["saved"])

    async def finish_save(self) -> None:
        """Waits for what is saved in the background; its error, if it had one."""
        await self._call("finish_save", Done())

    async def publish(self, version: Version) -> None:
        """Writes the weights to the board as `version`."""
        await self._call("publish", PublishRequest(version))

    async def why_unpublished(self) -> str:
        """What keeps a version from being published in the background; empty where nothing does."""
        return str(unpack(Done, await self._call("trouble", Done())).metrics["trouble"])

    async def close(self, seconds: float = 10.0) -> None:
        """Ends the process; its board, socket and folder are gone afterwards."""
        self._listening.cancel()
        self._writer.close()
        await asyncio.wait([self._listening])
        await self.child.close(seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @asynccontextmanager
    async def _written(self, batch: Batch, folder: Path) -> AsyncIterator[Manifest]:
        """The items of the batch as files, while the block lasts."""
        self._batch += 1
        # Written by a thread: large rollouts are hundreds of megabytes.
        manifest = await asyncio.to_thread(write_batch, batch, folder, f"batch-{self._batch}")
        try:
            yield manifest
        finally:
            remove_batch(manifest)

    async def _call(self, verb: str, message: object) -> Frame:
        # The process has one connection and answers one verb after another.
        async with self._turn:
            self._number += 1
            data = write_frame(pack(message, verb=verb, number=self._number))
            self._answer = asyncio.get_running_loop().create_future()
            self._quiet = 0.0
            if self._listening.done():  # it ended after an earlier verb
                await self._gone(verb)
            self._writer.write(data)
            return await self._wait(verb, self._answer)

    async def _wait(self, verb: str, answer: asyncio.Future[Frame]) -> Frame:
        waits: list[asyncio.Future[Any]] = [answer, self._listening]
        waited, tick = 0.0, min(TICK, self.silence / 4, self.deadline / 4)
        while not answer.done():
            # counted in turns of our own loop: when that stalls, the process is not to blame
            await asyncio.wait(waits, timeout=tick, return_when=asyncio.FIRST_COMPLETED)
            if self._listening.done() and not answer.done():
                await self._gone(verb)
            waited, self._quiet = waited + tick, self._quiet + tick
            if answer.done():
                break
            if self._quiet >= self.silence:
                what = f"gave no sign of life for {self.silence:g} s in {verb}"
                raise EtudeError(f"the learner {what}; {self.child.log_end()}")
            if waited >= self.deadline:
                what = f"did not finish {verb} within {self.deadline:g} s"
                raise EtudeError(f"the learner {what}; {self.child.log_end()}")
        frame = answer.result()
        self.busy_seconds += float(frame.header["seconds"])
        if "error" in frame.header:
            raise EtudeError(f"the learner refused {verb}: {frame.header['error']}")
        return frame

    async def _listen(self) -> None:
        """Takes frames in until the process ends; heartbeats and late answers only show that it lives."""
        while True:
            header, body = read_prefix(await self._reader.readexactly(PREFIX_BYTES))
            frame = read_frame(await self._reader.readexactly(header), await self._reader.readexactly(body))
            self._quiet = 0.0
            # An answer to a verb whose caller was cancelled has an older number, and must not pass for the next one's.
            if frame.header.get("number") == self._number and self._answer is not None and not self._answer.done():
                self._answer.set_result(frame)

    async def _gone(self, verb: str) -> NoReturn:
        broken = None if self._listening.cancelled() else self._listening.exception()
        said = await self.child.last_words()
        why = str(broken) if isinstance(broken, EtudeError) else "the connection to the learner is closed"
        raise EtudeError(f"{said or why} (in {verb})") from None


async def launch_learner(
    spec: LearnerSpec,
    *,
    log: Path | None = None,
    deadline: float = 120.0,
    verb_deadline: float = 600.0,
    placement: Placement | None = None,
) -> LearnerClient:
    """Starts a learner process that trains a model and shares its weights at the spec's board; `close` ends it.

    `placement` says where; without one it is started beside this process.
    """
    arguments, leaves = (json.dumps(to_json(spec)),), (spec.board,)
    if spec.batches is not None:
        shutil.rmtree(spec.batches, ignore_errors=True)  # of a run that was killed
    child: Running
    if placement is None:
        child = await start("learner", MODULE, arguments, ready=READY, log=log, deadline=deadline, leaves=leaves)
    else:
        program = Program(f"{LEARNER}-0", MODULE, arguments, READY, log, leaves)
        child = await start_ranks(placement, program, spec.ranks.ranks, max(1, spec.threads), deadline)
    try:
        async with asyncio.timeout(deadline):
            reader, writer = await _connect(child.said)
    except BaseException as failed:
        said = await child.last_words() if isinstance(failed, OSError) else None
        await child.close(0)
        if isinstance(failed, OSError):  # TimeoutError is one
            raise EtudeError(said or f"the learner process does not take a connection: {failed}") from None
        raise
    batches = spec.batches if spec.ranks.ranks > 1 else None
    return LearnerClient(child, reader, writer, verb_deadline, batches)


async def _connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if not address.startswith(FILE):
        return await asyncio.open_unix_connection(address.removeprefix("unix:"), limit=BUFFER)
    sock = await connect(read_address(Path(address.removeprefix(FILE))))
    return await asyncio.open_connection(sock=sock, limit=BUFFER)
