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
from etude.forge.install.fetch_package import Fetched, fetch_archive
from etude.forge.install.pip_settings import PackageIndex, is_shown
from etude.forge.install.sandbox_files import last_line
from etude.sandbox.base import CommandResult, Sandbox
from etude.sandbox.store.layers import Store

NAME: Final = re.compile(r"(?:@[a-z0-9][\w.-]*/)?[a-z0-9][\w.-]*", re.IGNORECASE)
VERSION: Final = re.compile(r"\d+\.\d+\.\d+[\w.+-]*")
_SECONDS: Final = 300.0
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
        raise EtudeError(f"{program} does not tell its settings ({last_line(done.stderr)})") from None
    variables = dict(_QUIET)
    for key in _TAKEN:
        value = settings.get(key)
        if value is not None and value != "" and "_auth" not in key:
            said = str(value).lower() if isinstance(value, bool) else str(value)
            variables[f"npm_config_{key.replace('-', '_')}"] = said
    named = [variables.get("npm_config_cafile", ""), os.environ.get("NODE_EXTRA_CA_CERTS", "")]
    places = [*filter(None, named), str(node()), str(Path(program).resolve().parents[1])]
    shows = [path for path in places if Path(path).exists() and not is_shown(path)]
    return PackageIndex(variables, tuple(dict.fromkeys(shows)))


async def fetch_npm_package(name: str, version: str, store: Store) -> Fetched:
    """The archive that npm's index has of a package."""
    spec = f"{name}@{version}" if version else name

    async def download(sandbox: Sandbox) -> CommandResult:
        await sandbox.run(["mkdir", "-p", "/fetched/sdist"])
        command = ["npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", "/fetched/sdist", "--", spec]
        return await sandbox.run(command, timeout=_SECONDS)

    snapshot, archive = await fetch_archive(f"the npm package {spec}", download, read_npm(), store)
    came = archive.removesuffix(".tgz").removeprefix(name.replace("@", "").replace("/", "-") + "-")
    return snapshot, came if VERSION.fullmatch(came) else ""
