"""A small JavaScript repository with tests of node's own framework, installed once, and the host it lies on: data, and
fixtures for conftest."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from etude.forge.environments.environment import Environment, Suite
from etude.forge.install.agent_rollout import Agents
from etude.forge.install.checkout import Repo, open_repo
from etude.forge.install.install import install
from etude.forge.install.pip_settings import PackageIndex
from etude.forge.install.result import InstallResult
from etude.forge.languages.javascript.repository import JavaScriptRepository
from etude.forge.pipeline.make import make_tasks
from etude.forge.steps.context import MakeRequest
from etude.sandbox.base import Layer
from etude.sandbox.hosts import StoringHost, open_host
from etude.sandbox.store.layers import Store
from etude.tasks.format.file_tree import Files
from etude.tasks.grading.grader import RUNNER

pytest.importorskip("tree_sitter_javascript", reason="the extra etude[languages] is not installed")
if shutil.which("node") is None or shutil.which("npm") is None:
    pytest.skip("node and npm are not on this machine", allow_module_level=True)

PACKAGE = '{"name": "shop", "version": "1.0.0", "main": "index.js", "scripts": {"test": "node --test"}}\n'
MONEY = """'use strict';

// Cents of a price such as "12.50".
function parsePrice(text) {
  const found = /^(\\d+)(?:\\.(\\d\\d))?$/.exec(text.trim());
  if (!found) {
    throw new TypeError('no price: ' + text);
  }
  return Number(found[1]) * 100 + Number(found[2] || 0);
}

/**
 * A price as text: whole units, a mark, two digits.
 */
const showPrice = function showPrice(cents, mark = '.') {
  const units = Math.floor(cents / 100);
  const rest = String(cents % 100).padStart(2, '0');
  return units + mark + rest;
};

module.exports = { parsePrice, showPrice };
"""
WORDS = """'use strict';

exports.slug = function slug(title) {
  const words = title.toLowerCase().match(/[a-z0-9]+/g) || [];
  return words.join('-');
};

exports.initials = (name) => {
  const letters = name.split(' ').filter((word) => word !== '').map((word) => word[0].toUpperCase());
  return letters.join('');
};
"""
CART = """'use strict';

const { showPrice } = require('./money');

class Cart {
  constructor() {
    this.items = new Map();
  }

  add(name, cents, count = 1) {
    const before = this.items.get(name) || { cents, count: 0 };
    this.items.set(name, { cents, count: before.count + count });
    return this;
  }

  remove(name, count = 1) {
    const found = this.items.get(name);
    if (found.count <= count) {
      this.items.delete(name);
    } else {
      this.items.set(name, { cents: found.cents, count: found.count - count });
    }
    return this;
  }

  lines() {
    const rows = Array.from(this.items, ([name, item]) => item.count + ' ' + name + ' ' + showPrice(item.cents));
    return rows.sort();
  }
}

module.exports = { Cart };
"""
TEST_MONEY = """'use strict';

const test = require('node:test');
const assert = require('node:assert');
const { parsePrice, showPrice } = require('..');

test('parses whole units', () => {
  assert.strictEqual(parsePrice('12'), 1200);
});

test('parses cents', () => {
  assert.strictEqual(parsePrice(' 3.07 '), 307);
});

test('refuses what is no price', () => {
  assert.throws(() => parsePrice('much'), TypeError);
});

test('parses nothing but digits', () => {
  assert.deepStrictEqual(['1', '0.10'].map(parsePrice), [100, 10]);
});

test('shows a price', () => {
  assert.strictEqual(showPrice(1205), '12.05');
});

test('shows a price with a comma', () => {
  assert.strictEqual(showPrice(5, ','), '0,05');
});

test('shows many', () => {
  assert.deepStrictEqual([1, 100].map((cents) => showPrice(cents)), ['0.01', '1.00']);
});
"""
TEST_WORDS = """'use strict';

const { describe, it } = require('node:test');
const assert = require('node:assert');
const { slug, initials } = require('../lib/words');

describe('slug', () => {
  it('joins words', () => {
    assert.strictEqual(slug('Hello, World'), 'hello-world');
  });
  it('keeps numbers', () => {
    assert.strictEqual(slug('7 of 9'), '7-of-9');
  });
  it('gives nothing for nothing', () => {
    assert.strictEqual(slug('...'), '');
  });
  it('is lower case', () => {
    assert.ok(slug('ABC') === 'abc');
  });
});

describe('initials', () => {
  for (const [name, wanted] of [['ada lovelace', 'AL'], ['grace hopper', 'GH'], ['x', 'X']]) {
    it(`of ${name}`, () => {
      assert.strictEqual(initials(name), wanted);
    });
  }
  it('ignores gaps', () => {
    assert.strictEqual(initials('a  b'), 'AB');
  });
});
"""
TEST_CART = """'use strict';

const test = require('node:test');
const assert = require('node:assert');
const { Cart } = require('../lib/cart');

test('adds', () => {
  const cart = new Cart().add('tea', 250);
  assert.deepStrictEqual(cart.lines(), ['1 tea 2.50']);
});

test('adds more', () => {
  assert.deepStrictEqual(new Cart().add('tea', 250).add('tea', 250, 2).lines(), ['3 tea 2.50']);
});

test('removes one', () => {
  assert.deepStrictEqual(new Cart().add('tea', 100, 2).remove('tea').lines(), ['1 tea 1.00']);
});

test('removes the last', () => {
  assert.deepStrictEqual(new Cart().add('tea', 100).remove('tea').lines(), []);
});

test('removes all', () => {
  assert.strictEqual(new Cart().add('tea', 100, 3).remove('tea', 5).items.size, 0);
});

test('sorts lines', () => {
  assert.deepStrictEqual(new Cart().add('b', 1).add('a', 2).lines(), ['1 a 0.02', '1 b 0.01']);
});
"""
FILES = {
    "package.json": PACKAGE,
    "README.md": "# shop\n\nPrices, carts and text.\n",
    "index.js": "'use strict';\n\nmodule.exports = Object.assign({}, require('./lib/money'), require('./lib/cart'));\n",
    "lib/money.js": MONEY,
    "lib/words.js": WORDS,
    "lib/cart.js": CART,
    "test/money.test.js": TEST_MONEY,
    "test/words.test.js": TEST_WORDS,
    "test/cart.test.js": TEST_CART,
}
Result = TypeVar("Result")


def lay_out(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


@dataclass
class Bench:
    """A host with a store, and the loop that its work runs on."""

    host: StoringHost
    store: Store
    loop: asyncio.AbstractEventLoop

    def run(self, work: Awaitable[Result]) -> Result:
        return self.loop.run_until_complete(work)

    def install(self, folder: Path, agents: Agents | None = None) -> tuple[Repo, InstallResult]:
        repo = open_repo(str(folder), self.store.root / "repositories")
        return repo, self.run(install(repo, self.host, PackageIndex({}, ()), agents=agents))


@dataclass
class Shop:
    repo: Repo
    environment: Environment


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory, share_leak_indexes: Callable[[Path], Path]) -> Iterator[Bench]:
    loop = asyncio.new_event_loop()
    store = Store(share_leak_indexes(tmp_path_factory.mktemp("scripts") / "store"))
    host = loop.run_until_complete(open_host("local", store, [RUNNER]))
    yield Bench(host, store, loop)
    loop.run_until_complete(host.close())
    loop.close()


@pytest.fixture(scope="session")
def script_shop(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    folder = lay_out(tmp_path_factory.mktemp("repositories") / "shop", FILES)
    repo, installed = bench.install(folder)
    assert installed.environment is not None, installed.reason
    return Shop(repo, installed.environment)


@pytest.fixture(scope="session")
def script_made(bench: Bench, script_shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What making tasks of the shop gave: the journal, and the folder."""
    out = tmp_path_factory.mktemp("made")
    request = MakeRequest(2, out, origins=("deletion",))
    return bench.run(make_tasks(script_shop.repo, script_shop.environment, bench.host, request)), out


Laid = Callable[[dict[str, str]], Path]


@pytest.fixture
def laid(tmp_path: Path) -> Laid:
    return lambda files: lay_out(tmp_path / "laid", files)


def script_repository() -> JavaScriptRepository:
    """The shop as if its tests had been traced: each function by the tests whose file is about it."""
    tests = ("test/cart.test.js", "test/money.test.js", "test/words.test.js")
    environment = Environment("shop", "", "0" * 64, Layer("", None, ()), "", ("",), Suite("node", tests, ("node",)), "")  # type: ignore[arg-type]
    files = Files({path: text.encode() for path, text in FILES.items()})
    green = (
        *("test/words.test.js::slug > joins words", "test/words.test.js::slug > keeps numbers"),
        *("test/words.test.js::slug > is lower case", "test/words.test.js::initials > of x"),
        *("test/words.test.js::initials > of ada lovelace", "test/words.test.js::initials > ignores gaps"),
        *(f"test/money.test.js::{name}" for name in ("parses whole units", "parses cents", "shows a price")),
        "test/cart.test.js::adds",
    )
    words = FILES["lib/words.js"]
    slug = f"lib/words.js:{words.index('function slug')}:{words.index('};') + 1}"
    inner = words.index("(word) => word !==")
    reached = {test: frozenset({slug} if "slug >" in test else ()) for test in green}
    reached["test/words.test.js::initials > of x"] = frozenset({f"lib/words.js:{inner}:{inner + 20}"})
    return JavaScriptRepository("shop", "", files, environment, green, {"": frozenset(), **reached})
