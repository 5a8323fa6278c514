"""Where pip inside a sandbox finds packages: the host's own pip settings, handed in as variables.

Indexes, link folders and certificates that lie on the host's disk have to be shown to the sandbox; which those are
is said here. Asks the host's pip for its settings and never contacts anything itself.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from etude.core.errors import EtudeError
from etude.forge.install.sandbox_files import last_line
from etude.sandbox.store.layers import system_folders

_SECONDS = 60.0
# What decides where packages come from; a cache, a log or a target of the host's user means nothing in a sandbox.
_TAKEN = (
    *("index-url", "extra-index-url", "find-links", "no-index", "cert", "trusted-host", "proxy", "timeout"),
    *("default-timeout", "retries", "prefer-binary", "only-binary", "no-binary", "constraint"),
)
_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "http_proxy", "https_proxy", "no_proxy")


@dataclass(frozen=True)
class PackageIndex:
    """What a sandbox needs so that its pip finds what the host's finds."""

    variables: dict[str, str]
    shows: tuple[str, ...]  # folders and files of the host


def interpreter() -> str:
    """The host's Python itself, not the virtual environment that we run in."""
    return str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}")


def shown_folders() -> tuple[str, ...]:
    """What every sandbox of an environment sees of the host: the system, and the interpreter where it lies apart."""
    return (*system_folders(), *(() if sys.base_prefix == "/usr" else (sys.base_prefix,)))


def read_index(find_links: Path | None = None) -> PackageIndex:
    """The host's settings; with `find_links` that folder of wheels alone, and no index."""
    variables = {name: os.environ[name] for name in _VARIABLES if os.environ.get(name)}
    variables |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_PROGRESS_BAR": "off"}
    if find_links is not None:
        folder = str(find_links.absolute())
        return PackageIndex(variables | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": folder}, (folder,))
    for key, value in _configured().items():
        variables[f"PIP_{key.upper().replace('-', '_')}"] = value
    places = [place for value in variables.values() for place in value.split()]
    shows = dict.fromkeys(path for place in places if (path := _on_disk(place)) and not is_shown(path))
    return PackageIndex(variables, tuple(shows))


def _configured() -> dict[str, str]:
    """Later lines count more, as pip lists them: files first, the environment last."""
    done = subprocess.run(
        [interpreter(), "-m", "pip", "config", "list"],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        raise EtudeError(f"{interpreter()} has no working pip ({last_line(done.stderr)}): install pip for it")
    found: dict[str, str] = {}
    for line in done.stdout.splitlines():
        name, _, quoted = line.partition("=")
        section, _, key = name.partition(".")
        if key.lstrip(".") in _TAKEN and section in ("global", "install", "download", ":env:"):
            try:
                found[key.lstrip(".")] = str(ast.literal_eval(quoted))
            except (ValueError, SyntaxError):
                continue
    return found


def _on_disk(place: str) -> str:
    """The folder or file of the host that a setting names, or nothing. An index is shown with its files beside it."""
    if place.startswith("file:"):
        path = Path(unquote(urlsplit(place).path))
        path = path.parent if path.name == "simple" else path
    elif place.startswith("/"):
        path = Path(place)
    else:
        return ""
    return str(path) if path.exists() else ""


def is_shown(path: str) -> bool:
    """Whether every sandbox sees this path anyway."""
    return any(path == folder or path.startswith(f"{folder}/") for folder in shown_folders())
