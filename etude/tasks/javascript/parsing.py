"""JavaScript as a syntax tree: the parser, and the few things that all readers of its tree ask.

The parser is an extra of the package: who asks for it where it is missing learns which. Positions are bytes. Knows one
text at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from etude.core.errors import EtudeError

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

ENDINGS: Final = (".js", ".cjs", ".mjs")
FUNCTIONS: Final = frozenset(
    ("function_declaration", "generator_function_declaration", "function_expression", "generator_function")
) | {"arrow_function", "method_definition"}
_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0", "\n": ""}
_ESCAPE = re.compile(r"\\(?:u\{([0-9a-fA-F]{1,6})\}|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)


@cache
def _parser() -> Parser:
    try:
        import tree_sitter
        import tree_sitter_javascript
    except ImportError:
        raise EtudeError("tasks in JavaScript need its parser: pip install 'etude[languages]'") from None
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_javascript.language()))


def require_parser() -> None:
    """Says which extra brings the parser, where it is missing."""
    _parser()


def parse(data: bytes) -> Node | None:
    """The tree's root; None for what is no JavaScript. A zero byte, which a string may hold and the parser takes for
    the end, is another sign in the texts of nodes; positions stay."""
    root = _parser().parse(data.replace(b"\0", b"\1")).root_node
    return None if root.has_error else root


def walk(node: Node) -> Iterator[Node]:
    """A node and all below it, in the order of the text."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        yield each
        waiting += reversed(each.children)


def text(node: Node | None) -> str:
    found = node.text if node is not None else None
    return found.decode("utf-8", "replace") if found is not None else ""


def inner(node: Node | None) -> list[Node]:
    """The children that say something, comments left out."""
    return [each for each in node.named_children if each.type != "comment"] if node is not None else []


def bare(node: Node | None) -> Node | None:
    """What stands in parentheses."""
    while node is not None and node.type == "parenthesized_expression":
        node = next(iter(inner(node)), None)
    return node


def string_value(node: Node) -> str | None:
    """What a string says; None for what is none, or has values put in."""
    if node.type not in ("string", "template_string") or any(
        each.type == "template_substitution" for each in node.children
    ):
        return None
    return _ESCAPE.sub(_unescaped, text(node)[1:-1])


def quoted(value: Any) -> str:
    """A value as source."""
    return json.dumps(value, ensure_ascii=False)


def _unescaped(found: re.Match[str]) -> str:
    number = found[1] or found[2] or found[3]
    if number:
        code = int(number, 16)
        return chr(code) if code <= 0x10FFFF and not 0xD800 <= code < 0xE000 else "�"
    return _ESCAPES.get(found[4], found[4])
