"""An engine that is lent to a training run: announced in the run's folder, and given back when its rollouts have left.

It reads the run's weights from `cluster.weights` and serves nobody else meanwhile. Ctrl-C or SIGTERM asks for it back:
a marker beside its address says so, the run sends its rollouts elsewhere (`cluster/elastic.py`), and the process ends
when nothing has been asked of it for a while. If it is killed instead, the run notices that it does not answer.
"""

from __future__ import annotations

import os
import socket as sockets
import tempfile
from pathlib import Path

from etude.core.errors import EtudeError
from etude.core.recipe import Recipe
from etude.core.tcp_address import Announced
from etude.serve.messages import GIVE_BACK, LENT, UNKNOWN
from etude.serve.server import serve


def lend(model: Path, run: Path, recipe: Recipe, *, device: str, host: str) -> None:
    """Serves the run until it is asked back. `recipe` is the run's; the model must have the shape of the run's own."""
    from etude.model.weight_transfer.receive import open_source

    chain = recipe.cluster.weights
    if not chain:
        raise EtudeError(f"{run} shares its weights in memory: only a run with cluster.weights can borrow an engine")
    if "://" not in chain and not Path(chain).expanduser().is_absolute():
        raise EtudeError(f"cluster.weights of {run} is {chain!r}; an engine elsewhere needs a whole path or an address")
    folder = run.absolute() / "rl" / LENT
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{sockets.gethostname()}-{os.getpid()}"
    announced = Announced(folder / name, host, f"{UNKNOWN}.{os.getpid()}")
    try:
        with tempfile.TemporaryDirectory(prefix="lend-") as place:
            serve(
                model,
                recipe.engine,
                device=device,
                socket=Path(place) / "engine",
                weights=open_source(None, chain, 0.9 * recipe.rl.engine_seconds),
                version=UNKNOWN,
                announced=announced,
                give_back=folder / f"{name}{GIVE_BACK}",
            )
    finally:
        for left in (folder / name, folder / f"{name}{GIVE_BACK}"):
            left.unlink(missing_ok=True)
