"""The languages that tasks can be made of, by what runs their tests. A new one is a folder here and a line below."""

from __future__ import annotations

from typing import Any, Final

from etude.forge.environments.environment import Environment
from etude.forge.languages.base import Repository
from etude.forge.languages.javascript.repository import JavaScriptRepository
from etude.forge.languages.python.repository import PythonRepository

LANGUAGES: Final[dict[str, type[Repository[Any]]]] = {
    "pytest": PythonRepository,
    "unittest": PythonRepository,
    "node": JavaScriptRepository,
}


def language_of(environment: Environment) -> type[Repository[Any]]:
    return LANGUAGES[environment.suite.kind]
