"""Copies of deleted JavaScript, planted where its tools leave them: found by the audit, cleaned by the scrub."""

from __future__ import annotations

import base64
import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

pytest.importorskip("tree_sitter_javascript", reason="the extra etude[languages] is not installed")

from etude.forge.leaks.audit import audit_tree
from etude.forge.leaks.deleted_code import Deleted, defined_in
from etude.forge.leaks.scrub import scrub

PATH = "lib/ledger.js"
MODULE = """'use strict';

class Ledger {
  constructor(entries) {
    this.entries = entries; // as they came
  }

  /** Pays all debts with few transfers. */
  settle(rounding = 2) {
    const balance = new Map();
    for (const [debtor, creditor, amount] of this.entries) {
      balance.set(debtor, (balance.get(debtor) || 0) - amount);
      balance.set(creditor, (balance.get(creditor) || 0) + amount);
    }
    // largest first, so that few transfers are needed
    const owing = [...balance].filter(([, value]) => value < 0).sort((a, b) => a[1] - b[1]);
    const due = [...balance].filter(([, value]) => value > 0).sort((a, b) => b[1] - a[1]);
    const transfers = [];
    while (owing.length && due.length) {
      const paid = Math.min(-owing[0][1], due[0][1]);
      transfers.push([owing[0][0], due[0][0], Number(paid.toFixed(rounding))]);
      owing[0][1] += paid;
      due[0][1] -= paid;
      if (owing[0][1] >= 0) owing.shift();
      if (due[0][1] <= 0) due.shift();
    }
    return transfers;
  }
}

module.exports = { Ledger };
"""
SOURCE = dict(defined_in(PATH, MODULE))["Ledger.settle"]
LEFT = MODULE.replace(SOURCE, "settle(rounding = 2) {\n    throw new Error('not implemented');\n  }")
DELETED = Deleted(PATH, "Ledger.settle", SOURCE)
WORKSPACE = {
    PATH: LEFT.encode(),
    "package.json": b'{"name": "ledger", "main": "lib/ledger.js"}',
    "test/ledger.js": b"require('tape')('settles', (t) => t.same(new (require('..').Ledger)([]).settle(), []));",
    "README.md": b"# ledger\n\nCall `new Ledger(entries).settle(rounding)` to pay all debts with few transfers.\n",
}


def archive() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as packed:
        entry = tarfile.TarInfo("package/lib/ledger.js")
        entry.size = len(MODULE.encode())
        packed.addfile(entry, io.BytesIO(MODULE.encode()))
    return data.getvalue()


def zipped() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("deep/other.js", MODULE)
    return data.getvalue()


BARE = "\n".join(line.split("//")[0] for line in MODULE.splitlines()).replace("  ", "")
COMMENTED = MODULE.replace("\n", " // as ever\n").replace("const ", "/* plainly */ const ")
SOURCE_MAP = json.dumps({"version": 3, "sources": ["../lib/ledger.js"], "sourcesContent": [MODULE], "mappings": "AAAA"})
INLINE = base64.b64encode(SOURCE_MAP.encode()).decode()
PLACES: dict[str, dict[str, bytes]] = {
    "an installed copy": {"/opt/env/node_modules/ledger/lib/ledger.js": MODULE.encode()},
    "a copy in another package": {"/opt/env/node_modules/other/vendor/x.cjs": BARE.encode()},
    "a source map of a package": {"/opt/env/node_modules/other/dist/x.js.map": SOURCE_MAP.encode()},
    "a tarball in npm's cache": {"/home/agent/.npm/_cacache/content-v2/sha512/ab/cd/ef": archive()},
    "a bundle": {"dist/bundle.js": f"(() => {{ {BARE} }})();".encode()},
    "a source map": {"lib/ledger.js.map": SOURCE_MAP.encode()},
    "a source map in a comment": {"lib/all.min.js": f"a();\n//# sourceMappingURL=data:json;base64,{INLINE}\n".encode()},
    "a tarball of a release": {"ledger-1.0.0.tgz": archive()},
    "another archive": {"old/copy.bin": zipped()},
    "a build": {"build/lib/ledger.js": MODULE.encode()},
    "a copy with other comments": {"lib/old.js": COMMENTED.encode()},
    "a copy that is commented out": {"lib/index.js": ("/*\n" + MODULE.replace("*/", "") + "*/\n").encode()},
    "lines that are commented out": {"lib/index.mjs": indent(MODULE, "// ").encode()},
    "types with a body": {"lib/ledger.ts": MODULE.encode()},
    "a text in code": {"lib/text.js": f"module.exports = {json.dumps(MODULE)};".encode()},
    "a page of the docs": {"docs/ledger.md": f"# Ledger\n\n```js\n{MODULE}```\n".encode()},
    "a coverage report": {"coverage/lcov-report/ledger.js.html": f"<html><pre>{MODULE}</pre></html>".encode()},
    "an editor's backup": {"lib/ledger.js~": MODULE.encode()},
    "installed beside": {"node_modules/ledger/lib/ledger.js": MODULE.encode()},
    "a compressed copy": {"lib/ledger.js.gz": gzip.compress(MODULE.encode())},
}


@pytest.mark.parametrize("name", PLACES)
def test_a_copy_is_found_where_it_was_planted(name: str, audit: Any) -> None:
    leaks = audit(PLACES[name], deleted=DELETED, workspace=WORKSPACE)
    places = {path if path.startswith("/") else f"/workspace/{path}" for path in PLACES[name]}
    assert {leak.place.partition("!")[0] for leak in leaks} == places
    assert {leak.name for leak in leaks} == {"lib/ledger.js:Ledger.settle"}


def test_what_is_left_and_what_only_names_it_is_no_leak(audit: Any) -> None:
    calls = b"const { Ledger } = require('./ledger');\nexports.pay = (all) => new Ledger(all).settle(3);\n"
    types = b"export class Ledger { constructor(entries: Entry[]); settle(rounding?: number): Transfer[]; }\n"
    assert audit({"lib/pay.js": calls, "index.d.ts": types}, deleted=DELETED, workspace=WORKSPACE) == []


@pytest.mark.parametrize("name", [name for name, files in PLACES.items() if not next(iter(files)).startswith("/")])
def test_the_scrub_cleans_it_or_refuses(name: str, tmp_path: Path) -> None:
    for path, data in {**WORKSPACE, **PLACES[name]}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    done = scrub(tmp_path, [DELETED])
    assert bool(done.refused) != (audit_tree(tmp_path, [DELETED]) == [])
    assert {path for path, _ in done.refused} | {path for path, _ in done.removed}
    in_code = ("a copy with other comments", "a copy that is commented out", "lines that are commented out")
    assert bool(done.refused) == (name in (*in_code, "types with a body", "a text in code"))
    assert (tmp_path / PATH).read_bytes() == LEFT.encode()
