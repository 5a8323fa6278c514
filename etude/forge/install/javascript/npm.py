"""Where npm inside a sandbox finds packages: the host's own npm settings, handed in as variables; and one package.

Tokens and passwords are not handed in: whoever builds inside could read them. What a package's archive holds is taken
out of a sandbox as plain files, and nothing of it has run by then.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from etude.core.errors import EtudeError
from etude.forge.install.fetch_package import UNPACK
from etude.forge.install.package_index import PackageIndex, interpreter, shown_folders
from etude.forge.install.rules.missing_packages import last_error
from etude.sandbox.base import SandboxLimits, Snapshot
from etude.sandbox.hosts import open_host
from etude.sandbox.store.layers import Store

NAME: Final = re.compile(r"(?:@[a-z0-9][\w.-]*/)?[a-z0-9][\w.-]*", re.IGNORECASE)
VERSION: Final = re.compile(r"\d+\.\d+\.\d+[\w.+-]*")
_SECONDS: Final = 300.0
_LIMITS: Final = SandboxLimits(memory=2 << 30, disk=2 << 30)
# What decides where packages come from.
_TAKEN: Final = ("registry", "cafile", "proxy", "https-proxy", "noproxy", "strict-ssl", "before")
_QUIET: Final = {
    "npm_config_audit": "false",
    "npm_config_fund": "false",
    "npm_config_update_notifier": "false",
    "npm_config_progress": "false",
    "npm_config_yes": "false",
    "npm_config_omit_lockfile_registry_resolved": "true",
}


def node() -> Path:
    """The host's node itself."""
    found = shutil.which("node")
    if found is None:
        raise EtudeError("a JavaScript repository needs node (20 or newer) and npm, and there is no node here")
    return Path(found).resolve()


def read_npm() -> PackageIndex:
    """The host's settings, and what of the host's disk they need."""
    node()
    program = shutil.which("npm")
    if program is None:
        raise EtudeError("a JavaScript repository is installed by npm, and there is no npm here")
    done = subprocess.run(
        [program, "config", "list", "--json"], capture_output=True, text=True, timeout=60.0, stdin=subprocess.DEVNULL
    )
    try:
        settings = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise EtudeError(f"{program} does not tell its settings ({last})") from None
    variables = dict(_QUIET)
    for key in _TAKEN:
        value = settings.get(key)
        if value is not None and value != "" and "_auth" not in key:
            said = str(value).lower() if isinstance(value, bool) else str(value)
            variables[f"npm_config_{key.replace('-', '_')}"] = said
    named = [variables.get("npm_config_cafile", ""), os.environ.get("NODE_EXTRA_CA_CERTS", "")]
    places = [*filter(None, named), str(node()), *([str(Path(program).resolve().parents[1])])]
    covered = shown_folders()
    shows = [path for path in places if not any(path.startswith(f"{folder}/") for folder in covered)]
    return PackageIndex(variables, tuple(dict.fromkeys(path for path in shows if Path(path).exists())))


async def fetch(name: str, version: str, store: Store) -> tuple[Snapshot, str]:
    """The changes of a sandbox that holds the package's tree at /fetched/tree, and the version that came."""
    index = read_npm()
    wanted = f"{name}@{version}" if version else name
    async with await open_host("local", store) as host:
        layer = host.store.add_files({}, shows=(*shown_folders(), *index.shows))
        async with await host.start([layer], limits=_LIMITS, network=True, env=index.variables) as sandbox:
            await sandbox.run(["mkdir", "-p", "/fetched/sdist"])
            command = [
                "npm",
                "pack",
                "--silent",
                "--ignore-scripts",
                "--pack-destination",
                "/fetched/sdist",
                "--",
                wanted,
            ]
            got = await sandbox.run(command, timeout=_SECONDS)
            said = (got.stdout + b"\n" + got.stderr).decode("utf-8", "replace")
            if not got.ok:
                why = "it took too long" if got.timed_out else last_error(said)
                raise EtudeError(f"the package {wanted} cannot be fetched by npm: {why}")
            opened = await sandbox.run([interpreter(), "-I", "-c", UNPACK], timeout=_SECONDS)
            if not opened.ok:
                raise EtudeError(f"the archive of {wanted} cannot be unpacked")
            await sandbox.run(["rm", "-rf", "/fetched/sdist", "/home/agent/.npm"])
            archive = opened.stdout.decode("utf-8", "replace").strip().removesuffix(".tgz")
            came = archive.removeprefix(name.replace("@", "").replace("/", "-") + "-")
            return await sandbox.snapshot(), came if VERSION.fullmatch(came) else ""
