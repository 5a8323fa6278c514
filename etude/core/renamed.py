"""Names that were changed: what was written under an old one still loads, and is written under the new one after that.
And defaults that were changed: a run that was made with the old one can be continued.

One table for each place where a name is kept on disk. An old name beside its new one is refused, as nobody could say
which of the two is meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from etude.core.errors import EtudeError

COMPONENTS: Final = {"supply": "curriculum", "honest": "hack_penalty"}  # `use = "..."` of a recipe
SETTINGS: Final = {"registers": "prompt_styles"}  # of components
FACTS: Final = {"register": "prompt_style"}  # [metadata.etude] of task.toml

# Defaults of settings, (before, now), where the new one trains the same: a recipe that is recorded with the one goes on
# with the other. `truncate` is what `auto` means for every algorithm that took it; `rl.monitor` changes what is logged.
DEFAULTS: Final[Mapping[str, tuple[Any, Any]]] = {
    "rl.correction": ("truncate", "auto"),
    "rl.monitor": (
        [{"use": "tool_errors"}],
        [{"use": "tool_errors"}, {"use": "questions"}, {"use": "thinking_in_comments"}],
    ),
}


def current(data: Mapping[str, Any], renamed: Mapping[str, str], where: str) -> dict[str, Any]:
    """The same table with its keys as they are called now."""
    for old, new in renamed.items():
        if old in data and new in data:
            raise EtudeError(f"{where} has both {old} and {new}, which is its name now: keep {new}")
    return {renamed.get(key, key): value for key, value in data.items()}
