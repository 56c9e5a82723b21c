"""silent_store: streams over a real Cassandra that says nothing any more: how long after --read-timeout they end."""

from __future__ import annotations

import functools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pyarrow.flight as fl
from cassandra_node import Cassandra
from harness import CASSANDRA, Context, Figure, Result, emit, needs
from node import Node
from nodes import DATASET, Links, Wire, upload
from sizes import sized

STREAMS = sized(20, smoke=4)
READ_TIMEOUT = float(os.environ.get("READ_TIMEOUT", sized("8", smoke="2")))  # seconds
SAMPLES, SIZE = sized(2000, smoke=400), 20_000
WINDOWS = sized("16MiB", smoke="2MiB")  # less than half of the samples: streams go on asking the store
TIMEOUT = 120.0  # seconds: a stream that has not ended by then counts as one that ends then
# Seconds that the server is stopped: one that comes back is no error of reads that began late.
OUTAGE = sized(45.0, smoke=12.0)

Way = Callable[[Links, Cassandra], AbstractContextManager[float]]


class Ends:
    """When calls have ended, and how."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}
        self.errors: dict[str, str] = {}
        self._threads: list[threading.Thread] = []

    def begin(self, name: str, call: Callable[[], object]) -> None:
        """Make a call in a thread of its own, and note its end."""

        def run() -> None:
            error = ""
            try:
                call()
            except fl.FlightUnavailableError as unavailable:
                error = str(unavailable)
            self.errors[name] = error
            self.at[name] = time.monotonic()

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def wait(self, until: float) -> None:
        """Wait for all calls, until some time at most."""
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))


@contextmanager
def held(links: Links, _: Cassandra) -> Iterator[float]:
    """All connections between server and database say nothing; bytes wait in the kernel."""
    links.do(set={"proxy": "store", "from": "", "fault": "hold"})
    try:
        yield TIMEOUT
    finally:
        links.do(set={"proxy": "store", "from": "", "fault": ""})


@contextmanager
def stopped(_: Links, cassandra: Cassandra) -> Iterator[float]:
    """The database's process is stopped, and goes on after a while."""
    os.kill(cassandra.pid, signal.SIGSTOP)
    try:
        yield OUTAGE
    finally:
        os.kill(cassandra.pid, signal.SIGCONT)


def late(server: Node, links: Links, cassandra: Cassandra, way: Way) -> dict[str, float]:
    """The latest end after --read-timeout of streams that run, and of calls that come while the store says nothing."""
    streams, calls = Ends(), Ends()
    came = [0] * STREAMS

    def stream(number: int) -> None:
        request = {
            "dataset": DATASET,
            "columns": ["image"],
            "batch": 32,
            "epochs": 1000,
            "shuffle": {"seed": number},
        }
        with fl.connect(server.url) as client:
            reader = client.do_get(fl.Ticket(json.dumps(request).encode()))
            while True:
                reader.read_chunk()
                came[number] += 1

    def act(name: str) -> None:
        with fl.connect(server.url) as client:
            list(client.do_action(fl.Action(name, b"{}")))

    def call() -> None:
        with fl.connect(server.url) as client:
            command = json.dumps({"dataset": DATASET, "columns": ["image"]})
            client.get_flight_info(fl.FlightDescriptor.for_command(command))

    for number in range(STREAMS):
        streams.begin(f"stream {number}", functools.partial(stream, number))
    while not all(came):
        time.sleep(0.05)
    with way(links, cassandra) as lasts:
        began = time.monotonic()
        calls.begin("list", lambda: act("list"))
        calls.begin("info", call)
        calls.begin("put", lambda: upload(server.url, 10, SIZE, "another"))
        streams.wait(began + lasts)
        calls.wait(began + lasts)
        found = {
            f"{kind}late_s": max(ends.at.get(name, began + TIMEOUT) - began - READ_TIMEOUT for name in names)
            for kind, ends, names in (
                ("", streams, [f"stream {number}" for number in range(STREAMS)]),
                ("calls_", calls, ["list", "info", "put"]),
            )
        }
        unnamed = [e for e in streams.errors.values() if "position" not in e or "check" not in e]
    streams.wait(time.monotonic() + TIMEOUT)  # they have gone on if they did not end
    return {**found, "ended": float(len(streams.at)), "unnamed": float(len(unnamed))}


@needs(CASSANDRA)
def run(context: Context) -> Result:
    """Each way of being silent with a server of its own, over one database."""
    found: dict[str, dict[str, float]] = {}
    links = Links(context.binary)
    try:
        with Cassandra(context.folder / "cassandra-silent", HEAP="512m") as cassandra:
            links.link("store", Wire())
            proxy = links.proxy("store", "store", f"127.0.0.1:{cassandra.port}")
            store = cassandra.uri("silent", int(proxy.rpartition(":")[2]))
            context.bowstring("store", "init", "--store", store)
            options = (f"--read-timeout={READ_TIMEOUT:g}s", f"--window-memory={WINDOWS}")
            with Node(context.binary, store, *options) as server:
                upload(server.url, SAMPLES, SIZE)
            for name, way in (("held", held), ("stopped", stopped)):
                with Node(context.binary, store, *options) as server:
                    found[name] = late(server, links, cassandra, way)
                emit(case="silent_store", way=name, **{k: round(v, 2) for k, v in found[name].items()})
    finally:
        links.close()
    return Result(
        "silent_store",
        [
            Figure("late_s", max(f["late_s"] for f in found.values())),
            Figure("calls_late_s", max(f["calls_late_s"] for f in found.values())),
            Figure("unnamed", max(f["unnamed"] for f in found.values())),
        ],
        {f"late_s_{name}": round(f["late_s"], 2) for name, f in found.items()},
    )
