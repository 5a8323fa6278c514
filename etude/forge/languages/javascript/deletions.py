"""Features deleted from JavaScript: bodies, whole functions, or both over several files.

Bodies leave what stands before them, comments included. A function goes whole where nothing that stays mentions its
name but what exports it: entries of an exported object, `exports.f = f`, `export { f }`; those are cleaned. Knows the
code; runs nothing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from etude.forge.languages.javascript.repository import JavaScriptRepository
from etude.forge.languages.javascript.source import JavaScriptFile, ScriptDefinition
from etude.forge.languages.python.source import Edit
from etude.forge.origins.deletion.propose import WHOLE
from etude.forge.steps.candidate import Candidate, RemovedCode
from etude.forge.steps.choose_functions import Cut, choose
from etude.tasks.javascript.functions import WHOLE_MODULE
from etude.tasks.javascript.parsing import text, walk

if TYPE_CHECKING:
    from tree_sitter import Node


def deletions(world: JavaScriptRepository, rng: random.Random) -> Iterator[Candidate]:
    """Candidates in the order in which they should be tried."""
    for cut in choose(world, rng):
        made = delete(world, cut, whole=rng.random() < WHOLE)
        if made is not None:
            yield made


def delete(world: JavaScriptRepository, cut: Cut[ScriptDefinition], *, whole: bool) -> Candidate | None:
    """The candidate without these functions; None where the result would not be JavaScript."""
    edits: dict[str, list[Edit]] = {}
    gone: set[str] = set()
    for each in cut.definitions:
        script = world.scripts[each.path]
        exports = _exports(world, each, cut) if whole else None
        if exports is not None:
            gone.add(each.id)
            edits.setdefault(each.path, []).extend([script.without(each.defined.statement), *exports])
        else:
            edits.setdefault(each.path, []).append(script.without_body(each))
    changes: dict[str, bytes | None] = {}
    for path, wanted in edits.items():
        changes[path] = world.scripts[path].edited(wanted)
        if JavaScriptFile.read(path, changes[path] or b"") is None:
            return None
    pieces = tuple(_piece(world, each, gone=each.id in gone) for each in cut.definitions)
    how = "slice" if cut.files > 1 else "symbols" if gone else "bodies"
    return Candidate("deletion", how, changes, pieces, frozenset(world.named(cut.tests)), lines=cut.lines)


def _piece(world: JavaScriptRepository, each: ScriptDefinition, *, gone: bool) -> RemovedCode:
    source = world.scripts[each.path].source(each)
    return RemovedCode(each.path, each.name, source, each.signature, each.doc, each.size, gone)


def _exports(world: JavaScriptRepository, each: ScriptDefinition, cut: Cut[ScriptDefinition]) -> list[Edit] | None:
    """The edits that make its file forget to export a function; None where something else mentions it."""
    if not each.defined.removable or each.repeated or each.name == WHOLE_MODULE:
        return None
    word = re.compile(rf"(?<![\w$]){re.escape(each.short)}(?![\w$])")
    spans = [(one.path, one.first, one.last) for one in cut.definitions]
    found: list[Edit] = []
    for path, script in world.scripts.items():
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
