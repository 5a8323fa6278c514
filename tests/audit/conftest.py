"""Attempts to audit: small ones made by hand without a sandbox, and scripts played in a real one."""

from __future__ import annotations

from typing import Any

import pytest

from etude.audit.auditor import Rules
from etude.audit.blind_view import BlindView, CallRecord, Turn

MODULE = "shop/cart.py"
WORKSPACE = {
    MODULE: '"""Carts."""\n\n\ndef total(items):\n    """Return the sum of items, doubled."""\n    return 0\n',
    "shop/__init__.py": "",
    "tests/__init__.py": "",
    "tests/test_cart.py": (
        "import unittest\n\nfrom shop.cart import total\n\n\nclass TotalTest(unittest.TestCase):\n"
        "    def test_1(self):\n        self.assertEqual(total([3, 4]), 14)\n"
        "        self.assertEqual(total([10]), 20)\n"
    ),
    "README.md": "# shop\n",
}
SOLVED = WORKSPACE[MODULE].replace("return 0", "return 2 * sum(items)")


def small(*did: CallRecord, changed: dict[str, str | None] | None = None, said: str = "", **facts: Any) -> BlindView:
    """A blind view of a small shop in which each call is a turn of its own."""
    turns = [Turn(calls=(each,)) for each in did]
    workspace = facts.pop("workspace", WORKSPACE)
    return BlindView(
        "Write `total` in `shop/cart.py` again.",
        deleted=(f"{MODULE}:total",),
        allowed=facts.pop("allowed", ("shop/*.py",)),
        workspace=workspace,
        names=frozenset(workspace),
        turns=(*turns, Turn(said=said)),
        changed={MODULE: SOLVED} if changed is None else changed,
        **facts,
    )


def run(command: str, output: str = "") -> CallRecord:
    return CallRecord("run", {"command": command}, output)


def write(path: str, text: str) -> CallRecord:
    return CallRecord("write", {"path": path, "text": text}, "ok")


@pytest.fixture(scope="session")
def rules() -> Rules:
    return Rules()


@pytest.fixture(scope="session")
def shop() -> Any:
    """What hand-made attempts are made of."""

    class Shop:
        module, workspace, solved = MODULE, WORKSPACE, SOLVED
        view, run, write = staticmethod(small), staticmethod(run), staticmethod(write)

    return Shop
