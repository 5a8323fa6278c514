"""The JavaScript repository of all tests, under the names that these have for it."""

from __future__ import annotations

import pytest

from tests.forge.javascript_repository import FILES, PACKAGE, Bench, Laid, Shop, lay_out

__all__ = ["FILES", "PACKAGE", "Bench", "Laid", "Shop", "lay_out"]


@pytest.fixture(scope="session")
def shop(script_shop: Shop) -> Shop:
    return script_shop
