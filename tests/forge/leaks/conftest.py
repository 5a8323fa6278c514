"""A module to delete from, and a folder of layers to hide copies in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from etude.forge.leaks.audit import Leak, audit_files
from etude.forge.leaks.deleted_code import Deleted, definitions
from etude.sandbox.store.layers import Store
from etude.tasks.format.function_bodies import replace_bodies

PATH = "src/shop/ledger.py"
NAME = "Ledger.settle"
MODULE = dedent(
    '''
    """Accounts that are settled against each other."""

    from collections import defaultdict


    class Ledger:
        """Who owes what to whom."""

        def __init__(self, entries):
            self.entries = list(entries)
            self.limit = 100

        def settle(self, rounding=2):
            """Pay all debts with few transfers."""
            balance = defaultdict(float)
            for debtor, creditor, amount in self.entries:
                balance[debtor] -= amount
                balance[creditor] += amount
            # largest first, so that few transfers are needed
            owing = sorted((value, name) for name, value in balance.items() if value < 0)
            due = sorted(((value, name) for name, value in balance.items() if value > 0), reverse=True)
            transfers = []
            while owing and due:
                debt, debtor = owing.pop(0)
                credit, creditor = due.pop(0)
                paid = min(-debt, credit)
                transfers.append((debtor, creditor, round(paid, rounding)))
                if debt + paid < 0:
                    owing.insert(0, (debt + paid, debtor))
                if credit - paid > 0:
                    due.insert(0, (credit - paid, creditor))
            return transfers

        def total(self):
            return sum(amount for _, _, amount in self.entries)
    '''
)
DELETED = Deleted(PATH, NAME, dict(definitions(MODULE))[NAME])
STUBBED = replace_bodies(MODULE, {NAME: "raise NotImplementedError"})
WORKSPACE = {
    PATH: STUBBED.encode(),
    "tests/test_ledger.py": b"from shop.ledger import Ledger\n\n\ndef test():\n    assert Ledger([]).settle() == []\n",
    "README.md": b"# Shop\n\nCall `Ledger(entries).settle(rounding=2)` to pay all debts with few transfers.\n",
}

Audit = Callable[..., list[Leak]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def audit(store: Store) -> Audit:
    """Leaks of the deleted method in the shop's workspace with files added: "/..." is the environment's."""

    def run(files: dict[str, bytes], deleted: Deleted = DELETED, workspace: dict[str, bytes] = WORKSPACE) -> list[Leak]:
        outside = {path[1:]: data for path, data in files.items() if path.startswith("/")}
        inside = {**workspace, **{path: data for path, data in files.items() if not path.startswith("/")}}
        layers = [store.add_files(outside, at="/", shows=())] if outside else []
        return audit_files(store, [*layers, store.add_files(inside, shows=())], [deleted])

    return run


@pytest.fixture
def shop() -> dict[str, object]:
    """The module as it was and as it is, and what was deleted."""
    return {"path": PATH, "name": NAME, "module": MODULE, "stubbed": STUBBED, "deleted": DELETED, "files": WORKSPACE}
