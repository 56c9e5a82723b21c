"""Real nodes over a real Cassandra that are killed, stopped, cut off, leave and join while ranks read from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from churn import churn
from keyspaces import PATIENT
from nodes import Nodes, Wire, spill_bytes, stored

SAMPLES, SIZE = 600, 30_000
SEEDS = (2,)  # of every `make test`; more of them are bench/cases/churn.py

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def keyspace(cassandra: str, binary: Path, worker_id: str) -> Iterator[str]:
    """A keyspace with the dataset."""
    with stored(binary, f"cql://{cassandra}/churn_{worker_id}?rf=1{PATIENT}", SAMPLES, SIZE) as uri:
        yield uri


@pytest.mark.parametrize("seed", SEEDS)
def test_no_sample_is_lost(keyspace: str, binary: Path, tmp_path: Path, seed: int) -> None:
    """Three nodes: each epoch has each sample once, with its bytes, and they find each other again by themselves."""
    with Nodes(
        binary,
        keyspace,
        tmp_path,
        [spill_bytes(SAMPLES / 2, SIZE)] * 3,
        far=Wire(latency_ms=2, bytes_per_s=16_000_000),
        net=Wire(latency_ms=0.2),
    ) as nodes:
        found = churn(nodes, seed, SAMPLES, events=2, longest=1.5)
    assert (found.lost, found.doubled, found.wrong) == (0, 0, 0), found
    assert found.epochs > 0, found
