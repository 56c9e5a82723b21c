"""Imports, replaced and appended snapshots, merges, drops and collections of a dataset that this client alone writes.

After each change the dataset has to be what the last acknowledged one made it, or what one with a lost answer would
have made it: nothing else, and nothing half.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import pyarrow as pa
from bowstring.errors import BowstringError, NotFound

from soak import content
from soak.client import Reader

MOST = 400  # rows
PATIENCE = 900.0  # seconds for a collection


class Client(Reader):
    """The keys are new in each turn, so that blobs become garbage."""

    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__(spec)
        self._names = 0
        self._keys: list[int] = []
        self._left: list[str] = []  # datasets with a change that may still be made: they are dropped
        self._next = 1_000_000 * (1 + spec["seed"] % 1000)

    @property
    def _name(self) -> str:
        return f"written-{self.spec['seed']}-{self._names}"

    def turn(self, number: int) -> None:
        count = self.random.randrange(20, 80)
        new = list(range(self._next, self._next + count))
        self._next += count
        appends = bool(self._keys) and len(self._keys) < MOST
        possible = self._keys + new if appends else new
        mode = ("append" if appends else "replace") if self._keys else "create"
        try:
            self.client.ingest(self._name, content.table(new), key="key", mode=mode, progress=False)
            self.check(possible)
        except (BowstringError, pa.ArrowException, OSError) as error:
            self.failed(error)
            self.elsewhere()
            self.check(self._keys, possible)
            # The change may still be made, by a server that cannot be reached now. So no more is said of this dataset.
            self._left.append(self._name)
            self._names += 1
            self._keys = []
        if number % 3 == 2:
            self.until_done(self.drop_old)
            self.collect()
        self.pause(1)

    def check(self, *states: list[int]) -> None:
        """Read all, and find which of the possible states it is."""

        def read() -> pa.Table:
            try:
                return self.client.dataset(self._name).columns(["key", "image"]).to_arrow()
            except NotFound:
                return content.table([]).select(["key", "image"])

        found = self.until_done(read)
        keys = found["key"].to_pylist()
        if keys not in states:
            self.found["lost"] += max(1, len(set(states[0]) - set(keys)))
            self.errors = [f"{len(keys)} rows of {self._name}, want one of {[len(s) for s in states]}"]
        for batch in found.to_batches():
            self.found["rows"] += batch.num_rows
            self.found["wrong"] += content.wrong(batch)
        self._keys = keys
        self.found["epochs"] += 1

    def drop_old(self) -> None:
        """Drop what is left over, and all snapshots but the newest."""
        for info in self.client.action("list"):
            old = info["snapshots"] if info["dataset"] in self._left else []
            if info["dataset"] == self._name:
                old = info["snapshots"][:-1]
            for snapshot in old:
                with contextlib.suppress(NotFound):  # it was dropped by a call with a lost answer
                    self.client.drop(info["dataset"], snapshot)

    def collect(self) -> None:
        """Collect, while the run sees that the client goes on.

        A collection waits for nodes that were killed, for the minutes after which a store counts them as dead.
        """
        done: list[dict[str, Any] | Exception] = []

        def run() -> None:
            try:
                done.append(self.client.action("gc")[0])
            except (BowstringError, pa.ArrowException, OSError) as error:
                done.append(error)

        threading.Thread(target=run, daemon=True).start()
        until = time.monotonic() + PATIENCE
        while not done:
            self.pause(0.2)
            if time.monotonic() > until:
                raise TimeoutError(f"a collection has not ended within {PATIENCE:.0f} s")
        (answer,) = done
        if isinstance(answer, Exception):
            self.failed(answer)
            self.elsewhere()
            return
        self.found["collections"] += 1
        self.found["freed"] += int(answer["freed_bytes"])
