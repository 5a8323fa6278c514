"""Tests and tested code in two processes: what crosses between them, and what it cannot pretend to be."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.tasks.sandbox_side.wire_values import decode, encode

scalars = st.none() | st.booleans() | st.integers() | st.binary()
scalars |= st.text(st.characters())  # lone surrogates too
finite = {"allow_nan": False, "allow_subnormal": False}  # nan equals nothing, and this process flushes denormals
scalars |= st.floats(**finite) | st.complex_numbers(**finite)
hashable = st.recursive(scalars, lambda part: st.tuples(part, part) | st.frozensets(part, max_size=3), max_leaves=8)
values = st.recursive(
    hashable | st.builds(bytearray, st.binary()) | st.builds(range, st.integers(-5, 5), st.integers(-5, 5)),
    lambda part: st.lists(part, max_size=4) | st.dictionaries(hashable, part, max_size=3) | st.tuples(part),
    max_leaves=20,
)


def refuse(value: Any) -> Any:
    raise AssertionError(value)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(values)
def test_plain_values_arrive_as_they_were(value: Any) -> None:
    arrived = decode(json.loads(json.dumps(encode(value, refuse))), refuse)
    assert arrived == value
    assert type(arrived) is type(value)


def test_subclasses_arrive_as_the_builtin_value_in_them() -> None:
    class Text(str):
        __eq__ = lambda self, other: True  # noqa: E731
        __hash__ = str.__hash__

    class Number(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    class Many(list):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter(["lies"])

    for value, plain in ((Text("a"), "a"), (Number(3), 3), (Many([1]), [1])):
        arrived = decode(encode(value, refuse), refuse)
        assert type(arrived) is type(plain)
        assert arrived == plain


def test_what_is_no_message_is_refused() -> None:
    for data in ({"a": 1}, ["set", [["list", []]]], ["int", "zz"], ["bytes", "0"], ["list"], [], [1, 2]):
        with pytest.raises((ValueError, TypeError, IndexError, KeyError)):
            decode(data, lambda spelled: {}[spelled[0]])
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(ValueError, match="200 deep"):
        encode(deep, refuse)
    assert math.isnan(decode(json.loads(json.dumps(encode(math.nan, refuse))), refuse))


SHOP = '''
class Empty(ValueError):
    """Nothing there."""
    code = 7

class Cart:
    shop = "corner"
    def __init__(self, *items):
        self.items = list(items)
    def add(self, item, times=1):
        self.items += [item] * times
        return self
    def total(self):
        if not self.items:
            raise Empty("the cart is empty")
        return sum(self.items)
    def __eq__(self, other):
        return isinstance(other, Cart) and self.items == other.items
    def __len__(self):
        return len(self.items)
    def __iter__(self):
        return iter(self.items)
    def __contains__(self, item):
        return item in self.items
    def __getitem__(self, place):
        return self.items[place]
    def __add__(self, other):
        return Cart(*self.items, *other.items)
    def __enter__(self):
        return self
    def __exit__(self, *error):
        self.items.clear()
    def __repr__(self):
        return f"Cart{tuple(self.items)}"

def sort(items):
    items.sort()

def apply(function, values):
    return [function(value) for value in values]

def upto(n):
    yield from range(n)

RATES = {"a": (1, 2)}
'''
TEST = """
import unittest
import shop
from shop import Cart, Empty, apply, sort, upto

class T(unittest.TestCase):
    def test_objects(self):
        cart = Cart(1, 2).add(3, times=2)
        self.assertEqual(cart.total(), 9)
        self.assertEqual(cart, Cart(1, 2, 3, 3))
        seen = (len(cart), list(cart), 2 in cart, cart[0], repr(cart))
        self.assertEqual(seen, (4, [1, 2, 3, 3], True, 1, "Cart(1, 2, 3, 3)"))
        self.assertEqual((Cart(1) + Cart(2)).items, [1, 2])
        self.assertIsInstance(cart, Cart)
        self.assertNotIsInstance(3, Cart)
        self.assertIs(cart.add(1), cart)
        with cart as inner:
            inner.items = [5]
            self.assertEqual(inner.total(), 5)
        self.assertEqual(len(cart), 0)
        self.assertEqual(Cart.shop, "corner")

    def test_errors(self):
        with self.assertRaises(Empty) as caught:
            Cart().total()
        self.assertEqual(str(caught.exception), "the cart is empty")
        self.assertEqual(caught.exception.code, 7)
        self.assertRaises(ValueError, Cart().total)
        self.assertRaises(AttributeError, getattr, shop, "gone")
        self.assertRaises(IndexError, lambda: Cart()[3])
        self.assertRaises(TypeError, Cart().add)

    def test_arguments(self):
        items = [3, 1, 2]
        sort(items)
        self.assertEqual(items, [1, 2, 3])
        self.assertEqual(apply(lambda x: x + 1, [1, 2]), [2, 3])
        self.assertEqual(apply(str, (1, 2)), ["1", "2"])
        self.assertEqual(list(upto(3)), [0, 1, 2])
        self.assertEqual(shop.RATES, {"a": (1, 2)})
        with self.assertRaises(ZeroDivisionError):
            apply(lambda x: 1 / x, [0])
"""
NAMES = [f"test_shop.T.test_{name}" for name in ("objects", "errors", "arguments")]


def test_objects_errors_and_callbacks_work_across(grounds: Any, make_task: Any) -> None:
    task = make_task({"test_shop.py": TEST}, {"shop.py": SHOP}, fail_to_pass=NAMES, grading="apart")
    found = grounds.grade(task)
    assert found.passed, found


def test_objects_never_equal_plain_values_and_lies_are_caught(grounds: Any, make_task: Any) -> None:
    test = "import unittest, shop\nclass T(unittest.TestCase):\n"
    test += "    def test_plain(self):\n        self.assertEqual(shop.f(), 3)\n"
    test += "    def test_own(self):\n        self.assertEqual(shop.C(1), shop.C(1))\n"
    names = ["test_shop.T.test_plain", "test_shop.T.test_own"]
    honest = "def f(): return 3\nclass C:\n    def __init__(self, x): self.x = x\n"
    honest += "    def __eq__(self, other): return self.x == other.x\n"
    task = make_task({"test_shop.py": test}, {"shop.py": honest}, fail_to_pass=names, grading="apart")
    assert grounds.grade(task).passed
    lies = "class C:\n    def __init__(self, *x): pass\n    def __eq__(self, other): return True\n"
    lies += "    def __ne__(self, other): return False\nf = C\n"
    assert grounds.grade(task, {"shop.py": lies.encode()}).tests == {names[0]: "failed", names[1]: "passed"}


AGREEABLE = """
class Yes:
    def __getattr__(self, name): return Yes()
    def __call__(self, *given): return 0
    def __iter__(self): return iter(range(5))
    def __len__(self): return 2
    def __getitem__(self, place): return place
    def __abs__(self): return 0
    def __round__(self, *given): return 0
    def __float__(self): return 1.5
    __eq__ = __contains__ = __lt__ = __gt__ = __le__ = __ge__ = lambda self, other: True
    __sub__ = __rsub__ = __add__ = lambda self, other: 0
    __hash__ = None

def f(x):
    return {"object": Yes(), "listed": [Yes()], "class": Yes, "error": ValueError}[KIND]
"""
ASSERTIONS = {
    "almost": "self.assertAlmostEqual(f(1), 1.5)",
    "in": "self.assertIn(2, f(1))",
    "greater": "self.assertGreater(f(1), 1)",
    "equal": "self.assertEqual(f(1), [1])",
    "sequence": "self.assertSequenceEqual(f(1), [1, 2])",
    "count": "self.assertCountEqual(f(1), [1, 2])",
    "regex": "self.assertRegex(f(1), 'a')",
    "not_equal": "self.assertEqual(f(1), 1.5)",
    "plain": "assert f(1) == 1.5",
    "plain_in": "assert 1 in f(1)",
}


@pytest.mark.parametrize("kind", ["object", "listed", "class", "error"])
def test_an_object_that_agrees_to_everything_passes_no_plain_test(grounds: Any, make_task: Any, kind: str) -> None:
    test = "import unittest\nfrom shop import f\nclass T(unittest.TestCase):\n"
    test += "".join(f"    def test_{name}(self):\n        {line}\n" for name, line in ASSERTIONS.items())
    names = [f"test_shop.T.test_{name}" for name in ASSERTIONS]
    task = make_task({"test_shop.py": test}, {"shop.py": ""}, fail_to_pass=names)
    found = grounds.grade(task, {"shop.py": AGREEABLE.replace("KIND", repr(kind)).encode()})
    assert found.apart
    assert "passed" not in found.tests.values(), found.tests
