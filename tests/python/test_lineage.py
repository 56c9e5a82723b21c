"""The samples of a step, and the node of a rank's stream: against real servers."""

from __future__ import annotations

import json
from pathlib import Path

import bowstring
import pytest
from bowstring.lineage import Held, settled
from bowstring.stream import Batches
from conftest import StartNode

EPOCHS = 10


def test_what_a_step_held(start: StartNode, tmp_path: Path) -> None:
    """Ids of each step and rank are those that were received, over a stream that is cut off, and a restart."""
    own = start(f"--lineage={tmp_path / 'record'}")
    with bowstring.connect(own.url) as client:
        photos = client.dataset("photos").columns(["id", "position"]).shuffle(3).options(order="free")
        got: dict[tuple[int, int], list[int]] = {}
        for rank in range(2):
            batches = photos.batches(40, rank=rank, world_size=2)
            for n, batch in enumerate(batches):
                assert batches.place is not None
                got.setdefault((batches.place["step"], rank), []).extend(batch["position"].to_pylist())
                if n == 3:
                    batches.close()
                    batches = photos.resume(batches.ticket)
                    for rest in batches:
                        assert batches.place is not None
                        got.setdefault((batches.place["step"], rank), []).extend(rest["position"].to_pylist())
                    break
        (job,) = client.jobs_on_record()
        assert (job.dataset, job.world_size, job.streams) == ("photos@1", 2, 4)
        own.stop()
        own.start()
    with bowstring.connect(own.url) as client:
        for (step, rank), positions in got.items():
            held = client.lineage(job.job, step, rank=rank)
            assert [p for piece in held for p in piece.positions] == positions
            assert len(held[0].ids) == len(held[0].positions)
        with pytest.raises(bowstring.NotFound):
            client.lineage(job.job, 1000)
        with pytest.raises(bowstring.NotFound):
            client.lineage("0123456789abcdef", 0)


def piece(stream: int, row: int, positions: list[int], *, world: int = 2, rank: int = 0) -> Held:
    return Held(
        dataset="d@1",
        epoch=0,
        step=0,
        rank=rank,
        world_size=world,
        row=row,
        of=9,
        positions=positions,
        ids=[],
        faults=[],
        stands=True,
        stream={"id": stream},
        server="",
    )


def test_what_several_nodes_say_is_settled() -> None:
    """A stream that went on at another node stands from where it went on; of two worlds the later one stands."""
    pieces = settled([piece(1, 0, [1, 2, 3, 4]), piece(2, 2, [3, 4, 5])])
    assert [(p.row, p.positions) for p in pieces if p.stands] == [(0, [1, 2]), (2, [3, 4, 5])]
    assert [(p.row, p.positions) for p in pieces if not p.stands] == [(2, [3, 4])]
    pieces = settled([piece(1, 0, [1, 2]), piece(2, 0, [1], world=3), piece(3, 0, [2], world=3, rank=1)])
    assert [(p.world_size, p.rank, p.positions) for p in pieces if p.stands] == [(3, 0, [1]), (3, 1, [2])]


def test_a_stream_goes_to_its_node_and_on_to_others(start: StartNode) -> None:
    """The first location is read from; when it is gone, the next one goes on where it stood."""
    first, second = start(), start()
    with bowstring.connect(second.url) as client:
        # More than the buffers on the way hold: what is in them is read, whatever becomes of the node.
        photos = client.dataset("photos").columns(["position", "image"]).shuffle(1)
        ticket = photos.ticket(batch=10, epochs=EPOCHS)
        want = [position for batch in Batches(client, ticket) for position in batch["position"].to_pylist()]
        with Batches(client, ticket, [first.url, "grpc://127.0.0.1:1", second.url]) as batches:
            got = next(batches)["position"].to_pylist()
            assert batches.uri == first.url
            first.kill()
            for batch in batches:
                got += batch["position"].to_pylist()
            assert batches.uri == second.url
        assert got == want
        # A node that was never there costs nothing but a look.
        with Batches(client, ticket, ["grpc://127.0.0.1:1"]) as batches:
            assert sum(batch.num_rows for batch in batches) == len(want)


def test_assign_is_asked_for(start: StartNode) -> None:
    """Without a cluster there is one node without an address, and what is served is the plan's."""
    own = start()
    with bowstring.connect(own.url) as client:
        photos = client.dataset("photos").columns(["position", "image"]).shuffle(1).options(assign="local")
        assert json.loads(json.dumps(photos.request()))["assign"] == "local"
        assert photos.plan(batch=40, world_size=2).ranks[1].locations == []
        batches = photos.batches(40, rank=1, world_size=2)
        rows = sum(batch.num_rows for batch in batches)
        assert rows == photos.plan(batch=40, world_size=2).ranks[1].rows
        assert "owners" in batches.ticket
