"""Clients and datasets survive pickling and forks."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from typing import Any

import bowstring
import numpy as np
import pytest
from bowstring import stream

SECONDS = 180  # for a child process


def test_pickles_are_small_and_read_the_same(here: bowstring.Client) -> None:
    photos = here.dataset("photos", split="train").where("width > 100").shuffle(1).select(range(0, 300, 3))
    assert photos.num_rows
    _ = photos.schema
    data = pickle.dumps(photos)
    assert len(data) < 2500
    copy = pickle.loads(data)
    assert copy == photos
    assert copy.columns(["id"]).to_arrow().equals(photos.columns(["id"]).to_arrow())
    assert len(pickle.dumps(photos.select(np.arange(0, 300)))) < 2500


def child(dataset: bowstring.Dataset, results: Any) -> None:
    results.put((os.getpid(), dataset.to_arrow().num_rows, dataset.take([1, 2]).num_rows))


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_in_another_process(here: bowstring.Client, how: Any) -> None:
    """The client, a stream and an exchange are in use in the parent; both go on."""
    photos = here.dataset("photos", split="train").columns(["position", "image"])
    batches = photos.batches(10)
    seen = next(batches)["position"].to_pylist()
    with photos.exchange() as exchange:
        assert exchange.take([5]).num_rows == 1
        context: Any = multiprocessing.get_context(how)
        results = context.Queue()
        children = [context.Process(target=child, args=(photos, results), daemon=True) for _ in range(2)]
        for c in children:
            c.start()
        found = [results.get(timeout=SECONDS) for _ in children]
        assert {(rows, taken) for _, rows, taken in found} == {(270, 2)}
        assert len({pid for pid, *_ in found} | {os.getpid()}) == 3
        for c in children:
            c.join(SECONDS)
            assert c.exitcode == 0
        assert exchange.take([6]).num_rows == 1
    for batch in batches:
        seen += batch["position"].to_pylist()
    assert seen == list(range(270))


def test_forks_while_threads_read(here: bowstring.Client) -> None:
    """Each thread gets every row once, however often the process forks meanwhile."""
    photos = here.dataset("photos").columns(["position"]).shuffle(3)
    found: list[list[int]] = []

    def read(seed: int) -> None:
        rows: list[int] = []
        for batch in photos.shuffle(seed).batches(2, epochs=4):
            rows += batch["position"].to_pylist()
        found.append(rows)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for t in threads:
        t.start()
    for _ in range(10):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                status = 0 if photos.to_arrow().num_rows == 300 else 2
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
    for t in threads:
        t.join(SECONDS)
    assert [sorted(rows) for rows in found] == [sorted(list(range(300)) * 4)] * 3


def test_a_fork_does_not_wait_for_threads_that_wait_for_it(
    here: bowstring.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads whose calls are cancelled repeat them, which has to wait until the fork is over."""
    monkeypatch.setattr(stream, "_PATIENCE", 3600.0)
    monkeypatch.setenv("BOWSTRING_LOCAL", "off")
    with here.dataset("photos").columns(["position"]).shuffle(3).batches(2, epochs=50) as batches:
        for _ in range(10):
            next(batches)
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0


def test_a_fork_during_an_upload_says_so(here: bowstring.Client) -> None:
    script = """
import bowstring, os, pyarrow as pa, sys
client = bowstring.connect(sys.argv[1])
def rows():
    yield pa.record_batch({"a": [1]})
    pid = os.fork()
    if pid == 0:
        try:
            client.datasets()  # reading has nothing of gRPC's
            client.ingest("other", pa.table({"a": [1]}), progress=False)
        except bowstring.BowstringError as error:
            os._exit(7 if "upload" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    yield pa.record_batch({"a": [2]})
print(client.ingest("forked", rows(), progress=False).rows)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, here.uri], check=False, capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    here.drop("forked")


@pytest.mark.slow
def test_a_fork_with_a_client_that_is_not_the_packages(here: bowstring.Client) -> None:
    """The child works, or it says what is wrong; it does not wait for ever."""
    script = """
import bowstring, os, pyarrow as pa, pyarrow.flight as fl, sys
client = bowstring.connect(sys.argv[1])
client.datasets()
own = fl.connect(sys.argv[1])
list(own.list_actions())
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        try:
            client.datasets()  # reading has nothing of gRPC's
            client.ingest("beside", pa.table({"a": [1]}), progress=False)
        except bowstring.BowstringError as error:
            os._exit(7 if "FlightClient" in str(error) else 8)
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    client.datasets()
"""
    done = subprocess.run(
        [sys.executable, "-c", script, here.uri], check=False, capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.returncode, done.stdout) == (0, "7\n7\n"), done.stderr


@pytest.mark.parametrize("beside", ["", "channel"])
def test_a_child_does_not_collect_what_its_parent_made(here: bowstring.Client, beside: str) -> None:
    """A child that destroys a FlightClient hangs; if the process also has a channel of grpcio, it ends with SIGABRT."""
    script = """
import gc, grpc, os, signal, sys
import bowstring, pyarrow.flight as fl
gc.disable()
cycle = {"client": fl.connect(sys.argv[1])}
list(cycle["client"].list_actions())
if sys.argv[2]:
    cycle["channel"] = grpc.insecure_channel(sys.argv[1].removeprefix("grpc://"))
    grpc.channel_ready_future(cycle["channel"]).result()
cycle["itself"] = cycle
del cycle
pid = os.fork()
if pid == 0:
    signal.alarm(120)
    gc.collect()
    made = bowstring.connect(sys.argv[1]).dataset("photos").columns(["position"]).to_arrow()
    os._exit(0 if made.num_rows == 300 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, here.uri, beside],
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


@pytest.mark.slow
def test_many_forks(here: bowstring.Client) -> None:
    """The last thread of gRPC goes some time after the others."""
    script = """
import bowstring, os, sys
photos = bowstring.connect(sys.argv[1]).dataset("photos").columns(["position"])
for _ in range(60):
    assert photos.to_arrow().num_rows == 300
    pid = os.fork()
    if pid == 0:
        os._exit(0 if photos.to_arrow().num_rows == 300 else 1)
    assert os.waitpid(pid, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", script, here.uri], check=True, timeout=2 * SECONDS)
