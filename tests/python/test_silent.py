"""Servers that accept a connection and do not answer: only the calling thread waits, and it can be woken."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import bowstring
import pytest
from node import Node
from relay import Relay
from wire import until

EVERY = list(range(300))
SECONDS = 180  # for a thread or a process


@pytest.fixture(params=["a new connection", "a known one"])
def relay(request: pytest.FixtureRequest, node: Node) -> Iterator[Relay]:
    """A way to the shared server that is silent when a client first comes, or that falls silent later."""
    with Relay(node.port, talks=request.param == "a known one") as found:
        yield found


@pytest.fixture(autouse=True)
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that take the server to be on another node."""
    monkeypatch.setenv("BOWSTRING_LOCAL", "off")


def by(relay: Relay, here: bowstring.Client) -> bowstring.Dataset:
    """The photographs, by a way that is silent now. Nothing was asked that way, or something was."""
    photos = copy.copy(here.dataset("photos").columns(["position"]))
    _ = photos.schema
    photos._client = bowstring.connect(relay.url)
    if relay.is_talking:
        assert photos.client.stats()
        relay.falls_silent()
    return photos


def positions(batches: Any) -> list[int]:
    return [position for batch in batches for position in batch["position"].to_pylist()]


class Running(threading.Thread):
    """A thread, what it has returned, and what it has raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.call = call
        self.found: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.found = self.call()
        except bowstring.BowstringError as error:
            self.found = error

    def ends(self) -> Any:
        self.join(SECONDS)
        assert not self.is_alive()
        return self.found


ASKING: dict[str, Callable[[bowstring.Dataset], Any]] = {
    "a stream": lambda photos: positions(photos.batches(50)) == EVERY,
    "an exchange": lambda photos: photos.take([5]).num_rows == 1,
    "a schema": lambda photos: "position" in photos._but(_schema=None).schema.names,
    "a plan": lambda photos: photos.plan().rows == 300,
    "an action": lambda photos: "streams" in photos.client.stats(),
}


@pytest.mark.parametrize("what", ASKING)
def test_a_call_to_another_server_does_not_wait(here: bowstring.Client, relay: Relay, what: str) -> None:
    photos = by(relay, here)
    asking = Running(lambda: ASKING[what](photos))
    relay.waits_for_a_client()
    other = bowstring.connect(here.uri).dataset("photos").columns(["position"])
    assert positions(other.batches(50)) == EVERY
    assert other.take([3]).num_rows == 1
    assert asking.is_alive()
    relay.talks()
    assert asking.ends() is True


@pytest.mark.parametrize("what", ASKING)
def test_a_fork_meanwhile(here: bowstring.Client, relay: Relay, what: str) -> None:
    """It does not wait for ever, and the child reads, as its parent does. The request is answered in the end."""
    photos = by(relay, here)
    other = here.dataset("photos").columns(["position"])
    batches = other.batches(50)
    seen = next(batches)["position"].to_pylist()
    asking = Running(lambda: ASKING[what](photos))
    relay.waits_for_a_client()
    pid = os.fork()
    if pid == 0:
        signal.alarm(SECONDS)
        status = 1
        try:
            status = 0 if seen + positions(batches) == EVERY and other.take([3]).num_rows == 1 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert seen + positions(batches) == EVERY
    assert asking.is_alive()
    relay.talks()
    assert asking.ends() is True


def test_closing_wakes_a_waiting_thread(here: bowstring.Client, relay: Relay) -> None:
    photos = by(relay, here)
    batches = photos.shuffle(31).batches(1, epochs=1000)
    asking = Running(lambda: positions(batches))
    relay.waits_for_a_client()
    batches.close()
    assert asking.ends() == []
    relay.talks()
    until(lambda: not photos.client.stats()["streams"], "the end of unread streams")


def test_closing_an_exchange_wakes_a_waiting_thread(here: bowstring.Client, relay: Relay) -> None:
    exchange = by(relay, here).exchange()
    asking = Running(lambda: exchange.take([5]))
    relay.waits_for_a_client()
    exchange.close()
    assert isinstance(asking.ends(), bowstring.Cancelled)
    relay.talks()
    assert exchange.take([5]).num_rows == 1  # by a call of its own
    exchange.close()


def test_closing_an_unused_exchange(node: Node) -> None:
    with Relay(node.port) as relay:
        exchange = bowstring.connect(relay.url).dataset("photos").columns(["position"]).exchange()
        assert exchange.take([5]).num_rows == 1
        relay.falls_silent()
        exchange.close()


def test_an_interrupt(here: bowstring.Client, relay: Relay) -> None:
    """The thread that has the signals is woken, the process goes on, and so does the stream."""
    script = """
import bowstring, copy, sys
photos = bowstring.connect(sys.argv[1]).dataset("photos").columns(["position"])
photos.schema
photos = copy.copy(photos)
photos._client = bowstring.connect(sys.argv[2])
if len(sys.argv) > 3:
    photos.client.stats()
print("ready", flush=True)
sys.stdin.readline()
batches = photos.batches(50)
try:
    next(batches)
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.stdin.readline()
print(sum(batch.num_rows for batch in batches), flush=True)
"""
    known = ["known"] if relay.is_talking else []
    process = subprocess.Popen(
        [sys.executable, "-c", script, here.uri, relay.url, *known],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        relay.falls_silent()
        process.stdin.write("go\n")
        relay.waits_for_a_client()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        relay.talks()
        process.stdin.write("go\n")
        assert process.stdout.readline() == "300\n"
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_process_ends_that_was_interrupted(node: Node) -> None:
    """Its call has no answer still."""
    script = """
import bowstring, sys
next(bowstring.Dataset(bowstring.connect(sys.argv[1]), "photos", 1, None, 300).batches(50))
"""
    with Relay(node.port, talks=False) as relay:
        process = subprocess.Popen([sys.executable, "-c", script, relay.url], stderr=subprocess.PIPE, text=True)
        try:
            relay.waits_for_a_client()
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=SECONDS)
            assert process.returncode == -signal.SIGINT, said
            assert "KeyboardInterrupt" in said
        finally:
            process.kill()
            process.wait()
