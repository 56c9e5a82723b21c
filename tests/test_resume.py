"""A stream that broke goes on exactly where it was: after kill -9 of the client, and of the server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from conftest import StartNode
from node import Node
from wire import UNREAD, command, put, read, stream, ticket

REQUEST: dict[str, Any] = {
    "dataset": "photos",
    "columns": ["id", "image"],
    "batch": 8,
    "batch_bytes": 250_000,  # so that a step is cut into parts, and a ticket points into one
    "shuffle": {"seed": 3, "epoch": 1},
}

# A client that notes what it got and then how to go on, one line a batch, and never gets to its end.
CLIENT = """
import json, sys
import pyarrow.flight as fl
client = fl.connect(sys.argv[1])
with open(sys.argv[3], "a") as log:
    for n, chunk in enumerate(client.do_get(fl.Ticket(sys.argv[2].encode()))):
        about = json.loads(chunk.app_metadata.to_pybytes())
        ids = [str(i) for i in chunk.data["id"].to_pylist()]
        log.write(json.dumps({"ids": ids, "resume": about["resume"]}) + "\\n")
        log.flush()
        if n == int(sys.argv[4]):
            print("now", flush=True)
            sys.stdin.read()
"""


def whole(client: fl.FlightClient) -> list[str]:
    return [str(i) for i in read(client, **REQUEST)["id"].to_pylist()]


@pytest.mark.parametrize("batches", [0, 1, 5, 30])
def test_after_kill_of_the_client(node: Node, client: fl.FlightClient, tmp_path: Path, batches: int) -> None:
    info = client.get_flight_info(command(**REQUEST))
    log = tmp_path / "log"
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, node.url, info.endpoints[0].ticket.ticket.decode(), log, str(batches)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"now\n"
        process.kill()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) == batches + 1
    before = [i for line in lines for i in line["ids"]]
    checkpoint = fl.Ticket(json.dumps(lines[-1]["resume"]).encode())
    after = [str(i) for p in stream(client, checkpoint) for i in p.data["id"].to_pylist()]
    assert before + after == whole(client)


def test_after_kill_of_the_server(start: StartNode, client: fl.FlightClient) -> None:
    node = start()
    everything = ticket(**REQUEST, epochs=UNREAD)
    # The port must be free again at once, for the server that takes over.
    url, port, store = node.url, node.port, node.store
    served: list[str] = []
    with fl.connect(url) as own:
        parts = stream(own, everything)
        resume: dict[str, Any] = {}

        def take_until(samples: int) -> None:
            nonlocal resume
            while len(served) < samples:
                data, about = next(parts)
                served.extend(str(i) for i in data["id"].to_pylist())
                resume = about["resume"]

        take_until(40)
        node.kill()
        with pytest.raises((fl.FlightUnavailableError, fl.FlightInternalError)):
            take_until(UNREAD * 300)  # what is on its way still arrives
    assert len(served) < UNREAD * 300
    again = Node(node.binary, store, log=node.log)
    again.start(listen=f"127.0.0.1:{port}")
    try:
        with fl.connect(again.url) as own:
            rest = stream(own, fl.Ticket(json.dumps(resume).encode()))
            served += [str(i) for p in rest for i in p.data["id"].to_pylist()]
    finally:
        again.stop()
    assert served == [str(i) for p in stream(client, everything) for i in p.data["id"].to_pylist()]
    assert served[:300] == whole(client)


def test_every_batch_of_every_rank_is_a_place_to_resume(client: fl.FlightClient) -> None:
    info = client.get_flight_info(command(**REQUEST | {"world": {"size": 3}, "columns": ["id", "image"]}))
    for endpoint in info.endpoints:
        parts = [([str(i) for i in p.data["id"].to_pylist()], p.about["resume"]) for p in stream(client, endpoint)]
        for n in range(0, len(parts), 7):
            ticket = fl.Ticket(json.dumps(parts[n][1]).encode())
            rest = [str(i) for p in stream(client, ticket) for i in p.data["id"].to_pylist()]
            assert rest == [i for ids, _ in parts[n + 1 :] for i in ids]


def test_the_last_resume_is_an_empty_stream(client: fl.FlightClient) -> None:
    info = client.get_flight_info(command(**REQUEST))
    *_, last = stream(client, info.endpoints[0])
    table = client.do_get(fl.Ticket(json.dumps(last.about["resume"]).encode())).read_all()
    assert table.num_rows == 0
    assert table.schema.names == ["id", "image"]


def test_a_worker_resumes_among_its_own_steps(client: fl.FlightClient) -> None:
    endpoint = client.get_flight_info(command(**REQUEST)).endpoints[0]
    ticket = json.loads(endpoint.ticket.ticket) | {"step": 1, "stride": 3}
    parts = list(stream(client, fl.Ticket(json.dumps(ticket).encode())))
    middle = len(parts) // 2
    rest = list(stream(client, fl.Ticket(json.dumps(parts[middle].about["resume"]).encode())))
    assert {p.about["step"] % 3 for p in rest} == {1}
    served = Counter(str(i) for p in parts[: middle + 1] + rest for i in p.data["id"].to_pylist())
    assert served == Counter(str(i) for p in parts for i in p.data["id"].to_pylist())


def test_a_new_snapshot_does_not_disturb_a_resume(start: StartNode) -> None:
    with fl.connect(start().url) as own:
        first = pa.table({"key": [f"a{i}" for i in range(100)], "image": pa.array([b"x"] * 100, pa.large_binary())})
        put(own, first, dataset="grows", key="key")
        request = {"dataset": "grows", "columns": ["key"], "batch": 10, "shuffle": {"seed": 1}}
        info = own.get_flight_info(command(**request))
        expected = own.do_get(info.endpoints[0].ticket).read_all()["key"].to_pylist()
        parts = stream(own, info.endpoints[0])
        head = [next(parts) for _ in range(4)]
        more = pa.table({"key": [f"b{i}" for i in range(50)], "image": pa.array([b"y"] * 50, pa.large_binary())})
        put(own, more, dataset="grows", key="key", mode="append")
        rest = stream(own, fl.Ticket(json.dumps(head[-1].about["resume"]).encode()))
        keys = [k for p in [*head, *rest] for k in p.data["key"].to_pylist()]
        assert keys == expected
