"""What all parts of a request's body have in common: fields that are known, ignored, refused or tolerated.

An unknown field of the body itself is refused, unless it is null: it would change the answer if this server knew it.
An unknown field of a message is left out with one warning in the log: clients send back whatever other servers put into
theirs.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

MOST_WARNINGS = 100  # names of unknown fields that are remembered, and warned of
_warned: set[str] = set()

IGNORED: Any = Field(None, description="Taken and not looked at.")


class RequestObject(BaseModel):
    """Types as JSON has them, no conversions, no unknown fields.

    Unknown fields are kept and looked at last, not forbidden: pydantic would make an error for each of a million.
    """

    model_config = ConfigDict(strict=True, extra="allow", json_schema_extra={"additionalProperties": False})
    tolerant: ClassVar[bool] = False  # unknown fields are left out instead of refused
    harmless: ClassVar[dict[str, list[Any]]] = {}  # values of those fields of which others are refused

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        extras = {name: field.json_schema_extra for name, field in cls.model_fields.items()}
        cls.harmless = {name: extra["enum"] for name, extra in extras.items() if isinstance(extra, dict)}  # type: ignore[misc]

    @model_validator(mode="after")
    def _only_what_is_done_here(self) -> Self:
        for name in self.harmless.keys() & self.__pydantic_fields_set__:
            value = getattr(self, name)
            # True equals 1 in Python only
            if not any(
                value == one and isinstance(value, bool) == isinstance(one, bool) for one in self.harmless[name]
            ):
                sentence = type(self).model_fields[name].description
                raise PydanticCustomError("refused", "refused", {"field": name, "sentence": sentence})
        for name, value in (self.__pydantic_extra__ or {}).items():
            if self.tolerant:
                _warn_once(type(self).__name__, name)
            elif value is not None:
                raise PydanticCustomError("unknown_field", "unknown", {"field": name})
        return self


class TolerantObject(RequestObject):
    """A part of a conversation: unknown fields are left out."""

    model_config = ConfigDict(strict=True, extra="allow", json_schema_extra={"additionalProperties": True})
    tolerant: ClassVar[bool] = True


def _warn_once(kind: str, name: str) -> None:
    if name not in _warned and len(_warned) < MOST_WARNINGS:
        _warned.add(name)
        print(f"warning: the field {name[:64]!a} of a {kind} is not known here and left out", file=sys.stderr)


def refused(sentence: str, *harmless: Any) -> Any:
    """A field whose values, other than the harmless ones, would change the meaning of the answer."""
    return Field(None, description=sentence, json_schema_extra={"enum": [None, *harmless]})


# Types of fields. Lists fail at their first wrong entry (`fail_fast`): a hostile body would otherwise make millions of
# errors, each with its own place in memory.


def whole(value: Any) -> Any:
    """JSON has one kind of number: 1.0 is whole."""
    return int(value) if type(value) is float and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(whole)]
