"""Weights as deltas under faults: many publishes, readers that join late, crash and meet damaged objects.

    python benchmarks/reliability/delta_chain.py [--publishes 200] [--readers 3] [--s3] [--json]

A small decoder is trained with AdamW at a learning rate of 1e-6 and published in bfloat16 after each step. Readers are
processes: each follows the chain and prints the checksum of what it has. They begin late, are killed with -9 at random
and started again; one object in ten is damaged in the store (cut off, a bit changed, or gone). No reader may ever hold
weights that were not published, and each has to have the last ones at the end. With --s3 the store is a bucket of a
real S3 server on this machine (`pip install 'moto[server]'`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import torch

from etude.core.errors import EtudeError
from etude.core.policy import Version
from etude.model.checkpoint.directory import named_weights
from etude.model.config import ModelConfig
from etude.model.decoder import Decoder
from etude.model.weight_transfer.delta_chain import ChainReader, ChainWriter, DamagedObject
from etude.model.weight_transfer.deltas import digest
from etude.model.weight_transfer.object_store import open_store

LAST = 60.0  # seconds that a reader has to reach the last version once it is published


def follow(address: str) -> None:
    """A reader: prints the version and checksum of everything it takes, until it is killed."""
    reader = ChainReader(open_store(address))
    while True:
        try:
            if reader.newest() not in (None, reader.version):
                held = digest(reader.update())
                print(json.dumps({"version": str(reader.version), "digest": held}), flush=True)
        except DamagedObject as error:
            print(json.dumps({"refused": str(error)}), flush=True)
        except EtudeError as error:
            print(json.dumps({"failed": str(error)}), flush=True)
        time.sleep(0.05)


class Reader:
    """A reader process, started again when it was killed."""

    def __init__(self, address: str, log: Path) -> None:
        self.address, self.log = address, log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as out:
            command = [sys.executable, __file__, "--follow", self.address]
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def said(self) -> list[dict[str, str]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def measure(options: argparse.Namespace, address: str, folder: Path) -> dict[str, float]:
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
    )
    decoder = Decoder(config)
    optimiser = torch.optim.AdamW(decoder.parameters(), lr=1e-6, weight_decay=0.0)
    chance, store = random.Random(options.seed), open_store(address)
    writer = ChainWriter(store, base_every=options.base_every)
    readers = [Reader(address, folder / f"reader-{number}.jsonl") for number in range(options.readers)]
    joins = {chance.randrange(options.publishes // 2): reader for reader in readers}
    truth: dict[str, str] = {}
    deltas: list[int] = []
    full = kills = damaged = repaired = 0
    try:
        for step in range(options.publishes):
            for parameter in decoder.parameters():
                parameter.grad = torch.randn_like(parameter)
            optimiser.step()
            served = {name: tensor.to(torch.bfloat16) for name, tensor in named_weights(decoder).items()}
            truth[str(Version(0, step))] = digest(served)
            base = writer.wants_base
            size = writer.publish(served, Version(0, step))
            full = max(full, size)
            if not base:
                deltas.append(size)
                if chance.random() < 0.1 and step < options.publishes - 1:
                    damage(store, f"delta/0.{step}-0", chance)
                    damaged += 1
            if step in joins:
                joins[step].start()
            running = [reader for reader in readers if reader.process is not None]
            if running and chance.random() < 0.1:
                victim = chance.choice(running)
                victim.kill()
                victim.start()
                kills += 1
            time.sleep(0.02)
        for reader in readers:
            if reader.process is None:
                reader.start()
        last, until = str(Version(0, options.publishes - 1)), time.monotonic() + LAST
        while not all(any(line.get("version") == last for line in reader.said()) for reader in readers):
            if time.monotonic() > until:
                break
            repaired += writer.repair()
            time.sleep(0.2)
    finally:
        for reader in readers:
            reader.kill()
    lines = [line for reader in readers for line in reader.said()]
    taken = [line for line in lines if "version" in line]
    return {
        "publishes": options.publishes,
        "taken": len(taken),
        "wrong": sum(truth[line["version"]] != line["digest"] for line in taken),
        "at_the_end": sum(any(line.get("version") == last for line in reader.said()) for reader in readers),
        "readers": len(readers),
        "kills": kills,
        "damaged": damaged,
        "repaired_at_rest": repaired,
        "refused": sum("refused" in line for line in lines),
        "failed": sum("failed" in line for line in lines),
        "delta_share": sum(deltas) / len(deltas) / full,
        "full_bytes": full,
    }


def damage(store: object, name: str, chance: random.Random) -> None:
    data = store.get(name)  # type: ignore[attr-defined]
    place = chance.randrange(len(data))
    how = chance.choice(("cut", "bit", "gone"))
    if how == "gone":
        store.delete(name)  # type: ignore[attr-defined]
    else:
        changed = data[:place] if how == "cut" else data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
        store.put(name, changed)  # type: ignore[attr-defined]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"publishes": 200, "readers": 3, "base-every": 20, "seed": 0, "port": 5123}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--s3", action="store_true")
    parser.add_argument("--follow", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.follow:
        follow(options.follow)
    with tempfile.TemporaryDirectory() as folder:
        server = None
        address = str(Path(folder) / "weights")
        if options.s3:
            url = f"http://127.0.0.1:{options.port}"
            os.environ |= {
                "AWS_ENDPOINT_URL": url,
                "AWS_ALLOW_HTTP": "true",
                "AWS_ACCESS_KEY_ID": "a",
                "AWS_SECRET_ACCESS_KEY": "b",
                "AWS_REGION": "us-east-1",
            }
            command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(options.port)]
            server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            address = "s3://weights/run"
            make_bucket(url)
        try:
            found = measure(options, address, Path(folder))
        finally:
            if server is not None:
                server.kill()
    for name, value in found.items():
        print(f"{name:>12}  {value:.4g}")
    if options.json:
        print(json.dumps(found))
    good = not found["wrong"] and found["at_the_end"] == found["readers"] and found["delta_share"] <= 0.05
    return 0 if good else 1


def make_bucket(url: str) -> None:
    for _ in range(100):
        try:
            urllib.request.urlopen(urllib.request.Request(f"{url}/weights", method="PUT"), timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    raise EtudeError("the S3 server did not start; pip install 'moto[server]'")


if __name__ == "__main__":
    sys.exit(main())
