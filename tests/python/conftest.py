"""Fixtures that the tests of the Python package share."""

from __future__ import annotations

import bowstring
import pytest
from node import Node


@pytest.fixture
def photos(node: Node) -> bowstring.Dataset:
    return bowstring.connect(node.url).dataset("photos", split="train").shuffle(3)


@pytest.fixture
def here(node: Node) -> bowstring.Client:
    return bowstring.connect(node.url)
