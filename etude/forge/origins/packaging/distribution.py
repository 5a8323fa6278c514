"""What a repository's distribution is like, found by building it in a sandbox without network, and kept.

The workspace has no copy of the metadata: sdists and builds leave some, lock files repeat the requirements.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from etude.core import durable
from etude.core.errors import EtudeError
from etude.forge.origins.packaging.build_environment import free_test_file
from etude.forge.origins.packaging.expectations import BUILT, Expectation, Facts, follows
from etude.forge.steps.context import MakeContext, Opening
from etude.sandbox.base import WORKSPACE as PLACE
from etude.sandbox.base import SandboxLimits
from etude.tasks.environment.layers import environment_variables
from etude.tasks.format.file_tree import Files

FORMAT: Final = 1  # of what is kept about a distribution
OTHER_VERSION: Final = "9.8.7"
MOST_SOURCES: Final = 4  # files that the version could come from
INFORMATION: Final = re.compile(
    r"(^|/)[^/]*\.(egg-info|dist-info)(/|$)|(^|/)(uv|poetry|pdm|Pipfile)\.lock$|(^|/)pylock\..*toml$"
)
COPY: Final = re.compile(r"(^|/)(PKG-INFO|METADATA)$")
SECONDS: Final = 400.0  # that building and looking at it may take
_LIMITS: Final = SandboxLimits(memory=2 << 30, disk=1 << 30, processes=256, cpu_seconds=600)


@dataclass(frozen=True, kw_only=True)
class BuildContext(MakeContext):
    """A repository that can be built, and what its distribution is like while nothing is broken."""

    facts: Facts
    file: str  # where the tests go
    source: Expectation | None  # that the version follows a file, where it does


async def open_build(opening: Opening) -> BuildContext:
    """Builds the repository, or reads what came of it before; an `EtudeError` where it cannot be built."""
    assert opening.building is not None
    host, environment = opening.host, opening.building
    files = without_metadata(Files.scan(opening.repo.tree))
    with host.store.scratch() as folder:
        files.write(folder / "files")
        workspace = host.store.add(folder / "files", shows=())
    context = await opening.context(environment, workspace, files)
    file = free_test_file(environment, files)
    kept = host.store.root / "environments" / f"{environment.digest[:32]}-{workspace.digest[:32]}.release.json"
    known = _read(kept)
    if known is None:
        known = await _measure(context, file)
        durable.write_whole(kept, json.dumps(known))
    # Tests that build are part of the suite now, and every gate may take as long as they do.
    slower = replace(environment, seconds=environment.seconds + known["seconds"])
    return BuildContext(
        replace(context.repository, environment=slower),
        context.base,
        workspace,
        host,
        opening.request,
        known=opening.known,
        facts=known["facts"],
        file=file,
        source=follows(*known["source"]) if known["source"] else None,
    )


def without_metadata(files: Files) -> Files:
    """The repository's files without what repeats its packaging: of metadata only name and version stay."""
    changes: dict[str, bytes | None] = {}
    for path in files:
        if INFORMATION.search(path):
            changes[path] = None
        elif COPY.search(path) and files.kind(path) != "link":
            head = files[path].partition(b"\n\n")[0].splitlines()
            kept = [line for line in head if line.startswith((b"Metadata-Version:", b"Name:", b"Version:"))]
            changes[path] = b"\n".join([*kept, b""])
    return files.replaced(changes)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        known: dict[str, Any] = json.loads(path.read_text())
        return known if known["format"] == FORMAT else None
    except (OSError, ValueError, KeyError):
        return None


async def _measure(context: MakeContext, file: str) -> dict[str, Any]:
    """What the distribution is like, each time; what takes how long; where the version comes from."""
    name = context.repository.name
    started = time.monotonic()
    first, second = [await build(context, file, {}, seed) for seed in (1, 2)]
    seconds = time.monotonic() - started
    if not first["built"]:
        raise EtudeError(f"{name} cannot be built in its environment: {first['why']}")
    if any(first[part] != second.get(part) for part in ("fields", "packed", "entry_points", "requirements")):
        raise EtudeError(f"{name} is built differently each time")
    for part in ("helps", "loads", "imports"):
        first[part] = {key: value for key, value in first[part].items() if second[part].get(key) == value}
    source = await _version_source(context, file, first["fields"]["Version"])
    return {"format": FORMAT, "facts": first, "seconds": round(seconds, 3), "source": source}


async def build(
    context: MakeContext, file: str, changes: Mapping[str, bytes | None], seed: int = 0, words: Sequence[str] = ()
) -> Any:
    """What `build_test` says in a sandbox over the workspace with these changes made."""
    environment = context.repository.environment
    env = environment_variables(environment.python, environment.env) | {"PYTHONHASHSEED": str(seed)}
    layers = [environment.layer, context.workspace]
    async with await context.host.start(layers, limits=_LIMITS, env=env) as sandbox:
        for path, data in changes.items():
            assert data is not None
            await sandbox.write(f"{PLACE}/{path}", data)
        await sandbox.write(f"{PLACE}/{file}", BUILT.read_bytes())
        done = await sandbox.run([environment.python, "-P", f"{PLACE}/{file}", *words], timeout=SECONDS)
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        return {"built": False, "why": last[:300]}


async def _version_source(context: MakeContext, file: str, version: str) -> list[str] | None:
    """The one file whose text decides which version is built."""
    mentions = re.compile(rf"version[^\n]*[\"']{re.escape(version)}[\"']", re.IGNORECASE)
    likely = [path for path, module in context.python.modules.items() if mentions.search(module.text)]
    for path in sorted(likely, key=lambda path: (path.count("/"), path))[:MOST_SOURCES]:
        words = [path, version, OTHER_VERSION]
        if await build(context, file, {}, words=words) == OTHER_VERSION:
            return words
    return None
