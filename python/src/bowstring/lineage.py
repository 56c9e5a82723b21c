"""The samples that a step of a job held, as recorded by the servers that served them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bowstring._requests.state import snapshots
from bowstring.connection import Connection
from bowstring.errors import BowstringError, NotFound


@dataclass(frozen=True)
class RecordedJob:
    """A recorded job.

    Attributes:
        job: Its name, alike for all epochs, ranks and orders.
        dataset: What it reads, such as `photos@3`; for a mixture all sources, such as `photos@3+drawings@1`.
        streams: Number of recorded streams.
        rows: Rows that they delivered; 0 if some are hidden from you.
        world_size: The number of ranks of the last stream.
        first: When the first stream began, as text; `last` likewise.
    """

    job: str
    dataset: str
    streams: int
    rows: int
    world_size: int
    order: str
    first: str
    last: str


@dataclass(frozen=True)
class Held:
    """A part of a rank's share of a step, from one stream.

    Attributes:
        rank: The rank, of `world_size`.
        row: Where it begins in the rank's share of the step, of `of` rows; None if rows are hidden from you.
        positions: Positions of the samples, in the order of delivery, including substitutes.
        ids: Ids of the samples; empty if ids are hidden from you.
        faults: Samples that could not be read: `position`, `id`, `column`, `cause`, and `substitute` if there is one.
        stands: Whether no later stream delivered these rows again.
        stream: The stream: `id`, `plan`, `began`, `order`, `owners`.
        server: The server that delivered it.
        sources: For a mixture, the names of the positions' sources; else empty.
        source_epochs: For a mixture, the epochs of these sources.
        parts: For packed sequences, the part of each position in the rank's rows: `row`, `from` and `tokens`.
    """

    dataset: str
    epoch: int
    step: int
    rank: int
    world_size: int
    row: int | None
    of: int | None
    positions: list[int]
    ids: list[str]
    faults: list[dict[str, Any]]
    stands: bool
    stream: dict[str, Any] = field(repr=False)
    server: str
    sources: list[str] = field(default_factory=list)
    source_epochs: list[int] = field(default_factory=list)
    parts: list[dict[str, int]] = field(default_factory=list)

    def _row(self, at: int) -> int:
        """The row that a position is in."""
        return self.parts[at]["row"] if self.parts else (self.row or 0) + at


def jobs_on_record(connection: Connection) -> list[RecordedJob]:
    """The jobs that the server has recorded."""
    return [
        RecordedJob(
            job=r["job"],
            dataset=snapshots(r),
            streams=r["streams"],
            rows=r.get("rows", 0),
            world_size=r["world"],
            order=r["order"],
            first=r["first"],
            last=r["last"],
        )
        for r in connection.action("lineage")
        if "job" in r
    ]


def held(connection: Connection, other: Callable[[str], Connection], body: dict[str, Any]) -> list[Held]:
    """The samples of a step, as recorded by this server and the other nodes of its cluster."""
    found: list[Held] = []
    missing: NotFound | None = None
    try:
        results = connection.action("lineage", **body)
    except NotFound as why:
        missing, results = why, []
    addresses = (results or connection.action("lineage"))[0].get("others", [])
    found += _pieces(results, connection.uri)
    for address in addresses:
        if found and "epoch" not in body:
            body = {**body, "epoch": found[0].epoch}
        try:
            with other(address) as node:
                found += _pieces(node.action("lineage", **body), address)
        except NotFound:
            continue
        except BowstringError as why:
            raise type(why)(f"{address} may know more, and cannot be asked: {why}") from why
    if not found and missing is not None:
        raise missing
    return settled(found)


def _pieces(results: list[dict[str, Any]], server: str) -> list[Held]:
    return [
        Held(
            dataset=snapshots(r),
            epoch=r["epoch"],
            step=r["step"],
            rank=r["rank"],
            world_size=r["world"],
            row=r.get("row"),
            of=r.get("of"),
            positions=r["positions"],
            ids=r.get("ids", []),
            faults=r.get("faults", []),
            stands=r["stands"],
            stream=r["stream"],
            server=server,
            sources=[r["sources"][n]["name"] for n in r.get("source", [])],
            source_epochs=r.get("source_epochs", []),
            parts=r.get("parts", []),
        )
        for r in results
        if "job" in r
    ]


def settled(pieces: list[Held]) -> list[Held]:
    """Merge the records of several servers: later streams win, and those of the last world size."""
    ordered = sorted(pieces, key=lambda p: -p.stream["id"])
    out: list[Held] = []
    seen: dict[int, set[int]] = {}  # rows of each rank in later streams
    for p in ordered:
        last = ordered[0]
        fits = (p.world_size, p.stream.get("owners")) == (last.world_size, last.stream.get("owners"))
        if not p.stands or not fits or p.row is None:
            out.append(_but(p, p.stands and fits, 0, len(p.positions)))
            continue
        taken = seen.setdefault(p.rank, set())
        at = 0
        while at < len(p.positions):
            end, again = at, p._row(at) in taken
            while end < len(p.positions) and (p._row(end) in taken) == again:
                end += 1
            out.append(_but(p, not again, at, end))
            at = end
        taken.update(map(p._row, range(len(p.positions))))
    return sorted(out, key=lambda p: (not p.stands, p.rank, p.row or 0))


def _but(p: Held, stands: bool, start: int, end: int) -> Held:
    if (start, end) == (0, len(p.positions)):
        return p if stands == p.stands else Held(**{**p.__dict__, "stands": stands})
    positions = p.positions[start:end]
    here = set(zip(p.sources[start:end] or [""] * len(positions), positions, strict=True))
    return Held(
        **{
            **p.__dict__,
            "row": None if p.row is None else p._row(start),
            "positions": positions,
            "ids": p.ids[start:end],
            "faults": [f for f in p.faults if (f.get("source", ""), f.get("substitute", f["position"])) in here],
            "sources": p.sources[start:end],
            "source_epochs": p.source_epochs[start:end],
            "parts": p.parts[start:end],
            "stands": stands,
        }
    )
