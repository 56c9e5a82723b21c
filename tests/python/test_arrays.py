"""Tensors of a batch as arrays of NumPy, without pandas and torch: each kind of number has its type."""

from __future__ import annotations

import subprocess
import sys

import bowstring
import numpy as np
import pytest
from bowstring import operators
from node import Node

CROP = [{"Decode": {}}, {"CenterCrop": {"size": [8, 8]}}]
KINDS = {
    "uint8": CROP,
    "float32": [*CROP, {"ToImage": {}}, {"ToDtype": {"dtype": "float32", "scale": True}}],
    "float16": [*CROP, {"ToImage": {}}, {"ToDtype": {"dtype": "float16", "scale": True}}],
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_number(here: bowstring.Client, kind: str) -> None:
    with here.dataset("photos").operators(image=KINDS[kind]).batches(8) as batches:
        batch = next(batches)
    images = operators.arrays(batch)["image"]
    assert images.dtype == np.dtype(kind)
    assert sorted(images.shape) == [3, 8, 8, 8]
    assert images.any()


WITHOUT = """
import sys
sys.modules["pandas"] = None
import bowstring
from bowstring import operators
crop = [{"Decode": {}}, {"CenterCrop": {"size": [8, 8]}}]
photos = bowstring.connect(sys.argv[1]).dataset("photos")
print(operators.arrays(next(photos.operators(image=crop).batches(8)))["image"].shape)
print(len(operators.arrays(next(photos.operators(image=crop[:1]).batches(8)))["image"]))
"""


def test_no_pandas_is_needed(node: Node) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, node.url], check=False, capture_output=True, text=True, timeout=600
    )
    assert (done.stdout, done.stderr) == ("(8, 8, 8, 3)\n8\n", "")
