"""A repository's suite is run as its own settings say, and everything about it is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.forge.environments.environment import Environment
from etude.forge.environments.suite_run import SuiteRun, run_suite, run_variants
from etude.sandbox.base import Layer
from etude.sandbox.hosts import StoringHost

PASSING = {
    "tests/deep/test_deep.py::test_total_of_the_deep_cart",
    "tests/test_cart.py::test_total",
    "tests/test_cart.py::test_one[1]",
    "tests/test_cart.py::test_one[2]",
    "tests/test_cart.py::CartTest::test_negative",
}


class Shop:
    def __init__(
        self,
        sandboxes: tuple[asyncio.AbstractEventLoop, StoringHost],
        environment: Environment,
        files: dict[str, str],
    ) -> None:
        self.loop, self.host = sandboxes
        self.environment, self.files = environment, files

    def layer(self, **files: str | None) -> Layer:
        texts = {path: text for path, text in {**self.files, **files}.items() if text is not None}
        return self.host.store.add_files({path: text.encode() for path, text in texts.items()})

    def run(self, layer: Layer | None = None, **options: Any) -> SuiteRun:
        return self.loop.run_until_complete(
            run_suite(self.host, self.environment, layer or self.layer(), **{"timeout": 30.0, **options})
        )


@pytest.fixture(scope="session")
def shop(
    sandboxes: tuple[asyncio.AbstractEventLoop, StoringHost],
    tiny_environment: Environment,
    shop_files: dict[str, str],
) -> Shop:
    return Shop(sandboxes, tiny_environment, shop_files)


def test_conftest_fixtures_data_packages_and_settings_of_the_repository_count(shop: Shop) -> None:
    run = shop.run()
    assert run.complete, run.reason
    assert run.passed == PASSING
    assert run.outcomes["tests/test_cart.py::test_wanted"] == "skipped"
    assert run.outcomes["tests/test_cart.py::test_skipped"] == "skipped"


def test_only_the_chosen_tests_run_in_any_order_under_any_hash_seed_and_zone(shop: Shop) -> None:
    chosen = ["tests/test_cart.py::test_one[2]", "tests/deep/test_deep.py::test_total_of_the_deep_cart"]
    run = shop.run(tests=chosen, order=3, hash_seed=7, zone="Asia/Kathmandu")
    assert run.outcomes == dict.fromkeys(chosen, "passed")


def test_pytests_own_objects_are_left_out_of_the_search_for_garbage(shop: Shop) -> None:
    test = "import gc\n\n\ndef test_memory():\n    assert gc.isenabled() and gc.get_freeze_count() > 10_000\n"
    name = "tests/test_memory.py::test_memory"
    assert shop.run(changes={"tests/test_memory.py": test.encode()}, tests=[name]).passed == {name}


def test_changes_are_laid_over_the_workspace_and_a_file_that_cannot_be_imported_is_an_error(shop: Shop) -> None:
    run = shop.run(changes={"src/shop/cart.py": shop.files["src/shop/cart.py"].replace("sum(", "len(").encode()})
    assert run.complete
    assert PASSING - run.passed == {
        "tests/deep/test_deep.py::test_total_of_the_deep_cart",
        "tests/test_cart.py::test_total",
        "tests/test_cart.py::test_one[2]",
    }
    run = shop.run(changes={"tests/helper.py": None})
    assert run.outcomes["tests/test_cart.py"] == "error" and not run.passed
    assert "helper" in run.texts["tests/test_cart.py"]


def test_each_test_is_told_with_the_functions_that_it_reaches(shop: Shop) -> None:
    run = shop.run(trace=["src"])
    assert run.passed == PASSING
    cart = {f"src/shop/cart.py:{name}" for name in ("Cart.__init__", "Cart.add", "checked")}
    assert run.traces["tests/test_cart.py::CartTest::test_negative"] == cart
    assert run.traces["tests/test_cart.py::test_one[2]"] == cart | {"src/shop/cart.py:total"}
    assert run.traces["tests/test_cart.py::test_total"] == cart | {"src/shop/cart.py:total"}
    assert not any("unused" in name for names in run.traces.values() for name in names)


def test_each_test_is_told_with_the_seconds_that_it_takes(shop: Shop) -> None:
    slow = "import pytest, time\n\ntime.sleep(1)\n\n@pytest.fixture\ndef bed():\n    time.sleep(1.5)\n"
    slow += "\ndef test_sleeps(bed):\n    pass\n\ndef test_is_awake():\n    pass\n"
    run = shop.run(shop.layer(**{"tests/test_slow.py": slow}))
    assert run.took.keys() > PASSING
    assert 1 <= run.took["tests/test_slow.py"] > run.took["tests/test_cart.py"]
    assert run.took["tests/test_slow.py::test_sleeps"] >= 1.5 > run.took["tests/test_slow.py::test_is_awake"]
    assert 0 < run.took[""] < run.seconds - 2.4  # who sleeps needs no processor


def test_an_error_inside_pytest_is_named_and_not_only_the_last_line_said(shop: Shop) -> None:
    hook = "def pytest_collection_modifyitems():\n    raise UserWarning('the option x is unset\\nSet it, please.')\n"
    run = shop.run(shop.layer(**{"tests/conftest.py": hook}))
    assert not run.complete
    assert "UserWarning: the option x is unset" in run.reason


def test_a_suite_that_cannot_run_or_never_ends_says_why(shop: Shop) -> None:
    broken = shop.run(shop.layer(**{"tests/conftest.py": "raise RuntimeError('no')\n"}))
    assert not broken.complete and "could not be run" in broken.reason
    endless = (
        "import time\n\n\ndef test_first():\n    pass\n\n\ndef test_endless():\n    while True: time.sleep(0.01)\n"
    )
    stopped = shop.run(shop.layer(**{"tests/test_cart.py": endless}), timeout=8.0)  # a busy machine needs some to begin
    assert not stopped.complete and "more than 8 s" in stopped.reason
    assert stopped.outcomes["tests/test_cart.py::test_first"] == "passed"
    assert stopped.endless == "tests/test_cart.py::test_endless" and stopped.endless in stopped.reason
    waits = "import threading\n\n\ndef test_first():\n    pass\n\n\ndef test_waits():\n    threading.Event().wait()\n"
    early = shop.run(shop.layer(**{"tests/test_cart.py": waits}), test_seconds=2.0)
    assert early.endless == "tests/test_cart.py::test_waits" and early.seconds < 60
    left = shop.run(shop.layer(**{"tests/test_cart.py": "import os\n\n\ndef test_exit():\n    os._exit(0)\n"}))
    assert not left.complete and "ended with 0" in left.reason
    left = shop.run(shop.layer(**{"tests/test_cart.py": "import os\n\n\ndef test_abort():\n    os.abort()\n"}))
    assert not left.complete and "Fatal Python error: Aborted" in left.reason
    assert left.crashed == "tests/test_cart.py::test_abort" and left.crashed in left.reason


def test_a_test_that_interrupts_fails_alone(shop: Shop) -> None:
    text = "import unittest\n\n\ndef test_a():\n    raise KeyboardInterrupt\n\n\ndef test_b():\n    pass\n\n\n"
    text += "class TestC(unittest.TestCase):\n    def test_c(self):\n        raise KeyboardInterrupt\n"
    run = shop.run(shop.layer(**{"tests/test_cart.py": text}))
    found = {name.partition("::")[2]: run.outcomes[name] for name in run.outcomes if "test_cart.py" in name}
    assert run.complete and found == {"test_a": "failed", "test_b": "passed", "TestC::test_c": "failed"}


def test_there_is_no_network(shop: Shop) -> None:
    text = "import socket\n\n\ndef test_network():\n    socket.create_connection(('192.0.2.1', 80), 1)\n"
    run = shop.run(shop.layer(**{"tests/test_cart.py": text}))
    assert run.outcomes["tests/test_cart.py::test_network"] == "failed"
    assert "nreachable" in run.texts["tests/test_cart.py::test_network"]


def test_it_can_be_another_day_and_time_still_passes(shop: Shop) -> None:
    text = "import datetime, time\n\n\ndef test_day():\n    assert datetime.date.today().isoformat() == '2031-02-28'\n"
    text += "    assert time.gmtime().tm_year == 2031 and datetime.datetime.now().month == 2\n"
    text += "    start = time.monotonic()\n    time.sleep(0.01)\n    assert 0 < time.monotonic() - start < 60\n"
    layer = shop.layer(**{"tests/test_cart.py": text})
    assert shop.run(layer, date="2031-02-28").outcomes["tests/test_cart.py::test_day"] == "passed"
    assert shop.run(layer).outcomes["tests/test_cart.py::test_day"] == "failed"
    with pytest.raises(EtudeError, match="a date is written"):
        shop.run(layer, date="tomorrow")


def test_a_run_can_stop_at_the_first_failure(shop: Shop) -> None:
    text = "def test_a():\n    pass\n\n\ndef test_b():\n    assert False\n\n\ndef test_c():\n    pass\n"
    run = shop.run(
        shop.layer(**{"tests/test_cart.py": text}),
        tests=["tests/test_cart.py::test_" + x for x in "abc"],
        until_failure=True,
    )
    assert run.complete and run.outcomes == {
        "tests/test_cart.py::test_a": "passed",
        "tests/test_cart.py::test_b": "failed",
    }


def test_variants_share_a_start_and_nothing_else(shop: Shop) -> None:
    tests = ["tests/test_cart.py::test_total", "tests/test_cart.py::test_one[2]"]
    text = shop.files["src/shop/cart.py"]
    variants: list[dict[str, bytes | None]] = [
        {"src/shop/cart.py": text.replace("sum(", "len(").encode()},
        {"src/shop/cart.py": b"import os\nos._exit(3)\n"},
        {"src/shop/cart.py": b"while True: pass\n"},
        {"src/shop/new.py": b""},
        {"src/shop/cart.py": None},
        {},
    ]
    layer = shop.layer()
    runs = shop.loop.run_until_complete(
        run_variants(shop.host, shop.environment, layer, variants, tests=tests, each=3.0, timeout=30.0)
    )
    assert [run.passed == set(tests) for run in runs] == [False, False, False, True, False, True]
    assert [run.complete for run in runs] == [True, False, False, True, False, True]
    assert runs[0].outcomes == {tests[0]: "failed"}
