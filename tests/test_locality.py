"""Ranks that get what their nodes own: through stock pyarrow, on a server that is in no cluster."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from wire import command

REQUEST: dict[str, Any] = {
    "dataset": "photos",
    "columns": ["position", "image"],
    "batch": 32,
    "world": {"size": 3},
    "shuffle": {"seed": 5, "epoch": 2},
}


def positions(client: fl.FlightClient, ticket: bytes) -> list[int]:
    found: list[int] = client.do_get(fl.Ticket(ticket)).read_all()["position"].to_pylist()
    assert all(isinstance(position, int) for position in found)
    return found


def test_endpoints_say_who_owns(client: fl.FlightClient) -> None:
    plain = client.get_flight_info(command(**REQUEST))
    local = client.get_flight_info(command(**REQUEST, assign="local"))
    owners = json.loads(local.app_metadata)["owners"]
    assert len(owners) == 64
    for rank, (a, b) in enumerate(zip(plain.endpoints, local.endpoints, strict=True)):
        ticket = json.loads(b.ticket.ticket)
        assert (ticket["assign"], ticket["owners"], ticket["rank"]) == ("local", owners, rank)
        assert json.loads(b.app_metadata)["node"] == "node"
        assert b.locations == []  # the node has no address but this connection's
        # With one node ranks get what the plan gives them.
        assert positions(client, a.ticket.ticket) == positions(client, b.ticket.ticket)


def test_resumes_anywhere(client: fl.FlightClient) -> None:
    whole: list[int] = []
    resume: list[tuple[int, bytes]] = []
    for chunk in client.do_get(fl.Ticket(json.dumps({**REQUEST, "assign": "local", "rank": 1, "order": "strict"}))):
        whole += chunk.data["position"].to_pylist()
        resume.append((len(whole), json.dumps(json.loads(chunk.app_metadata.to_pybytes())["resume"]).encode()))
    for seen, ticket in resume[:: max(1, len(resume) // 4)]:
        assert json.loads(ticket)["owners"]
        assert positions(client, ticket) == whole[seen:]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"assign": "near"}, 'assign: got "near", want "plan" or "local"'),
        ({"owners": "0" * 64}, 'owners: got it with assign "plan"'),
        ({"assign": "local", "ranks": ["node"]}, "ranks: got 1 nodes, want one for each rank, as world.size is 3"),
        (
            {"assign": "local", "ranks": ["node", "x", "node"]},
            'ranks[1]: got "x", want the id of a node of the cluster: node',
        ),
        ({"assign": "local", "batch": 262145}, "batch: got 262145, want at most 262144"),
    ],
)
def test_impossible_requests(client: fl.FlightClient, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(pa.ArrowInvalid) as caught:
        client.get_flight_info(command(**{**REQUEST, **fields}))
    assert message in str(caught.value)


def test_unknown_layout(client: fl.FlightClient) -> None:
    with pytest.raises(KeyError, match="this server is in no cluster"):
        client.get_flight_info(command(**REQUEST, assign="local", owners="0" * 64))
