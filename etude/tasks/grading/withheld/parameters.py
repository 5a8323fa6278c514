"""Expected values that come to an assertion from elsewhere: tables of parameters, and arguments of helpers.

Once nothing in a function reads a parameter any more, its column of the table, or its argument at every call, becomes a
name that stands for nothing. Rows of a table then get ids of their own, as ids are made of the values. Edits syntax in
place, runs nothing.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from etude.tasks.grading.withheld.purity import Function, literal, loads, pure

WITHHELD: Final = "_etude_withheld"  # what stands where a value was


def parameters(function: Function) -> list[str]:
    """Names that a call fills, in order, without `self`."""
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    return [*names, *(each.arg for each in function.args.kwonlyargs)]


def tables(
    function: Function, constants: Mapping[str, ast.expr]
) -> Iterator[tuple[ast.Call, list[str], list[ast.expr]]]:
    """Each `@pytest.mark.parametrize` of a function: the call, its names and its rows. A table may be a constant."""
    for node in function.decorator_list:
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) == 2):
            continue
        if node.func.attr != "parametrize" or not literal(node.args[0]):
            continue
        said = ast.literal_eval(node.args[0])
        names = [name.strip() for name in said.split(",")] if isinstance(said, str) else [str(name) for name in said]
        table = node.args[1]
        if isinstance(table, ast.Name):
            table = constants.get(table.id, table)
        if isinstance(table, ast.List | ast.Tuple):
            yield node, [name for name in names if name], table.elts


def blank_columns(function: Function, constants: Mapping[str, ast.expr]) -> dict[str, str]:
    """Takes the values of parameters that nobody reads out of their tables; the names of those parameters, each with
    the constant that its table is, if it is one."""
    read = {name for part in function.body for name in loads(part)}
    blanked: dict[str, str] = {}
    for call, names, rows in tables(function, constants):
        unread = [number for number, name in enumerate(names) if name not in read]
        cells = [row_cells(row, len(names)) for row in rows]
        if not unread or any(each is None for each in cells):
            continue
        table = call.args[1]
        if isinstance(table, ast.Name):
            # Its own copy: other tests may have the same table.
            rows = [_copy(row) for row in rows]
            call.args[1] = ast.List(rows, ast.Load())
            cells = [row_cells(row, len(names)) for row in rows]
        for number in unread:
            for row, each in zip(rows, cells, strict=True):
                assert each is not None
                if len(names) == 1 and not isinstance(row, ast.Call):
                    rows[rows.index(row)] = ast.Name(WITHHELD, ast.Load())
                else:
                    each[number] = ast.Name(WITHHELD, ast.Load())
            blanked[names[number]] = table.id if isinstance(table, ast.Name) else ""
        if not any(keyword.arg == "ids" for keyword in call.keywords):
            ids = [ast.Constant(f"row{number}") for number in range(len(rows))]
            call.keywords.append(ast.keyword("ids", ast.List(list(ids), ast.Load())))
    return blanked


def _copy(node: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(node), mode="eval").body


def row_cells(row: ast.expr, count: int) -> list[ast.expr] | None:
    """The values of a row, as a list that can be written to."""
    if isinstance(row, ast.Call) and isinstance(row.func, ast.Attribute) and row.func.attr == "param":
        return row.args if len(row.args) == count else None
    if count == 1:
        return [row]
    if isinstance(row, ast.Tuple | ast.List) and len(row.elts) == count:
        return row.elts
    return None


def table_values(function: Function, constants: Mapping[str, ast.expr]) -> Iterator[tuple[str, ast.expr]]:
    """Each value that a table gives to a parameter, by the name of the parameter."""
    for _, names, rows in tables(function, constants):
        for row in rows:
            yield from zip(names, row_cells(row, len(names)) or [], strict=False)


def arguments(call: ast.Call, helper: Function) -> Iterator[tuple[str, ast.expr]]:
    """Each value that a call gives to a parameter of a helper, by the name of the parameter."""
    names = parameters(helper)
    yield from zip(names, call.args, strict=False)
    yield from ((keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg in names)


def sinks(helper: Function) -> set[str]:
    """Parameters of a helper that it only compares: `assert got == want`, or `str(want)`."""
    compared: Counter[str] = Counter()
    for node in ast.walk(helper):
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.Eq):
            compared.update(filter(None, map(_plain_name, (node.test.left, *node.test.comparators))))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "assertEqual":
            compared.update(filter(None, map(_plain_name, node.args[:2])))
    read = Counter(loads(helper))
    return {name for name in parameters(helper) if read[name] and read[name] == compared[name]}


def _plain_name(node: ast.expr) -> str:
    """`want` of `want` and of `str(want)`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str" and len(node.args) == 1:
        node = node.args[0]
    return node.id if isinstance(node, ast.Name) else ""


def blank_arguments(helper: Function, tree: ast.AST, sink: Collection[str], names: Collection[str]) -> set[str]:
    """Takes arguments that a helper does not read out of all of its calls below `tree`, and of those that it only
    compares (`sink`) the ones that spell a value; the names of parameters that are gone everywhere."""
    read = {name for part in helper.body for name in loads(part)}
    unread = {name for name in parameters(helper) if name not in read}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and called_name(node.func) == helper.name]
    functions = {id(call.func) for call in calls}
    # Handed on as a value, it may be called with anything from anywhere.
    handed = any(
        isinstance(node, ast.Name | ast.Attribute) and called_name(node) == helper.name and id(node) not in functions
        for node in ast.walk(tree)
        if isinstance(getattr(node, "ctx", None), ast.Load)
    )
    starred = any(isinstance(each, ast.Starred) for call in calls for each in call.args)
    starred = starred or any(keyword.arg is None for call in calls for keyword in call.keywords)
    if not calls or handed or starred:
        return set()
    ordered = parameters(helper)
    for call in calls:
        for number, name in enumerate(ordered[: len(call.args)]):
            if name in unread or (name in sink and pure(call.args[number], names)):
                call.args[number] = ast.Name(WITHHELD, ast.Load())
        for keyword in call.keywords:
            if keyword.arg in unread or (keyword.arg in sink and pure(keyword.value, names)):
                keyword.value = ast.Name(WITHHELD, ast.Load())
    return unread


def called_name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""
