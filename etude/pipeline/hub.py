"""Models by their name on the Hugging Face hub (`OWNER/NAME`, `OWNER/NAME@REVISION`): downloaded once, then cached.

The cache is that of `huggingface_hub`, shared with everything else on the machine ($HF_HOME). Only weights in
safetensors and text files are fetched: a pickle is never downloaded. What is in the cache needs no network.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from etude.core.errors import EtudeError

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
CONFIG = "config.json"
EXTRA = "pip install 'etude[hub]'"
SECONDS = 10.0  # for one answer about a file; the download itself has no end but its own


def is_hub_name(name: str) -> bool:
    """Whether this reads as OWNER/NAME and is nothing on this disk."""
    return bool(_NAME.fullmatch(name)) and not Path(name).exists() and not Path(name.partition("/")[0]).is_dir()


def download(name: str) -> Path:
    """The folder of the model with this name: from the cache, or else from the hub."""
    return Path(_ask(name, _complete, list(FILES)))


def download_config(name: str) -> Path:
    """The folder with the model's config.json alone: enough to plan with, and a few kilobytes."""
    return Path(_ask(name, lambda folder: (folder / CONFIG).is_file(), [CONFIG]))


def _complete(folder: Path) -> bool:
    """Whether weights and tokenizer are there: a download that was cut off leaves a folder that lacks some."""
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        weights = {folder / str(name) for name in index["weight_map"].values()}
    except FileNotFoundError:
        weights = {folder / "model.safetensors"}
    except (ValueError, KeyError, AttributeError):
        return False
    tokenizer = any((folder / name).exists() for name in ("tokenizer.json", "tokenizer.model", "tiktoken.model"))
    return tokenizer and all(file.exists() for file in weights)


def _ask(name: str, complete: Callable[[Path], bool], files: list[str]) -> str:
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        raise EtudeError(
            f"{name} is a name on the Hugging Face hub, which needs one more package: {EXTRA}; "
            "or give a folder that holds the model"
        ) from None
    repository, _, revision = name.partition("@")
    given: dict[str, Any] = {"repo_id": repository, "revision": revision or None, "allow_patterns": files}
    given["etag_timeout"] = SECONDS
    try:
        # What is cached needs no network.
        cached = str(snapshot_download(**given, local_files_only=True))
        if complete(Path(cached)):
            return cached
    except (errors.LocalEntryNotFoundError, errors.EntryNotFoundError, FileNotFoundError):
        pass
    try:
        # Offline the library gives back whatever part of a model it has.
        if complete(Path(found := str(snapshot_download(**given)))):
            return found
        reason = "only a part of it is there"
    except errors.GatedRepoError:
        raise EtudeError(f"{name} is gated: accept its licence on the hub, then run `hf auth login`") from None
    except errors.RepositoryNotFoundError:
        raise EtudeError(f"there is no folder {name} here, and no model of this name on the Hugging Face hub") from None
    except errors.RevisionNotFoundError:
        raise EtudeError(f"{repository} has no revision {revision!r} on the Hugging Face hub") from None
    except Exception as error:
        # The library and what it stands on raise a dozen kinds when there is no network.
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
    raise EtudeError(
        f"{name} is not in the cache, and the Hugging Face hub cannot be reached ({reason}); connect this machine, "
        f"or run `hf download {repository}` on another and give the folder"
    )
