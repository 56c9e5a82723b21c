"""Readers, writers and collections at once while the server is killed again and again; `make soak-parts` runs it.

After each kill the store must open, and every dataset must be what its last acknowledged upload made it,
or what the one under way at that moment would have made it: nothing else, and nothing half. Most servers keep
a spill before the store, as if that were far away, in which they find what killed ones have left.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from node import Node
from wire import act, put, read, stats

GONE = (fl.FlightUnavailableError, fl.FlightInternalError, fl.FlightCancelledError)
DATASETS = 3


def rows(keys: list[int]) -> pa.Table:
    blobs = [hashlib.shake_128(str(k).encode()).digest(1000 + k * 7919 % 50_000) for k in keys]
    return pa.table({"key": pa.array(keys, pa.int64()), "image": pa.array(blobs, pa.large_binary())})


@dataclass
class Expected:
    """The keys a dataset has by its last acknowledged upload, and by the one under way."""

    keys: list[int] = field(default_factory=list)
    pending: list[int] | None = None


@dataclass
class Round:
    """One life of a server, and what its clients do to it until it is killed."""

    url: str
    seed: int
    expected: list[Expected]
    over: threading.Event = field(default_factory=threading.Event)
    done: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def guard(self, what: Any, *args: Any) -> None:
        try:
            with fl.connect(self.url) as client:
                while not self.over.is_set():
                    what(client, *args)
        except GONE as e:
            if not self.over.is_set() and "another writer" not in str(e):
                self.faults.append(f"{what.__name__}: {e}")
        except Exception as e:  # noqa: BLE001  # a thread's failure is the test's
            self.faults.append(f"{what.__name__}: {e!r}")

    def write(self, client: fl.FlightClient, number: int, rng: random.Random) -> None:
        own = self.expected[number]
        new = [rng.getrandbits(40) for _ in range(rng.randrange(1, 120))]
        mode = "append" if own.keys and rng.random() < 0.8 else "replace"
        own.pending = own.keys + new if mode == "append" else new
        put(client, rows(new), rows=16, dataset=f"d{number}", key="key", mode=mode)
        own.keys, own.pending = own.pending, None
        self.done[mode] += 1

    def read(self, client: fl.FlightClient, rng: random.Random) -> None:
        name = f"d{rng.randrange(DATASETS)}"
        try:
            world = rng.randrange(1, 5)
            table = read(
                client,
                dataset=name,
                shuffle={"seed": rng.getrandbits(64)},
                world={"size": world},
                batch=rng.randrange(1, 90),
            )
        except KeyError:
            time.sleep(0.01)  # not there yet
            return
        assert len(set(table["id"].to_pylist())) == table.num_rows
        assert table.select(["key", "image"]).equals(rows(table["key"].to_pylist()))
        self.done["epochs"] += 1

    def collect(self, client: fl.FlightClient, rng: random.Random) -> None:
        for listed in act(client, "list"):
            for snapshot in listed["snapshots"][:-1]:
                if rng.random() < 0.5:
                    act(client, "drop", dataset=listed["dataset"], snapshot=snapshot)
        act(client, "gc")
        self.done["collections"] += 1
        time.sleep(rng.random() / 5)


def check(client: fl.FlightClient, expected: list[Expected]) -> None:
    for number, own in enumerate(expected):
        try:
            table = read(client, dataset=f"d{number}", columns=["key", "image"])
            keys = table["key"].to_pylist()
            assert table.equals(rows(keys))
        except KeyError:
            keys = []
        assert keys in ([own.keys] if own.pending is None else [own.keys, own.pending])
        own.keys, own.pending = keys, None


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_soak(binary: Path, lab: Path, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    expected = [Expected() for _ in range(DATASETS)]
    total: Counter[str] = Counter()
    end = time.monotonic() + pytestconfig.getoption("soak_seconds")
    while time.monotonic() < end:
        far = rng.random() < 0.7  # with a spill, which is killed with the server and outlives it
        flags = [f"--spill={tmp_path / 'spill'}", "--spill-bytes=24MiB", "--rtt=1ms"] if far else []
        node = Node(
            lab if far else binary,
            tmp_path / "store",
            "--window-memory=32MiB",
            *flags,
            log=tmp_path / "log",
        )
        with node:
            with fl.connect(node.url) as client:
                check(client, expected)
            life = Round(node.url, seed, expected)
            jobs: list[tuple[Any, tuple[Any, ...]]] = [
                (life.write, (n, random.Random(rng.random()))) for n in range(DATASETS)
            ]
            jobs += [(life.read, (random.Random(rng.random()),)) for _ in range(3)]
            jobs += [(life.collect, (random.Random(rng.random()),))]
            threads = [threading.Thread(target=life.guard, args=(what, *args)) for what, args in jobs]
            for thread in threads:
                thread.start()
            time.sleep(rng.uniform(0.5, 8))
            with fl.connect(node.url) as client:
                engine = stats(client)["engine"]
            total["from the spill"] += engine["spill_reads"]
            total["from the store"] += engine["reads"]
            life.over.set()
            if rng.random() < 0.8:
                node.kill()
                total["kills"] += 1
            else:
                node.stop()
                total["drains"] += 1
            for thread in threads:
                thread.join()
        assert life.faults == []
        total += life.done
    print(dict(total))
    assert total["epochs"] > 0
    assert total["from the spill"] > 0
    assert total["append"] + total["replace"] > 0
