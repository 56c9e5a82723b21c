"""Answers in odd pieces, answers that break off, and invalid ones: the received part, and the error."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import random
import struct
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pytest
import raw
from bowstring import connection
from bowstring._transport import buffers, calls, http2, maintenance
from bowstring.errors import BowstringError
from raw import Peer, Raw

SECONDS = 180  # for a thread


def some(batches: int = 3, rows: int = 10) -> list[pa.RecordBatch]:
    return [
        pa.record_batch({"n": pa.array(range(i * rows, i * rows + rows)), "text": [f"{i}"] * rows})
        for i in range(batches)
    ]


def large(count: int, size: int, seed: int) -> list[pa.RecordBatch]:
    """Batches whose bodies land in blocks that are used again."""
    randomly = np.random.default_rng(seed)
    return [pa.record_batch({"x": pa.array(randomly.integers(0, 256, size, np.uint8))}) for _ in range(count)]


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread reads a connection in place of its consumer, but when the test says so."""
    monkeypatch.setattr(maintenance, "LULL", 3600.0)


def call(server: Raw) -> list[pa.RecordBatch]:
    """All that a call brings."""
    connections = calls.Connections(server.uri, None)
    try:
        return [chunk.data for chunk in raw.chunks(connections.get(b"ticket", []))]
    finally:
        connections.close()


def answering(*parts: bytes | Callable[[Peer, int], bytes], ends: bool = True) -> Callable[[Peer], None]:
    """Answer each call by an answer's beginning, some frames, and its end."""

    def talk(peer: Peer) -> None:
        peer.greets()
        while True:
            stream = peer.asked()
            peer.send(peer.answers(stream))
            for part in parts:
                peer.send(part(peer, stream) if callable(part) else part)
            if ends:
                peer.send(peer.ends(stream))

    return talk


def asked(peer: Peer) -> None:
    """Hear a request, and leave."""
    peer.greets()
    peer.asked()


def data(content: bytes) -> Callable[[Peer, int], bytes]:
    return lambda _, stream: raw.frame(raw.DATA, 0, stream, content)


@pytest.mark.parametrize("seed", range(4))
def test_however_the_bytes_come(seed: int) -> None:
    print("seed", seed)
    batches = large(3, 300_000, seed) + large(5, 1000, seed)
    content = b"".join(raw.flights(batches))
    noise = [raw.frame(raw.PING, 0, 0, b"12345678"), raw.setting(raw.SETTINGS, 1 << 15), raw.frame(0xFA, 0xFF, 7, b"?")]

    def frames(_: Peer, stream: int) -> bytes:
        randomly = random.Random(seed)
        return b"".join(
            frame + (randomly.choice(noise) if randomly.random() < 0.1 else b"")
            for frame in raw.cut(seed, content, stream)
        )

    with Raw(answering(frames), seed=seed) as server:
        assert call(server) == batches
    assert not server.failed


def test_wherever_a_message_is_split() -> None:
    batches = some(2, 3)
    content = b"".join(raw.flights(batches))
    cuts = itertools.count(1)

    def frames(_: Peer, stream: int) -> bytes:
        at = next(cuts)
        return raw.frame(raw.DATA, 0, stream, content[:at]) + raw.frame(raw.DATA, 0, stream, content[at:])

    with Raw(answering(frames)) as server:
        connections = calls.Connections(server.uri, None)
        for _ in range(1, len(content)):
            assert [chunk.data for chunk in raw.chunks(connections.get(b"ticket", []))] == batches
        connections.close()
        assert server.clients == 1  # one connection for all


def test_messages_without_anything_are_passed_over() -> None:
    batches = some()
    content = raw.flights(batches)
    with Raw(answering(data(raw.message(b"") + content[0] + raw.message(b"") + b"".join(content[1:])))) as server:
        assert call(server) == batches


def test_a_call_that_is_reset_when_its_time_is_up_has_timed_out() -> None:
    def talk(peer: Peer) -> None:
        peer.greets()
        while True:
            peer.send(raw.frame(raw.RST_STREAM, 0, peer.asked(), b"\0\0\0\x08"))

    with Raw(talk) as server:
        connections = calls.Connections(server.uri, None)
        for seconds in [1e-9] * 30:  # the socket's clock may be quicker, which comes to the same
            with pytest.raises(bowstring.TimedOut, match="has not answered within"):
                list(connections.action("list", b"", [], seconds, again=True))
        with pytest.raises(bowstring.Unavailable, match="reset the stream"):
            list(connections.action("list", b"", [], SECONDS, again=True))
        connections.close()


FAULTS: dict[str, tuple[Callable[[Peer], object], type[BowstringError], str]] = {
    "an end within a message": (answering(data(b"".join(raw.flights(some()))[:-9])), bowstring.ServerError, "within"),
    "an end within a length": (
        answering(data(b"".join(raw.flights(some())) + b"\0\0")), bowstring.ServerError, "within",
    ),
    "nothing": (answering(), bowstring.ServerError, "schema"),
    "no HTTP/2": (lambda p: p.send(b"HTTP/1.1 503 Unavailable\r\n\r\n"), bowstring.Unavailable, "does not speak"),
    "padding of nothing": (
        answering(lambda _, s: raw.frame(raw.HEADERS, raw.END_HEADERS | raw.PADDED, s)),
        bowstring.ServerError, "padding",
    ),
    "padding longer than its headers": (
        answering(lambda _, s: raw.frame(raw.HEADERS, raw.END_HEADERS | raw.PADDED, s, b"\xff\x88")),
        bowstring.ServerError, "padding",
    ),
    "padding longer than its data": (
        answering(lambda _, s: raw.frame(raw.DATA, raw.PADDED, s, b"\xff\x88")), bowstring.ServerError, "padding",
    ),
    "an error of flow control": (
        answering(lambda _, s: raw.frame(raw.RST_STREAM, 0, s, struct.pack(">I", 3))), bowstring.ServerError, "error 3",
    ),
    "a status": (
        answering(lambda p, s: p.ends(s, 5, "there is no %E2%82%AC"), ends=False), bowstring.NotFound, "there is no €$",
    ),
    "a close": (asked, bowstring.Unavailable, "the connection broke: [^:]*$"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_reported_errors(fault: str) -> None:
    talk, kind, text = FAULTS[fault]
    with Raw(talk) as server, pytest.raises(kind, match=text):
        call(server)


@pytest.fixture
def uncollected() -> Iterator[None]:
    """As many who train have it: what refers to itself stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected", "unread")
def test_calls_that_fail_leave_nothing() -> None:
    with Raw(answering(lambda p, s: p.ends(s, 5, "no"), ends=False)) as server:
        connections = calls.Connections(server.uri, None)
        seen: list[weakref.ref[Any]] = []

        class Taken(calls._Taken[Any]):
            def __init__(self, parser: Any) -> None:
                super().__init__(parser)
                seen.append(weakref.ref(self))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(calls, "_Taken", Taken)
            for _ in range(10):
                with pytest.raises(bowstring.NotFound):
                    connections.get(b"ticket", [])
        assert server.clients == 1  # the connection is as good as before
        assert len(seen) == 10
        assert not any(ref() for ref in seen)
        connections.close()


BREAKS: dict[str, Callable[[Peer], object]] = {
    "closed by the server": asked,
    "no schema that Arrow reads": answering(data(raw.flight(bytes(40))), ends=False),
    "left": answering(data(b"".join(raw.flights(some()))), ends=False),
    "left at its end": answering(data(b"".join(raw.flights(some())))),
}


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.usefixtures("uncollected", "unread")
def test_connections_that_end_are_closed(how: str) -> None:
    with Raw(BREAKS[how]) as server:
        for _ in range(5):
            connections = calls.Connections(server.uri, None)
            try:
                reader = connections.get(b"ticket", [])
                reader.read_chunk()
                if how == "left at its end":
                    with reader._call._link.lock:
                        reader._call._link.advance()  # as the thread does that looks after connections
            except (BowstringError, OSError):
                pass
            finally:
                reader = None  # type: ignore[assignment]
            assert server.left.acquire(timeout=SECONDS)  # the server has seen the end of it


@pytest.mark.usefixtures("uncollected")
def test_a_connection_without_references_closes_its_sockets() -> None:
    with Raw(answering(data(b"".join(raw.flights(some()))))) as server:
        connections = calls.Connections(server.uri, None)
        assert len(list(raw.chunks(connections.get(b"ticket", [])))) == 3
        del connections
        assert server.left.acquire(timeout=SECONDS)


def test_who_ends_late_does_not_end_another_call() -> None:
    with Raw(answering(data(b"".join(raw.flights(some()))))) as server:
        connections = calls.Connections(server.uri, None)
        first = connections.get(b"ticket", [])
        assert len(list(raw.chunks(first))) == 3
        second = connections.get(b"ticket", [])
        assert server.clients == 1
        first.cancel()
        with pytest.raises(StopIteration):
            first.read_chunk()
        assert len(list(raw.chunks(second))) == 3
        connections.close()


@pytest.mark.usefixtures("unread")
def test_a_call_cancelled_while_it_is_read_is_closed() -> None:
    """The holder of the connection then closes it, even if no thread ever reads again."""
    content = b"".join(raw.flights(some()))
    with Raw(answering(data(content), ends=False)) as server:
        connections = calls.Connections(server.uri, None)
        reader = connections.get(b"ticket", [])
        link = reader._call._link
        advance, messages = link.advance, reader._call._taken

        def and_is_cancelled(*, wait: bool = True) -> bool:
            more = advance(wait=wait)
            if messages.ready:
                canceller = threading.Thread(target=reader.cancel)
                canceller.start()
                canceller.join()
            return more

        link.advance = and_is_cancelled  # type: ignore[method-assign]
        assert reader.read_chunk().data == some()[0]
        assert link._socket.fileno() == -1  # type: ignore[union-attr]


@pytest.mark.usefixtures("unread")
def test_a_pause_ends_though_all_that_may_be_sent_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client receives a whole window during a pause. The server may send more when reading goes on."""
    monkeypatch.setattr(http2, "_RECEIVE_WINDOW", 1 << 20)
    batches = large(16, 300_000, 1)
    content = b"".join(raw.flights(batches))
    full = threading.Event()

    def talk(peer: Peer) -> None:
        peer.greets()
        stream = peer.asked()
        peer.send(peer.answers(stream))
        room, at = 1 << 20, 0
        while at < len(content):
            part = content[at : at + min(room, 16384)]
            if not part:
                full.set()
                _, _, of, more = peer.until(raw.WINDOW_UPDATE)
                room += int.from_bytes(more, "big") if of else 0
            else:
                peer.send(raw.frame(raw.DATA, 0, stream, part))
                at, room = at + len(part), room - len(part)
        peer.send(peer.ends(stream))
        peer.stays()

    with Raw(talk) as server:
        connections = calls.Connections(server.uri, None)
        reader = connections.get(b"ticket", [])
        link = reader._call._link
        while not full.is_set() or link._taken < 1 << 20:
            with link.lock:
                link.catch_up()
        got: list[pa.RecordBatch] = []
        reads = threading.Thread(target=lambda: got.extend(c.data for c in raw.chunks(reader)), daemon=True)
        reads.start()
        reads.join(SECONDS)
        assert not reads.is_alive()
        assert got == batches
        connections.close()


@pytest.mark.parametrize("seed", range(3))
def test_a_large_request_waits_for_the_server(seed: int) -> None:
    """The room that a server has for a request changes while the request is sent, to below nothing as well."""
    print("seed", seed)
    ticket = random.Random(seed).randbytes(400_000)
    batches = some()

    def talk(peer: Peer) -> None:
        randomly = random.Random(seed)
        peer.greets(struct.pack(">HI", 4, 70_000))
        stream, window = 1, 70_000
        while True:
            _, flags, stream, _ = peer.until(raw.DATA)
            if flags & raw.END_STREAM:
                break
            new = randomly.choice([10, 50_000, 70_000, 100_000])
            peer.send(raw.setting(4, new) + raw.setting(5, randomly.choice([16384, 20_000])))
            window = new
            for to in (0, stream):
                peer.send(raw.frame(raw.WINDOW_UPDATE, 0, to, struct.pack(">I", randomly.randrange(1, 60_000))))
        assert window
        assert peer.requests[stream] == raw.message(raw.field(1, ticket))
        peer.send(peer.answers(stream) + b"".join(raw.cut(seed, b"".join(raw.flights(batches)), stream)))
        peer.send(peer.ends(stream))
        peer.stays()

    with Raw(talk, seed=seed) as server:
        connections = calls.Connections(server.uri, None)
        assert [chunk.data for chunk in raw.chunks(connections.get(ticket, []))] == batches
        connections.close()
    assert not server.failed


@pytest.mark.usefixtures("unread")
def test_memory_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: Any, size: int) -> Any:
        raise MemoryError(size)

    with Raw(answering(data(b"".join(raw.flights(large(2, 300_000, 1)))))) as server:
        connections = calls.Connections(server.uri, None)
        reader = connections.get(b"ticket", [])
        with monkeypatch.context() as patch:
            patch.setattr(buffers.Private, "take", none)
            with pytest.raises(MemoryError):
                reader.read_chunk()
        with pytest.raises(bowstring.Unavailable, match="left in the middle"):
            reader.read_chunk()
        assert server.left.acquire(timeout=SECONDS)


def test_a_kernel_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_HUGE", 9999)  # advice that no kernel knows
    batches = large(2, 300_000, 1)
    with Raw(answering(data(b"".join(raw.flights(batches))))) as server:
        assert call(server) == batches


def test_a_connection_is_left_alone_by_the_child_of_a_fork() -> None:
    with Raw(answering(data(b"".join(raw.flights(some()))))) as server:
        connections = calls.Connections(server.uri, None)
        assert len(list(raw.chunks(connections.get(b"ticket", [])))) == 3
        pid = os.fork()
        if pid == 0:
            try:
                fine = len(list(raw.chunks(connections.get(b"ticket", [])))) == 3
            finally:
                os._exit(0 if fine else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert len(list(raw.chunks(connections.get(b"ticket", [])))) == 3
        assert server.clients == 2
        connections.close()


def test_a_call_fails_by_its_status_whatever_came_before() -> None:
    message = struct.pack(">BI", 0, 3) + b"\x0a\x01x"
    with Raw(answering(data(message), lambda peer, stream: peer.ends(stream, 5, "no"), ends=False)) as server:
        connections = calls.Connections(server.uri, None)
        with pytest.raises(bowstring.NotFound, match="no"):
            connections.schema(b"", [], None)
        connections.close()


@pytest.mark.usefixtures("unread")
def test_a_connection_that_times_out_is_no_call_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel gives a connection up by the same exception; a stream of it goes on by another connection."""
    with Raw(answering(data(struct.pack(">BI", 0, 0)))) as server:
        connections = calls.Connections(server.uri, None)
        assert list(connections.action("stats", b"", [], 3600.0, again=True)) == [b""]
        (link,) = connections._free

        def cancels(_: memoryview, *, wait: bool) -> int:
            raise TimeoutError(errno.ETIMEDOUT, "Connection timed out") if wait else BlockingIOError

        monkeypatch.setattr(link, "_reads", cancels)
        next_one = calls.Call(link, connections._back, calls._Taken(calls._flights))
        next_one.begin(connections._headers("DoGet", []), b"")
        with pytest.raises(bowstring.Unavailable, match="the connection broke: Connection timed out"):
            next_one.next()
        connections.close()


def test_what_a_hidden_fork_leaves_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A FlightClient of the parent's is not destroyed in the child, whichever call comes first."""
    kept: list[object] = []
    monkeypatch.setattr(connection, "keep_forever", kept.append)
    client = bowstring.connect("grpc://127.0.0.1:1")
    client._flight, client._pid = parents, _ = object(), -1
    assert client._asked().uri == client.uri
    assert kept == [parents]
    assert (client._flight, client._pid) == (None, os.getpid())
