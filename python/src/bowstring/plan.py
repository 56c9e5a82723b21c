"""The size of an epoch, according to the server."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from bowstring._transport.wire import decoded, text


@dataclass(frozen=True)
class RankPlan:
    """One rank's share of an epoch."""

    rank: int
    rows: int
    steps: int
    ticket: dict[str, Any]
    _endpoint: bytes = field(repr=False)

    @property
    def expires(self) -> datetime | None:
        """Until when the ticket is valid."""
        # Parsed on demand: pyarrow imports pandas for it, which takes most of a second.
        found = fl.FlightEndpoint.deserialize(self._endpoint).expiration_time
        return None if found is None else datetime.fromisoformat(str(found))

    @property
    def locations(self) -> list[str]:
        """The servers for the ticket, the rank's own node first; empty if any connection will do."""
        return [text(location.uri) for location in fl.FlightEndpoint.deserialize(self._endpoint).locations]


@dataclass(frozen=True)
class Plan:
    """The size of an epoch, known before a byte is read.

    Attributes:
        id: The plan's name, which batches carry and `Client.cancel` takes.
        rows: Rows served, all ranks together.
        bytes: Size of their values in the requested columns; -1 if operators make values of unknown size.
        steps: Steps per rank.
        dropped: Rows that `remainder="drop"` leaves out.
        padded: Rows that `remainder="pad"` serves again.
        ranks: Each rank's share, with the ticket for it.
        schema: The schema of the batches.
    """

    id: str
    rows: int
    bytes: int
    steps: int
    dropped: int
    padded: int
    ranks: list[RankPlan]
    schema: pa.Schema


def plan_of(info: fl.FlightInfo) -> Plan:
    """The plan of a FlightInfo."""
    about = _object(info.app_metadata)
    replicas = about["ranks"] // about.get("data_ranks", about["ranks"])  # ranks that get the same samples
    ranks = []
    for endpoint in info.endpoints:
        share = _object(endpoint.app_metadata)
        ranks.append(
            RankPlan(
                rank=share["rank"],
                rows=share["rows"],
                steps=share["steps"],
                ticket=json.loads(endpoint.ticket.ticket),
                _endpoint=endpoint.serialize(),
            )
        )
    return Plan(
        id=about["plan"],
        rows=about["rows"],
        bytes=info.total_bytes if info.total_bytes < 0 else info.total_bytes // replicas,
        steps=about["steps"],
        dropped=about["dropped"],
        padded=about["padded"],
        ranks=ranks,
        schema=info.schema,
    )


def _object(metadata: bytes | pa.Buffer) -> dict[str, Any]:
    return decoded(metadata)
