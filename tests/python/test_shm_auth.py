"""Shared memory beside TLS, tokens and rules: who gets blobs by it gets what the rules let through, and no more.

And each end of the socket knows the other: a program that impersonates one is detected.
"""

from __future__ import annotations

import contextlib
import gc
import json
import mmap
import multiprocessing
import os
import socket
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bowstring as package  # a fixture has its name
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from bowstring._transport import shm, shm_auth
from conftest import StartNode
from local_photos import Seen, a_ring, digests, photos, rings, ways
from node import Node
from pki import Authority
from wire import until

Run = Callable[..., subprocess.CompletedProcess[str]]

ROWS, SIZE = 40, 16_000
RULES = """
rules:
  - {principals: [root], datasets: ["*"], rights: [admin]}
  - {principals: [alice], datasets: [seen], rights: [read], where: "label < 5", columns: [id, label, image]}
"""


def image(row: int) -> bytes:
    return f"sample {row:04} ".encode() * (SIZE // 12)


def test_rules_hold(binary: Path, bowstring: Run, tmp_path: Path) -> None:
    authority, tokens, rules = Authority(tmp_path / "pki"), tmp_path / "tokens.json", tmp_path / "rules.yaml"
    cert, key = authority.server()
    rules.write_text(RULES)
    admin, alice = (
        bowstring("token", "create", "--tokens", tokens, "--principal", who).stdout.strip() for who in ("root", "alice")
    )
    flags = ["--tls-cert", cert, "--tls-key", key, "--tokens", tokens, "--rules", rules, "--local", tmp_path / "socket"]
    with Node(binary, tmp_path / "store", *map(str, flags)) as node:
        table = pa.table(
            {
                "name": [f"{i:04}.jpg" for i in range(ROWS)],
                "label": pa.array([i % 10 for i in range(ROWS)], pa.int64()),
                "image": pa.array([image(i) for i in range(ROWS)], pa.large_binary()),
            }
        )
        options = fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {admin}".encode())])
        with fl.connect(node.url, tls_root_certs=authority.root) as client:
            for dataset in ("seen", "hidden"):
                command = f'{{"put": {{"dataset": "{dataset}", "key": "name", "blobs": ["image"]}}}}'
                writer, _ = client.do_put(fl.FlightDescriptor.for_command(command), table.schema, options=options)
                writer.write_table(table)
                writer.close()
        others = set(shm._rings)
        with package.connect(node.url, token=alice, tls_root_certs=authority.root) as client:
            with client.dataset("seen").columns(["label", "image"]).batches(ROWS) as batches:
                (batch,) = batches
                assert batches.place is not None
                assert batches.place["transport"] == "shared"
            allowed = [i for i in range(ROWS) if i % 10 < 5]
            assert sorted(batch["image"].to_pylist()) == [image(i) for i in allowed]
            (ring,) = set(shm._rings) - others
            for row in range(ROWS):
                assert (ring._memory.find(f"sample {row:04} ".encode()) >= 0) == (row in allowed)
            with pytest.raises(package.NotFound):
                next(iter(client.dataset("hidden").columns(["image"]).batches(ROWS)))
        with (
            package.connect(node.url, token="wrong", tls_root_certs=authority.root) as client,
            pytest.raises(package.Unauthenticated),
        ):
            next(iter(client.dataset("seen").columns(["image"]).batches(ROWS)))


@contextlib.contextmanager
def standing_in(path: Path, says: Callable[[socket.socket, dict[str, Any]], None]) -> Iterator[list[dict[str, Any]]]:
    """A program at a socket, which does something with the first message of each client."""
    heard: list[dict[str, Any]] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):  # the test is over
                while True:
                    client, _ = listener.accept()
                    with client, contextlib.suppress(OSError, ValueError):
                        heard.append(json.loads(client.recv(4096)))
                        says(client, heard[-1])

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield heard
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_stand_in_at_the_socket_is_found_out(
    start: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the server's name, which every client gets, and shares memory of its own."""
    node = start("--local", str(tmp_path / "socket"))
    (place,) = package.connect(node.url).action("shm")
    shared = os.memfd_create("ring")
    os.ftruncate(shared, 1 << 26)

    def lie(client: socket.socket, hello: dict[str, Any]) -> None:
        proof = shm_auth._proof(b"a guess", "server", hello["nonce"], "0" * 32).decode()
        said = {"version": shm_auth.VERSION, "server": place["server"], "nonce": "0" * 32, "proof": proof}
        client.send(json.dumps(said).encode())
        given = json.dumps({"ring": "ring", "bytes": 1 << 26}).encode()
        socket.send_fds(client, [given], [shared])
        client.recv(4096)

    monkeypatch.setenv("BOWSTRING_LOCAL", str(tmp_path / "taken"))
    with standing_in(tmp_path / "taken", lie) as heard:
        client = package.connect(node.url)
        seen: Seen = {}
        with pytest.warns(RuntimeWarning, match="does not know the key"):
            came = [(batch, way) for batch, way in ways(photos(client).batches(16))]
        for batch, _ in came:
            seen.update(digests(batch))
    os.close(shared)
    assert heard
    assert all(place["key"] not in json.dumps(hello) for hello in heard)
    assert {way for _, way in came} == {"tcp"}
    assert len(seen) == 300


@pytest.mark.parametrize(
    "said",
    [
        b"[" * 4000,
        b"[]",
        b'{"version": %d, "server": "%s", "nonce": "\\ud800", "proof": "\\ud800"}',
        b'{"version": %d, "server": "%s", "nonce": 1e999, "proof": null}',
        b'{"version": %d, "server": "%s", "error": ["x"]}',
        b"\xff",
    ],
    ids=["deep", "a list", "no characters", "numbers", "an error", "no text"],
)
def test_whatever_a_stand_in_says_batches_come_by_tcp(start: StartNode, tmp_path: Path, said: bytes) -> None:
    node = start("--local", str(tmp_path / "socket"))
    client = package.connect(node.url)
    (answer,) = client.action("shm")
    if b"%d" in said:
        said = said % (shm_auth.VERSION, answer["server"].encode())
    with standing_in(tmp_path / "taken", lambda caller, _: caller.sendall(said)) as heard:
        client.rings.known([answer | {"socket": str(tmp_path / "taken")}])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            assert client.rings.take() is None
    assert heard


def test_a_program_of_another_user_is_found_out(start: StartNode, tmp_path: Path) -> None:
    """Also one that would pass on what client and server say: nothing is said to it."""
    node = start("--local", str(tmp_path / "socket"))
    client = package.connect(node.url)
    assert client.shares()
    client.rings.close()
    (answer,) = client.action("shm")
    assert answer["uid"] == os.geteuid()
    client.rings.known([answer | {"uid": answer["uid"] + 1}])
    with pytest.warns(RuntimeWarning, match=f"a program of user {os.geteuid()} listens"):
        assert client.rings.take() is None
    client.rings.known([answer])
    assert client.rings.take() is not None


def test_a_ring_is_of_no_use_to_another_caller(binary: Path, bowstring: Run, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    alice, bob = (
        bowstring("token", "create", "--tokens", tokens, "--principal", who).stdout.strip() for who in ("alice", "bob")
    )
    flags = ["--tokens", tokens, "--local", tmp_path / "socket", "--insecure"]
    with Node(binary, tmp_path / "store", *map(str, flags)) as node:
        ours, theirs = package.connect(node.url, token=alice), package.connect(node.url, token=bob)
        table = pa.table({"image": pa.array([image(i) for i in range(ROWS)], pa.large_binary())})
        ours.ingest("seen", table)
        (answer,), (other) = ours.action("shm"), theirs.action("shm")
        assert (answer["caller"], other[0]["caller"]) == ("alice", "bob")
        assert answer["key"] != other[0]["key"]
        ring = a_ring(ours)
        for token, shared in ((bob, False), (alice, True)):
            headers = [(b"authorization", f"Bearer {token}".encode()), (b"bowstring-ring", ring.begin().encode())]
            reader = fl.connect(node.url).do_get(
                fl.Ticket(json.dumps({"dataset": "seen", "batch": ROWS}).encode()),
                fl.FlightCallOptions(headers=headers),
            )
            chunk = reader.read_chunk()
            assert (b'"shared"' in chunk.app_metadata.to_pybytes()) == shared
        # Nor does anybody get one in the name of another.
        place = shm_auth.Endpoint.from_answer(answer)
        with pytest.raises(OSError, match="does not know the key"):
            shm.Ring(place._replace(key=bytes.fromhex(other[0]["key"])))


def test_what_a_client_keeps_of_ended_rings_counts(start: StartNode, tmp_path: Path) -> None:
    """A client that takes rings, ends them and keeps their memory has no more than its user may."""
    node = start("--local", str(tmp_path / "socket"), "--local-ring=1MiB", "--local-memory=4MiB")
    client = package.connect(node.url)
    (answer,) = client.action("shm")
    kept: list[mmap.mmap] = []
    refused = 0
    for _ in range(20):
        try:
            ring = shm.Ring(shm_auth.Endpoint.from_answer(answer))
        except OSError as error:
            assert "have not released" in str(error)  # noqa: PT017
            refused += 1
            continue
        kept.append(ring._memory)
        ring.close()
    until(lambda: rings(client)["rings"] == 0, "all rings have ended")
    assert (len(kept), refused) == (4, 16)
    assert rings(client)["kept"] == rings(client)["bytes"] == 4 << 20
    del ring
    kept.clear()
    gc.collect()
    until(lambda: rings(client)["bytes"] == 0, "nothing is kept")


def _wait(go: Any) -> None:
    go.wait()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_keeps_nothing_of_rings_that_it_has_no_batch_of(start: StartNode, tmp_path: Path) -> None:
    node = start("--local", str(tmp_path / "socket"))
    client = package.connect(node.url)
    with photos(client).batches(16) as batches:
        next(batches)
    assert rings(client)["bytes"] > 0
    context = multiprocessing.get_context("fork")
    go = context.Event()
    child = context.Process(target=_wait, args=(go,))
    child.start()
    try:
        client.rings.close()
        del batches
        gc.collect()
        until(lambda: rings(client)["bytes"] == 0, "nothing is kept")
    finally:
        go.set()
        child.join()
