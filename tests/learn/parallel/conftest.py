"""Ranks are processes: those that tests start are copies of one that has torch already."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _warm(warm_children: None) -> None:
    pass
