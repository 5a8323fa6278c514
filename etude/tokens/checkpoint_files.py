"""The files of a checkpoint that say how its tokens are used: tokenizer, chat templates, special tokens, ends of turn.

Read once and kept as they are, so that a model trained here is saved with exactly what it came with. Knows neither what
a template writes nor what a tokenizer makes of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.core.errors import EtudeError
from etude.tokens import tiktoken_ranks as ranks

MORE_TEMPLATES = "additional_chat_templates"
TOKENIZER = "tokenizer.json"
KEPT = (
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "vocab.json",
    "merges.txt",
    ranks.FILE,
)
LARGEST = 256 << 20  # bytes of one file
SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class TokenFiles:
    directory: Path
    data: dict[str, bytes]  # by name, as on disk
    templates: dict[str, str]  # by name; most checkpoints have only `default`
    special: dict[str, str]  # `bos_token` and the like, for templates
    end_ids: tuple[int, ...]  # what ends a turn, as far as the files say

    @classmethod
    def read(cls, directory: Path) -> TokenFiles:
        folder = directory / MORE_TEMPLATES
        more = sorted(folder.glob("*.jinja")) if folder.is_dir() else []
        paths = [*(directory / name for name in KEPT), *more]
        try:
            data = {str(path.relative_to(directory)): _bytes(path) for path in paths if path.is_file()}
        except OSError as error:
            raise EtudeError(f"cannot read the tokenizer in {directory}: {error.strerror}") from None
        config = _json(directory, data, "tokenizer_config.json")
        if ranks.FILE in data and TOKENIZER not in data:
            data[TOKENIZER] = ranks.convert_ranks(data[ranks.FILE], config, str(directory))
        special = _special(_json(directory, data, "special_tokens_map.json") | config)
        return cls(directory, data, _templates(directory, data, config), special, _end_ids(directory, data))

    def write(self, directory: Path) -> None:
        try:
            for name, data in self.data.items():
                target = directory / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
        except OSError as error:
            raise EtudeError(f"cannot write the tokenizer to {directory}: {error.strerror}") from None


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise EtudeError(f"{path} is larger than {LARGEST >> 20} MiB: it is not what its name says")
    return data


def _json(directory: Path, data: dict[str, bytes], name: str) -> dict[str, Any]:
    if name not in data:
        return {}
    try:
        value = json.loads(data[name])
    except (ValueError, RecursionError) as error:
        raise EtudeError(f"{directory / name} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise EtudeError(f"{directory / name} must hold a JSON object")
    return value


def _templates(directory: Path, data: dict[str, bytes], config: dict[str, Any]) -> dict[str, str]:
    """Where a checkpoint may keep its chat templates, the newest place first."""
    found: dict[str, str] = {}
    templates = config.get("chat_template") or _json(directory, data, "chat_template.json").get("chat_template")
    if isinstance(templates, str):
        found["default"] = templates
    elif isinstance(templates, list):
        for one in templates:
            if isinstance(one, dict) and isinstance(one.get("template"), str):
                found[str(one.get("name", "default"))] = one["template"]
    elif templates is not None:
        raise EtudeError(f"{directory / 'tokenizer_config.json'}: chat_template must be text or a list of named ones")
    for name, text in data.items():
        if name.endswith(".jinja"):
            found["default" if name == "chat_template.jinja" else Path(name).stem] = text.decode("utf-8", "replace")
    return found


def _special(config: dict[str, Any]) -> dict[str, str]:
    found = {}
    for name in SPECIAL:
        value = config.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            found[name] = value
    return found


def _end_ids(directory: Path, data: dict[str, bytes]) -> tuple[int, ...]:
    value = _json(directory, data, "generation_config.json").get("eos_token_id")
    ids = value if isinstance(value, list) else [value]
    return tuple(one for one in ids if isinstance(one, int))
