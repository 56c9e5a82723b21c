"""A server that is asked to end lets its streams finish, and ends at its deadline at the latest."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter

import grpc
import pyarrow.flight as fl
import pytest
from conftest import StartNode
from grpc_health.v1 import health_pb2, health_pb2_grpc
from wire import UNREAD, read, stream, ticket


def test_running_streams_finish_and_new_ones_are_refused(start: StartNode) -> None:
    node = start("--window-memory", "8MiB", "--drain-timeout", "10m")  # a busy machine reads for longer than 30 s
    with (
        fl.connect(node.url) as own,
        grpc.insecure_channel(node.url.removeprefix("grpc://")) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=600)
        assert next(health).status == health_pb2.HealthCheckResponse.SERVING
        parts = stream(own, ticket(dataset="photos", batch=4, epochs=UNREAD))
        rows = next(parts).data.num_rows
        node.terminate()
        assert next(health).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(fl.FlightUnavailableError, match="drain"):
            own.get_flight_info(fl.FlightDescriptor.for_path("photos"))
        assert rows + sum(p.data.num_rows for p in parts) == UNREAD * 300
    assert node.wait() == 0


@pytest.mark.slow
def test_the_deadline_ends_what_does_not_finish(start: StartNode) -> None:
    node = start("--window-memory", "8MiB", "--drain-timeout", "1s")
    with fl.connect(node.url) as own:
        parts = stream(own, ticket(dataset="photos", batch=4, shuffle={}, epochs=UNREAD))
        served = [next(parts)]
        node.terminate()
        node.wait()  # the reader is stalled, and holds nothing up
        with pytest.raises(fl.FlightUnavailableError):
            served.extend(parts)
    # Elsewhere the stream goes on.
    again = start(store=node.store)
    with fl.connect(again.url) as other:
        resume = fl.Ticket(json.dumps(served[-1].about["resume"]).encode())
        served.extend(stream(other, resume))
        assert sum(p.data.num_rows for p in served) == UNREAD * 300
        assert set(Counter(i for p in served for i in p.data["id"].to_pylist()).values()) == {UNREAD}


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_ends_at_once_and_well(start: StartNode, sent: signal.Signals) -> None:
    node = start("--drain-timeout", "1h")
    with fl.connect(node.url) as own:
        read(own, dataset="photos", columns=["label"])
        os.kill(node.pid, sent)
        assert node.wait() == 0
    # The store is free again and whole.
    with fl.connect(start(store=node.store).url) as other:
        assert read(other, dataset="photos").num_rows == 300
