"""Data for tests of memory shared on a node: photographs, and the batches expected from them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import bowstring
import pyarrow as pa
from bowstring._transport.shm import Ring

Seen = dict[int, str]


def photos(client: bowstring.Client, **options: Any) -> bowstring.Dataset:
    return client.dataset("photos").columns(["position", "image", "label"]).shuffle(5).options(**options)


def digest(value: Any) -> str:
    """The bytes of one cell, in any layout."""
    value = value.as_py()
    return hashlib.sha256(value["bytes"] if isinstance(value, dict) else value).hexdigest()


def digests(batch: pa.RecordBatch) -> Seen:
    batch.validate(full=True)
    return {p.as_py(): digest(image) for p, image in zip(batch["position"], batch["image"], strict=True)}


def rings(client: bowstring.Client) -> dict[str, int]:
    found: dict[str, int] = client.stats()["shm"]
    return found


def a_ring(client: bowstring.Client) -> Ring:
    assert client.ring() is not None  # asks for the socket
    ring = client.rings.take()
    assert ring is not None
    return ring


def ways(batches: bowstring.Batches) -> Iterator[tuple[pa.RecordBatch, str]]:
    for batch in batches:
        assert batches.place is not None
        yield batch, batches.place["transport"]
