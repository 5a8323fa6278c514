"""A vLLM server as a child process of a run: `python -m etude.cluster.vllm_server SPEC ...`.

Starts vLLM in its own environment, says when it answers, and ends with it: when vLLM ends, this ends; when this is
told to stop, is killed, or loses its parent, vLLM ends. So a supervisor sees one process, as for our own engine.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import signal
import socket as sockets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from etude.cluster.vllm import READY, command, environment, link_weights
from etude.core import child_process as child
from etude.core.settings import EngineSettings

LOOK = 0.2  # seconds between two looks whether the server answers
END = 20.0  # seconds that vLLM has to end by itself
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def _end_with_parent() -> None:
    """In vLLM's process, before it is vLLM: the kernel tells it when this one dies, in whatever way."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def answers(path: Path) -> bool:
    """Whether the server at a local socket says that it is well."""
    with sockets.socket(sockets.AF_UNIX) as tried:
        tried.settimeout(5)
        try:
            tried.connect(str(path))
            tried.sendall(b"GET /health HTTP/1.0\r\nHost: vllm\r\n\r\n")
            return tried.recv(64).split(b" ")[1:2] == [b"200"]
        except OSError:
            return False


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m etude.cluster.vllm_server", description="Serve a model by vLLM.")
    parser.add_argument("spec", help="JSON object, see vllm.vllm_program")
    child.add_arguments(parser)
    options = parser.parse_args()
    spec = json.loads(options.spec)
    settings, device = EngineSettings(**spec["settings"]), spec["device"]
    if options.parent is not None:
        child.die_with(options.parent, [path for path in (options.socket, options.folder) if path is not None])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    folder = Path(tempfile.mkdtemp(prefix="vllm-"))
    link_weights(Path(spec["model"]), folder)
    line = command(folder, settings, python=spec["python"], device=device, socket=options.socket)
    variables = os.environ | environment(device, spec["threads"])
    # What it prints is the log's: whoever started this reads one line of ours.
    server = subprocess.Popen(line, env=variables, stdout=sys.stderr, preexec_fn=_end_with_parent)
    try:
        until = time.monotonic() + spec["seconds"]
        while not answers(options.socket):
            if server.poll() is not None:
                return server.returncode or 1
            if time.monotonic() > until:
                print(f"error: vLLM did not answer within {spec['seconds']:g} s", file=sys.stderr)
                return 2
            time.sleep(LOOK)
        print(READY, f"unix:{options.socket}", flush=True)
        return server.wait() or 1  # it serves until it is told to end
    finally:
        if server.poll() is None:
            server.terminate()
            try:
                server.wait(END)
            except subprocess.TimeoutExpired:
                server.kill()
        child.remove([options.socket])
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
