"""Copies planted where answers are left lying around: every one is found, and nothing else is."""

from __future__ import annotations

import ast
import sys
from typing import Any

import pytest

from etude.forge.leaks.audit import audit_files
from etude.forge.leaks.deleted_code import Deleted
from etude.sandbox.store.layers import Store
from redteam.leaks.hiding_places import HIDING_PLACES


def test_there_are_enough_hiding_places() -> None:
    assert len(HIDING_PLACES) >= 30


@pytest.mark.parametrize("name", HIDING_PLACES)
def test_a_copy_is_found_where_it_was_planted(name: str, audit: Any, shop: Any) -> None:
    planted = HIDING_PLACES[name](shop["path"], shop["module"])
    leaks = audit(planted)
    places = {path if path.startswith("/") else f"/workspace/{path}" for path in planted}
    assert leaks, f"nothing was found in {sorted(places)}"
    assert {leak.place.partition("!")[0] for leak in leaks} == places
    assert {leak.name for leak in leaks} == {"src/shop/ledger.py:Ledger.settle"}
    assert max(leak.share for leak in leaks) > 0.9


def test_a_workspace_without_a_copy_is_clean(audit: Any) -> None:
    assert audit({}) == []


def test_names_in_calls_docs_and_tests_are_no_leak(audit: Any, shop: Any) -> None:
    calls = (
        "from shop.ledger import Ledger\n\n\ndef run(entries):\n    transfers = Ledger(entries).settle(rounding=3)\n"
    )
    docs = "Changes\n=======\n\n- `Ledger.settle` pays all debts with few transfers; `settle(rounding)` rounds them.\n"
    signature = "class Ledger:\n    def settle(self, rounding=2):\n        ...\n"
    files = {"src/shop/app.py": calls, "CHANGES.rst": docs, "src/shop/ledger.pyi": signature}
    symbols = {"/opt/env/lib/x/api.json": '{"symbols": ["Ledger.settle", "Ledger.total"], "kind": "function"}'}
    assert audit({path: text.encode() for path, text in {**files, **symbols}.items()}) == []


def test_bytecode_of_the_stub_is_no_leak(audit: Any, shop: Any) -> None:
    assert audit(HIDING_PLACES["stale-bytecode"](shop["path"], shop["stubbed"])) == []


def test_a_relative_that_shares_some_lines_is_no_leak(audit: Any) -> None:
    relative = """
        def balances(self):
            balance = defaultdict(float)
            for debtor, creditor, amount in self.entries:
                balance[debtor] -= amount
                balance[creditor] += amount
            return {name: value for name, value in balance.items() if value}
    """
    assert audit({"src/shop/book.py": relative.encode()}) == []
    # and what the workspace shows anyway does not count elsewhere either
    assert audit({"src/shop/book.py": relative.encode(), "/opt/env/lib/other.py": relative.encode()}) == []


def test_of_a_changed_operator_only_what_went_is_searched_for(audit: Any, shop: Any) -> None:
    """The function with a bug is nearly a copy of itself; the original next to it gives the answer away."""
    buggy = shop["module"].replace("paid = min(-debt, credit)", "paid = max(-debt, credit)")
    workspace = {**shop["files"], shop["path"]: buggy.encode()}
    assert audit({}, shop["deleted"], workspace) == []
    places = ("/opt/env/lib/site-packages/shop/ledger.py", "/opt/env/share/notes.txt", "/workspace/old.txt")
    for place in places:
        found = audit({place.removeprefix("/workspace/"): shop["module"].encode()}, shop["deleted"], workspace)
        assert [leak.place for leak in found] == [place]
    assert audit(HIDING_PLACES["stale-bytecode"](shop["path"], shop["module"]), shop["deleted"], workspace)


def test_a_deleted_class_is_searched_for_method_by_method(audit: Any, shop: Any) -> None:
    whole = ast.get_source_segment(shop["module"], ast.parse(shop["module"]).body[-1])
    assert whole is not None
    workspace = {**shop["files"], shop["path"]: b'"""Nothing left."""\n'}
    found = audit(
        {"docs/settle.txt": shop["deleted"].source.encode()}, Deleted(shop["path"], "Ledger", whole), workspace
    )
    assert [(leak.place, leak.name) for leak in found] == [
        ("/workspace/docs/settle.txt", "src/shop/ledger.py:Ledger.settle")
    ]


def test_a_folder_of_the_host_that_layers_show_is_searched(store: Store, shop: Any, tmp_path: Any) -> None:
    shown = tmp_path / "machine" / "dist-packages" / "shop"
    shown.mkdir(parents=True)
    (shown / "ledger.py").write_text(shop["module"])
    layer = store.add_files(shop["files"], shows=(str(tmp_path / "machine"),))
    (leak,) = audit_files(store, [layer], [shop["deleted"]])
    assert leak.place == str(shown / "ledger.py")


def test_a_copy_that_an_upper_layer_hides_is_no_leak(store: Store, shop: Any) -> None:
    below = store.add_files({"opt/env/shop/ledger.py": shop["module"].encode()}, at="/", shows=())
    above = store.add_files({"opt/env/shop/ledger.py": b"# moved\n"}, at="/", shows=())
    workspace = store.add_files(shop["files"], shows=())
    assert audit_files(store, [below, workspace], [shop["deleted"]])
    assert audit_files(store, [below, above, workspace], [shop["deleted"]]) == []
    assert audit_files(store, [above, below, workspace], [shop["deleted"]])


def test_an_environment_is_read_once(store: Store, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = store.add_files({"opt/env/lib/big.py": shop["module"].encode()}, at="/", shows=())
    workspace = store.add_files(shop["files"], shows=())
    first = audit_files(store, [environment, workspace], [shop["deleted"]])
    kept = sys.modules["etude.forge.leaks.index_cache"]
    monkeypatch.setattr(kept, "build_index", lambda *given, **named: pytest.fail("indexed again"))
    monkeypatch.setattr(kept, "_indexes", type(kept._indexes)())  # as in another process: from the disk
    assert audit_files(store, [environment, workspace], [shop["deleted"]]) == first != []


def test_a_single_file_of_the_host_is_searched(store: Store, shop: Any, tmp_path: Any) -> None:
    (tmp_path / "accounts.py").write_text(shop["module"])
    (tmp_path / "other.py").write_text("def settle():\n    return None\n")
    shows = (str(tmp_path / "accounts.py"), str(tmp_path / "other.py"))
    layer = store.add_files(shop["files"], shows=shows)
    assert [leak.place for leak in audit_files(store, [layer], [shop["deleted"]])] == [str(tmp_path / "accounts.py")]
