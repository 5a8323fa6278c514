"""Typed recipes: TOML files, dotted overrides, and sentences about what is wrong with them.

A recipe is the sections of settings.py. It is read from a built-in name or a file, may extend another one, and is
changed from the command line (`pretrain.steps=50`). Unknown keys are refused with the nearest known one, wrong
types with the dotted path. Knows nothing about what the settings do, and never imports torch.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import pydantic
import tomli_w
from pydantic_core import ErrorDetails

from etude.core import settings
from etude.core.cluster_settings import ClusterSettings
from etude.core.errors import EtudeError
from etude.core.rl_settings import RLSettings
from etude.core.settings import setting


@dataclass(frozen=True)
class Recipe:
    """Everything that a run follows from."""

    about: str = setting("", "what this recipe is for, in one line")
    requires: list[str] = setting([], "keys that whoever uses this recipe has to give")
    run: settings.RunSettings = setting(settings.RunSettings(), "the machine and the run as a whole")
    tokens: settings.TokensSettings = setting(settings.TokensSettings(), "the tokenizer")
    model: settings.ModelSettings = setting(settings.ModelSettings(), "the decoder")
    corpus: settings.CorpusSettings = setting(settings.CorpusSettings(), "the training text")
    pretrain: settings.PretrainSettings = setting(settings.PretrainSettings(), "continued pretraining")
    mtp: settings.MtpSettings = setting(settings.MtpSettings(), "heads that predict further ahead, for speculation")
    extend: settings.ExtendSettings = setting(settings.ExtendSettings(), "longer sequences")
    sft: settings.SftSettings = setting(settings.SftSettings(), "supervised fine-tuning")
    engine: settings.EngineSettings = setting(settings.EngineSettings(), "the sampler")
    cluster: ClusterSettings = setting(ClusterSettings(), "where things run")
    endpoint: settings.EndpointSettings = setting(
        settings.EndpointSettings(), "a hosted model as a policy, for `etude rollout`"
    )
    harness: settings.HarnessSettings = setting(settings.HarnessSettings(), "the agent")
    grader: settings.GraderSettings = setting(settings.GraderSettings(), "the grader")
    reward: settings.RewardSettings = setting(settings.RewardSettings(), "what a rollout is worth")
    audit: settings.AuditSettings = setting(settings.AuditSettings(), "the audit of rollouts")
    demos: settings.DemosSettings = setting(settings.DemosSettings(), "demonstrations")
    rl: RLSettings = setting(RLSettings(), "reinforcement learning")
    bench: settings.BenchSettings = setting(settings.BenchSettings(), "the benchmark before and after")
    base: settings.BaseSettings = setting(
        settings.BaseSettings(), "evaluations that need no agent, for `etude bench base`"
    )


# Reading


def load(source: str | None, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe with this built-in name or path (None: all defaults), changed by overrides like `run.seed=1`."""
    data = _read(source, ()) if source is not None else {}
    for override in overrides:
        _override(data, override)
    return from_dict(data)


def builtin() -> dict[str, str]:
    """Name -> TOML text of each recipe that comes with the package."""
    folder = resources.files("etude") / "recipes"
    files = [file for file in folder.iterdir() if file.name.endswith(".toml")]
    return {file.name.removesuffix(".toml"): file.read_text() for file in sorted(files, key=lambda f: f.name)}


def from_dict(data: Mapping[str, Any]) -> Recipe:
    """Validated settings: every key known, every value of its type and within its bounds."""
    # Before the types: a misspelt key would else be dropped in silence.
    for key in _unknown(Recipe, data):
        raise EtudeError(f"unknown key {key}{hint(key, known_keys())}")
    recipe = validate(_adapter(), _filled(Recipe(), data))
    _check_bounds(recipe)
    _check(recipe)
    return recipe


def changed(default: T, data: Mapping[str, Any], where: str) -> T:
    """A section of settings with these keys changed, validated as in a recipe; `where` names it in errors."""
    for key in _unknown(type(default), data):
        raise EtudeError(f"unknown key {where}.{key}")
    found = validate(pydantic.TypeAdapter(type(default)), _filled(default, data), where)
    _check_bounds(found, f"{where}.")
    return found


def _check_bounds(settings: Any, before: str = "") -> None:
    for key, value, field in leaves(settings, before):
        if isinstance(value, float) and not math.isfinite(value):
            raise EtudeError(f"{key} must be a finite number, not {value}")
        least, most = field.metadata.get("least"), field.metadata.get("most")
        if least is not None and value < least:
            raise EtudeError(f"{key} is {value}, but it must be at least {least}")
        if most is not None and value > most:
            raise EtudeError(f"{key} is {value}, but it must be at most {most}")


def _filled(default: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` with what it leaves out of tables that it names: a stage's optimiser has other defaults than an optimiser.

    Without it `sft.optim.muon_lr=1e-3` alone would set the other rate to that of a new model, five times too high.
    """
    filled = dict(data)
    for field in dataclasses.fields(default):
        value, given = getattr(default, field.name), data.get(field.name)
        if dataclasses.is_dataclass(value) and isinstance(given, Mapping):
            filled[field.name] = _filled(value, given)
    return dataclasses.asdict(default) | filled


@functools.cache
def _adapter() -> pydantic.TypeAdapter[Recipe]:
    """Made once: reading the types of some 300 settings takes five times as long as checking a recipe with them."""
    return pydantic.TypeAdapter(Recipe)


def missing(recipe: Recipe) -> list[str]:
    """The keys that the recipe asks its user for and that are empty."""
    return [key for key in recipe.requires if not _at(to_dict(recipe), key)]


def _at(data: Any, key: str) -> Any:
    for part in key.split("."):
        data = data.get(part) if isinstance(data, Mapping) else None
    return data


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """Plain data, as TOML holds it."""
    return dataclasses.asdict(recipe)


def to_toml(recipe: Recipe, explain: bool = False) -> str:
    """The resolved recipe as TOML; `explain` adds each setting's one line."""
    if not explain:
        return tomli_w.dumps(to_dict(recipe))
    return "\n".join(_explained(recipe, ""))


def leaves(section: Any, prefix: str = "") -> Iterator[tuple[str, Any, dataclasses.Field[Any]]]:
    """(dotted key, value, field) of every setting."""
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", value, field


def known_keys() -> list[str]:
    """Every dotted key, sections included."""
    keys = [key for key, _, _ in leaves(Recipe())]
    return sorted({key[:end] for key in keys for end in [*(i for i, c in enumerate(key) if c == "."), len(key)]})


# Sentences about mistakes; component.py uses them too


def hint(key: str, known: Sequence[str]) -> str:
    """`; did you mean ...?` for the known key nearest to this one, or nothing."""
    section, dot, leaf = key.rpartition(".")
    beside = [other for other in known if other.rpartition(".")[0] == section]
    near = difflib.get_close_matches(leaf, [other.rpartition(".")[2] for other in beside], 1)
    near = [f"{section}{dot}{name}" for name in near]
    near = near or [other for other in known if other.rpartition(".")[2] == leaf]  # right name, wrong section
    return f"; did you mean {near[0]}?" if near else ""


T = TypeVar("T")


def validate(adapter: pydantic.TypeAdapter[T], data: Mapping[str, Any], where: str = "") -> T:
    """`data` as the adapter's type, or a sentence that names the dotted path of each wrong value."""
    try:
        # JSON mode is strict where TOML is (text is never a number) and lenient where it must be (an array is a tuple).
        return adapter.validate_json(json.dumps(data, default=str), strict=True)
    except pydantic.ValidationError as error:
        problems = [_sentence(detail, where) for detail in error.errors(include_url=False)]
        raise EtudeError("; ".join(problems[:3])) from None


def first_problem(error: pydantic.ValidationError) -> str:
    """Where the first wrong value stands and what is wrong with it, for files that people did not write by hand."""
    detail = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}".removeprefix(": ")


_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a table",
    "dataclass_type": "a section of keys",
    "model_type": "a section of keys",
}


def _sentence(detail: ErrorDetails, where: str) -> str:
    key = where + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"])
    key = key.removeprefix(".")
    if detail["type"] == "missing":
        return f"{key} is missing"
    given = _short(detail["input"])
    if detail["type"] == "literal_error":
        return f"{key} must be one of {detail.get('ctx', {}).get('expected', '')}, not {given}"
    if detail["type"] in _EXPECTED:
        return f"{key} must be {_EXPECTED[detail['type']]}, not {given}"
    message = detail["msg"].removeprefix("Value error, ")
    return f"{key} is {given}: {message[0].lower()}{message[1:]}"


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


# Inside


def _read(source: str, readers: tuple[str, ...]) -> dict[str, Any]:
    """The merged tables of a recipe and of those it extends, without overrides."""
    if source in readers:
        raise EtudeError(f"recipe {source} extends itself through {' -> '.join(readers)}; remove one `extends`")
    if source.endswith(".toml") or "/" in source:
        path = Path(source)
        try:
            text = path.read_text()
        except OSError as error:
            raise EtudeError(f"cannot read the recipe {source}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise EtudeError(f"the recipe {source} is not UTF-8 text") from None
        folder = path.parent
    else:
        recipes = builtin()
        if source not in recipes:
            known = ", ".join(recipes)
            raise EtudeError(
                f"no recipe is called {source!r}{hint(source, list(recipes))}"
                f"{'' if hint(source, list(recipes)) else ';'} built in: {known}; or give the path of a .toml file"
            )
        text, folder = recipes[source], Path()
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise EtudeError(f"the recipe {source} is not valid TOML: {error}") from None
    _anchor(data, folder)
    if "extends" not in data:
        return data
    base = data.pop("extends")
    if not isinstance(base, str):
        raise EtudeError(f"extends in {source} must be text: a built-in recipe or the path of one")
    if base.endswith(".toml"):
        base = str(folder / base)
    return _merge(_read(base, (*readers, source)), data)


def _merge(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """A table changed by another; naming another component drops the settings of the one that stood there."""
    merged = dict(base) if change.get("use", base.get("use")) == base.get("use") else {}
    for key, value in change.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _anchor(value: Any, folder: Path) -> None:
    """Make `use = "./mine.py:Mine"` in a file mean the file's own folder, wherever the command is run."""
    if isinstance(value, list):
        for item in value:
            _anchor(item, folder)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key == "use" and isinstance(item, str) and ".py:" in item:
                value[key] = str((folder / item).resolve())
            else:
                _anchor(item, folder)


def _override(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals or not re.fullmatch(r"[A-Za-z_][\w.]*", key):
        raise EtudeError(f"cannot read the override {override!r}; write it as section.key=value")
    value = _value(text.strip())
    _anchor(value, Path())
    *sections, leaf = key.split(".")
    table = data
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise EtudeError(f"unknown key {key}: {section} is a value, not a section")
    if leaf == "use" and isinstance(value, str):
        named = {leaf: value}
        _anchor(named, Path())
        changed = _merge(table, named)
        table.clear()
        table.update(changed)
    else:
        table[leaf] = _merge(table[leaf], value) if isinstance(value, dict) and leaf in table else value


def _value(text: str) -> Any:
    """A TOML value; a bare word is text."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _unknown(section: type[Any], data: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    hints = get_type_hints(section)
    for key, value in data.items():
        if key not in hints:
            yield f"{prefix}{key}"
        elif isinstance(hints[key], type) and dataclasses.is_dataclass(hints[key]) and isinstance(value, dict):
            yield from _unknown(hints[key], value, f"{prefix}{key}.")


def _check(recipe: Recipe) -> None:
    """What no single value can break alone."""
    if recipe.model.depth:
        plain, shaped = type(recipe.model)(), recipe.model.shaped()
        for field in ("layers", "width", "heads", "kv_heads", "head_dim", "mlp", "kv_rank", "expert_mlp"):
            if getattr(recipe.model, field) not in (getattr(plain, field), getattr(shaped, field)):
                raise EtudeError(
                    f"model.depth = {recipe.model.depth} sets the shape, so model.{field} would not be heard; "
                    "add model.depth=0 to set the fields one by one"
                )
    for name in ("pretrain", "mtp", "extend", "sft"):
        stage = getattr(recipe, name)
        if stage.sequence > stage.micro_tokens:
            raise EtudeError(
                f"{name}.sequence is {stage.sequence} tokens, but {name}.micro_tokens holds only {stage.micro_tokens}; "
                "raise the second or lower the first"
            )
        if stage.micro_tokens > stage.batch_tokens:
            raise EtudeError(
                f"{name}.micro_tokens is {stage.micro_tokens}, more than {name}.batch_tokens = {stage.batch_tokens}"
            )
        if name != "extend" and stage.sequence > recipe.model.max_positions:
            raise EtudeError(
                f"{name}.sequence is {stage.sequence}, longer than model.max_positions = {recipe.model.max_positions}"
            )


def _explained(section: Any, prefix: str) -> Iterator[str]:
    tables = []
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            tables.append((field.name, value))
            continue
        yield f"{field.name} = {_inline(value)}  # {field.metadata['doc']}"
    for name, value in tables:
        yield f"\n# {type(value).__doc__}\n[{prefix}{name}]"
        yield from _explained(value, f"{prefix}{name}.")


def _inline(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_inline(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_inline(item)}' for key, item in value.items())}}}"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").rstrip()
