"""Components: small classes that a recipe names, each with its own settings.

`use = "folder"` takes one from a room's table (name -> "module:Class", imported only when asked for), and
`use = "./mine.py:Mine"` takes the user's own from a file. A component class has a pydantic model `Settings` and
is built from an instance of it: `Mine(Mine.Settings(...))`. Knows no kind of component by name.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pydantic

from etude.core.errors import EtudeError
from etude.core.recipe import hint, validate
from etude.core.renamed import COMPONENTS, SETTINGS, current

# Where a room reaches a higher one: by these names and by no others (tests/core/test_upward_names.py).
UPWARD: Final = {
    "corpus source katas": "etude.forge.katas.training_text:KataCode",
    "corpus source mends": "etude.forge.ladder.mend_text:MendText",
    "policy attack": "etude.forge.gates.attacks.table:attack_script",
}


def build(kind: str, spec: Mapping[str, Any], table: Mapping[str, str], where: str) -> Any:
    """The component of a recipe's table, such as `{"use": "read", "max_lines": 100}`."""
    use = spec.get("use")
    if not isinstance(use, str):
        raise EtudeError(f"{where} must say which {kind} it is: use = {'|'.join(table)} or ./file.py:Class")
    return resolve(kind, use, {key: value for key, value in spec.items() if key != "use"}, table, where)


def resolve(kind: str, use: str, settings: Mapping[str, Any], table: Mapping[str, str], where: str = "") -> Any:
    """The component called `use`, built from validated settings.

    `kind` names it in errors ("corpus source"), `where` is the dotted path of its table in the recipe.
    """
    found = load_class(kind, use, table)
    settings = current(settings, SETTINGS, where or kind)
    model = getattr(found, "Settings", None)
    if not (isinstance(model, type) and issubclass(model, pydantic.BaseModel)):
        raise EtudeError(f"{kind} {use} needs a nested class Settings(pydantic.BaseModel) that says what it takes")
    known = list(model.model_fields)
    for key in settings:
        if key not in known:
            dotted = [f"{where}.{name}".removeprefix(".") for name in known]
            wrong = f"{where}.{key}".removeprefix(".")
            takes = ", ".join(known) or "no settings"
            raise EtudeError(f"unknown key {wrong}{hint(wrong, dotted) or f'; {kind} {use} takes {takes}'}")
    return found(validate(pydantic.TypeAdapter(model), settings, where))


def load_class(kind: str, use: str, table: Mapping[str, str]) -> Any:
    """The class behind `use`, not yet built."""
    if ".py:" in use:
        file, _, name = use.rpartition(":")
        module = load_file(kind, Path(file))
        found = getattr(module, name, None)
        if not isinstance(found, type):
            classes = [key for key, value in vars(module).items() if isinstance(value, type)]
            raise EtudeError(f"{file} has no class {name}{hint(name, classes)}")
        return found
    # Recipes made before a renaming name components by their old names.
    use = use if use in table else COMPONENTS.get(use, use)
    if use not in table:
        near = hint(use, list(table)) or f"; known: {', '.join(table)}."
        raise EtudeError(f"no {kind} is called {use!r}{near} Or give your own as ./file.py:Class")
    return load_named(table[use])


def load_named(name: str) -> Any:
    """What "module:attribute" names, imported when it is asked for."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def load_file(kind: str, file: str | Path) -> ModuleType:
    """A user's Python file as a module; the same file is the same module."""
    path = Path(file).resolve()
    if not path.is_file():
        raise EtudeError(f"the {kind} file {path} does not exist")
    # The path is in the name, so that two files called mine.py do not answer for each other.
    name = f"etude_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise EtudeError(f"the {kind} file {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses and pydantic look their own module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = lines[-1] if lines else getattr(error, "lineno", None)
        at = f" at line {line}" if line else ""
        raise EtudeError(f"{path} cannot be imported{at}: {type(error).__name__}: {error}") from error
    return module
