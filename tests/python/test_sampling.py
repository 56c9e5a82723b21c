"""Samples by weight and by class, and what training learned of them: against real servers."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bowstring
import numpy as np
import pyarrow as pa
import pytest
from conftest import StartNode

ROWS = 600


def rows() -> pa.Table:
    """Rows with a key, a class, which is rare or common, and a weight."""
    numbers = range(ROWS)
    return pa.table(
        {
            "name": [f"s{i}" for i in numbers],
            "kind": ["rare" if i % 20 == 0 else "common" for i in numbers],
            "weight": [float(i % 3) for i in numbers],
            "blob": [bytes([i % 256]) * 40 for i in numbers],
        }
    )


@pytest.fixture
def client(start: StartNode, tmp_path: Path) -> bowstring.Client:
    """A client of a server with a dataset and a record of what it hands out."""
    node = start(f"--lineage={tmp_path / 'record'}", store=tmp_path / "store")
    client = bowstring.connect(node.url)
    client.ingest("d", rows(), key="name", progress=False)
    return client


def positions(dataset: bowstring.Dataset, world_size: int = 1, epoch: int = 0) -> list[int]:
    """Those of an epoch of all ranks, by step and rank."""
    got: list[tuple[int, int, list[int]]] = []
    for rank in range(world_size):
        with dataset.batches(50, rank=rank, world_size=world_size, epoch=epoch) as batches:
            for batch in batches:
                assert batches.place is not None
                got.append((batches.place["step"], rank, batch["position"].to_pylist()))
    return [p for _, _, some in sorted(got, key=lambda g: g[:2]) for p in some]


def test_samples_come_by_weight_and_by_class(client: bowstring.Client) -> None:
    """As often as they should, the same with any number of ranks and where a stream goes on."""
    plain = client.dataset("d").columns(["position"]).shuffle(3)
    drawn = plain.options(sample={"weights": "weight", "epoch_size": 3000})
    got = Counter(positions(drawn))
    assert sum(got.values()) == 3000 == len(drawn)
    assert not [p for p in got if p % 3 == 0]
    assert 700 < sum(n for p, n in got.items() if p % 3 == 1) < 1300
    assert Counter(positions(drawn, world_size=3)) == got
    assert Counter(positions(drawn, epoch=1)) != got

    dealt = Counter(positions(plain.options(sample={"weights": "weight", "replacement": False, "epoch_size": 1500})))
    assert {n for p, n in dealt.items() if p % 3 == 1} == {2, 3}
    assert dealt.total() == 1500
    assert {n for p, n in dealt.items() if p % 3 == 2} == {5}

    balanced = plain.options(sample={"balance": "kind"})
    once = positions(balanced)
    for end in range(1, ROWS + 1):
        assert abs(sum(p % 20 == 0 for p in once[:end]) - end / 2) < 1
    assert Counter(Counter(p for p in once if p % 20 == 0).values()) == {10: 30}
    twice = once + positions(balanced, epoch=1)
    assert len(set(twice)) == ROWS  # the large class went on where it stood

    with balanced.batches(50) as batches:
        begun = [p for _ in range(5) for p in next(batches)["position"].to_pylist()]
        ticket = batches.ticket
    assert ticket is not None
    with balanced.resume(ticket) as rest:
        assert begun + [p for batch in rest for p in batch["position"].to_pylist()] == once


def test_what_cannot_be_drawn_is_refused(client: bowstring.Client) -> None:
    plain = client.dataset("d").columns(["position"])
    for sample, shuffled, why in (
        ({"weights": "weight"}, False, "sample: got it without shuffle"),
        ({"weights": "weight", "balance": "kind"}, True, "both weights and balance"),
        ({"weights": "wait"}, True, "no column"),
        ({"weights": "0 - weight"}, True, "at position 1"),
        ({"balance": "kind", "shares": {"rare": 1}}, True, "no share for class"),
        ({"ballance": "kind"}, True, "did you mean"),
    ):
        with pytest.raises(bowstring.InvalidRequest, match=why):
            (plain.shuffle(1) if shuffled else plain).options(sample=sample).plan()


def test_explain_says_what_a_sample_comes_to(client: bowstring.Client) -> None:
    """How many different samples an epoch has, and how often those of a class come."""
    rates = {"store": {"latency_ms": 1, "reads_per_s": 1000, "bytes_per_s": 1e8}}
    photos = client.dataset("d").shuffle(3).options(sample={"balance": "kind"})
    found = client.action("explain", **photos.request(batch=50), look_ms=0, rates=rates)[0]["sampling"]
    assert (found["rows"], found["selected"], found["never"]) == (ROWS, ROWS, 0)
    assert found["distinct"] == 330
    assert [(c["class"], c["share"], c["times"]) for c in found["classes"]][1] == ("rare", 0.5, 10.0)


def test_losses_come_back(client: bowstring.Client) -> None:
    """The samples of a spike at a step are found, left out, and weigh in what is sampled next."""
    photos = client.dataset("d").columns(["id", "position", "kind"]).shuffle(5)
    spike: set[int] = set()

    def train(rank: int) -> tuple[str, bowstring.IngestResult | None]:
        report = client.report(photos)
        job = ""
        with photos.batches(40, rank=rank, world_size=2) as batches:
            for batch in batches:
                assert batches.place is not None
                job = batches.place["plan"]
                at = np.array(batch["position"].to_pylist())
                loss = at % 7 / 7 + 0.1
                if batches.place["step"] == 9:
                    loss[3] = 100.0
                    spike.add(int(at[3]))
                report.add(batch if rank else batch["position"], loss=loss)
        assert len(report) == ROWS / 2
        return job, report.commit(source=f"rank {rank}")

    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(train, range(2)))
    made = [result for _, result in ended if result is not None]
    assert [r.matched for r in made] == [ROWS / 2, ROWS / 2]
    assert sorted(r.snapshot for r in made) == [2, 3]  # neither has undone what the other one had reported

    learned = client.dataset("d")
    table = learned.columns(["position", "loss"]).to_arrow()
    assert not table["loss"].null_count
    assert {p for p, loss in zip(*table.to_pydict().values(), strict=True) if loss > 50} == spike

    # Which samples made the spike at step 9? Those on record that have the loss.
    held = {p for piece in client.lineage(ended[0][0], 9) for p in piece.positions}
    assert held & set(learned.where("loss > 50").positions().tolist()) == spike
    assert len(held) == 40

    # Go on without them; and draw by the losses.
    going = learned.where("loss <= 50").columns(["position"]).shuffle(5)
    assert spike.isdisjoint(positions(going))
    drawn = Counter(positions(going.options(sample={"weights": "loss", "epoch_size": 6000})))
    few, many = (sum(n for p, n in drawn.items() if p % 7 == k) for k in (0, 6))
    assert 6 < many / few < 15  # 6/7 + 0.1 by 0.1

    # By lineage alone, one value for all; ids of another step keep what they have.
    report = client.report("d")
    assert report.step(ended[0][0], 2, rank=1, suspect=True) == 20
    done = report.commit()
    assert done is not None
    assert done.matched == 20
    assert client.dataset("d").where("suspect == true").num_rows == 20
    assert report.commit() is None


def test_what_is_no_report_is_refused(client: bowstring.Client) -> None:
    report = client.report("d")
    with pytest.raises(bowstring.InvalidRequest, match="3 values for 2 rows"):
        report.add([1, 2], loss=[1.0, 2.0, 3.0])
    with pytest.raises(bowstring.InvalidRequest, match="want a column"):
        report.add([1, 2])
    report.add([1, 2, 1], loss=[1.0, 2.0, 3.0])
    with pytest.raises(bowstring.InvalidRequest, match="a report of their own"):
        report.add([1], seen=1)
    with pytest.raises(bowstring.InvalidRequest, match="want `id` or `position`"):
        report.add(pa.table({"kind": ["a"]}), loss=1.0)
    done = report.commit()
    assert done is not None
    assert done.rows == 2
    found = client.dataset("d").where("loss != nil").columns(["position", "loss"]).to_arrow().to_pydict()
    assert found == {"position": [1, 2], "loss": [3.0, 2.0]}  # the last one counts
