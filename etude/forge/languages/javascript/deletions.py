"""Functions deleted from JavaScript: their bodies, or all of them.

Bodies leave what stands before them, comments included. A function goes whole where nothing that stays mentions its
name but what exports it: entries of an exported object, `exports.f = f`, `export { f }`; those are cleaned. Knows the
code; runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from etude.forge.languages.base import DeletedFunctions, Extent
from etude.forge.languages.edits import Edit
from etude.forge.languages.javascript.source import ScriptDefinition
from etude.tasks.javascript.functions import WHOLE_MODULE
from etude.tasks.javascript.parsing import text, walk

if TYPE_CHECKING:
    from tree_sitter import Node

    from etude.forge.languages.javascript.repository import JavaScriptRepository


def delete(
    repository: JavaScriptRepository, symbols: Sequence[ScriptDefinition], extent: Extent
) -> DeletedFunctions[ScriptDefinition]:
    """The files without these functions; whole ones go where nothing but exports mentions them."""
    edits: dict[str, list[Edit]] = {}
    gone: set[str] = set()
    for each in symbols:
        script = repository.scripts[each.path]
        exports = _exports(repository, each, symbols) if extent != "bodies" else None
        if exports is not None:
            gone.add(each.id)
            edits.setdefault(each.path, []).extend([script.without(each.defined.statement), *exports])
        else:
            edits.setdefault(each.path, []).append(script.without_body(each))
    changes = {path: repository.scripts[path].edited(of_file) for path, of_file in edits.items()}
    return DeletedFunctions(changes, tuple(symbols), frozenset(gone))


def _exports(
    repository: JavaScriptRepository, each: ScriptDefinition, going: Sequence[ScriptDefinition]
) -> list[Edit] | None:
    """The edits that make its file forget to export a function; None where something else mentions it."""
    if not each.defined.removable or each.repeated or each.name == WHOLE_MODULE:
        return None
    word = re.compile(rf"(?<![\w$]){re.escape(each.short)}(?![\w$])")
    spans = [(one.path, one.first, one.last) for one in going]
    found: list[Edit] = []
    for path, script in repository.scripts.items():
        if word.search(script.text) is None:
            continue
        for node in walk(script.root):
            if node.child_count or text(node) != each.short or node.type == "comment":
                continue
            if any(path == where and first <= node.start_byte < last for where, first, last in spans):
                continue
            export = _export(node) if path == each.path else None
            if export is None:
                return None
            found.append(script.without(export))
    return found


def _export(node: Node) -> Node | None:
    """What exports a name and nothing else, where a mention of it is part of that."""
    above = node.parent
    if above is None:
        return None
    if node.type == "shorthand_property_identifier" and _is_exported(above):
        return node
    if above.type == "pair" and above.parent is not None and _is_exported(above.parent):
        return above
    if above.type == "member_expression":  # the left side of exports.f = f
        above = above.parent
    if above is not None and above.type == "assignment_expression":
        left, right = above.child_by_field_name("left"), above.child_by_field_name("right")
        exported = re.fullmatch(r"(?:module\.)?exports\.[\w$]+", text(left)) is not None
        statement = above.parent
        plain = right is not None and right.type == "identifier"
        if exported and plain and statement is not None and statement.type == "expression_statement":
            return statement
    return None


def _is_exported(node: Node) -> bool:
    """Whether an object is what the module exports."""
    above = node.parent
    return (
        node.type == "object"
        and above is not None
        and above.type == "assignment_expression"
        and text(above.child_by_field_name("left")) in (WHOLE_MODULE, "exports")
    )
