"""Mixtures of two datasets of real photographs, served by a real server."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import bowstring
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from bowstring.torch import BowstringDataset
from conftest import StartNode
from node import Node

EPOCH = 400


@pytest.fixture
def node(start: StartNode, tmp_path: Path) -> Node:
    """A server of `photos`, and of `more`: some of them again, under ids of their own, and without labels."""
    own = start("--lineage", str(tmp_path / "lineage"))
    with connected(own) as client:
        photos = client.dataset("photos", split="train").columns(["file_name", "image"]).to_arrow()
        rows = photos.slice(0, 100).append_column("score", pa.array(range(100), pa.int64()))
        client.ingest("more", rows, split="train", blobs=["image"])
    return own


def connected(node: Node) -> bowstring.Client:
    """A client of the server."""
    return bowstring.connect(node.url)


@pytest.fixture
def client(node: Node) -> Iterator[bowstring.Client]:
    """A client of the server with both datasets."""
    with connected(node) as client:
        yield client


def mixed(client: bowstring.Client, **more: Any) -> bowstring.Mixture:
    """Three rows of photos for each of more."""
    mix = bowstring.mixture(
        {"photos": client.dataset("photos", split="train"), "more": client.dataset("more")},
        weights={"photos": 3, "more": 1},
        epoch_size=EPOCH,
        **more,
    )
    shuffled = mix.shuffle(7).columns(["source", "position", "file_name", "score", "label", "image"])
    assert isinstance(shuffled, bowstring.Mixture)
    return shuffled


def test_each_row_is_its_sources(client: bowstring.Client) -> None:
    """Cells are those of the sample in its own dataset, null where it has no such column; weights are exact."""
    mix = mixed(client)
    table = mix.to_arrow()
    assert table.num_rows == EPOCH == mix.num_rows
    sources = table["source"].to_pylist()
    for n in range(1, EPOCH + 1):
        assert abs(sources[:n].count("photos") - 0.75 * n) <= 1
    assert [(s.name, s.dataset, s.samples, s.rows) for s in mix.sources()] == [
        ("photos", "photos", 270, 300),
        ("more", "more", 100, 100),
    ]
    own = {
        "photos": client.dataset("photos").columns(["file_name", "label", "image"]).to_arrow(),
        "more": client.dataset("more").columns(["file_name", "score", "image"]).to_arrow(),
    }
    for row in table.to_pylist():
        there = own[row["source"]].slice(row["position"], 1).to_pylist()[0]
        want = {"score": None, "label": None, **there, "source": row["source"], "position": row["position"]}
        assert row == want
    # Each sample of each source as often as it is due: those of photos once, and 30 of them twice.
    counts = Counter((r["source"], r["position"]) for r in table.select(["source", "position"]).to_pylist())
    assert Counter(n for (source, _), n in counts.items() if source == "photos") == {1: 240, 2: 30}
    assert Counter(n for (source, _), n in counts.items() if source == "more") == {1: 100}


def rows(batches: Any) -> list[tuple[str, int]]:
    """Where the rows of some batches come from."""
    return [(r["source"], r["position"]) for b in batches for r in b.select(["source", "position"]).to_pylist()]


def test_tickets_are_short(client: bowstring.Client) -> None:
    """A source that text says all of takes some bytes of a ticket, and means what its object means."""
    photos, more = client.dataset("photos", split="train"), client.dataset("more")
    inner = bowstring.mixture({"a": photos.where("label > 2"), "b": more}, weights={"a": 1, "b": 0.5}, epoch_size=10)
    inner._mixture.pop("epoch_size")
    mix = bowstring.mixture({"photos": photos, "in": inner}, weights={"photos": 3, "in": 1e-7}, epoch_size=40)
    request = mix.request(batch=8)
    assert request["mixture"]["sources"] == [
        "=photos@1/train*3",
        {
            "name": "in",
            "sources": [
                {"name": "a", "dataset": "photos", "snapshot": 1, "split": "train", "where": "label > 2", "weight": 1},
                "b=more@1*0.5",
            ],
            "weight": 1e-7,
        },
    ]
    with mix.batches(8, rank=0, world_size=1) as batches:
        first = next(batches)
        ticket = batches.ticket
    assert ticket["mixture"] == {"sources": request["mixture"]["sources"], "epoch_size": 40}
    again = list(mix.resume(ticket))
    assert sum(b.num_rows for b in again) == 40 - first.num_rows
    many = {f"s{i:02}": (photos, more)[i % 2] for i in range(64)}
    wide = bowstring.mixture(many, weights={name: round(0.01 + i / 1000, 3) for i, name in enumerate(many)})
    with wide.columns(["position"]).batches(64, rank=0, world_size=1) as batches:
        next(batches)
        assert len(json.dumps(batches.ticket, separators=(",", ":"))) <= 2048


def test_operators_by_source(client: bowstring.Client) -> None:
    """A source's own operators come before the mixture's; what they make has one form in all sources."""
    last: list[dict[str, Any]] = [{"ToDtype": {"dtype": "float32", "scale": True}}]
    own: dict[str, list[dict[str, Any]]] = {
        "photos": [{"Decode": {}}, {"Resize": {"size": [16, 16]}}],
        "more": [{"Decode": {}}, {"Resize": {"size": [24, 24]}}, {"CenterCrop": {"size": [16, 16]}}],
    }
    plain = {"photos": client.dataset("photos", split="train"), "more": client.dataset("more")}
    mix = bowstring.mixture(
        {name: d.operators(image=own[name]) for name, d in plain.items()},
        weights={"photos": 3, "more": 1},
        epoch_size=120,
    )
    shuffled = mix.shuffle(7).columns(["source", "position", "image"]).operators(image=last)
    shape = shuffled.schema.field("image").type
    table = shuffled.to_arrow()
    assert table.num_rows == 120
    for name, d in plain.items():
        rows = table.filter(pc.equal(table["source"], name))
        alone = d.columns(["image"]).operators(image=[*own[name], *last])
        assert alone.schema.field("image").type == shape
        want = alone.take(rows["position"].to_pylist())
        assert rows["image"].combine_chunks().storage.equals(want["image"].combine_chunks().storage)
    with shuffled.batches(20, rank=0, world_size=1) as batches:
        next(batches)
        assert sum(b.num_rows for b in shuffled.resume(batches.ticket)) == 100
    with pytest.raises(
        bowstring.InvalidRequest, match=r'column "image" as .*24,24.* in source "more"|source "photos".*"more"'
    ):
        bowstring.mixture(
            {name: d.operators(image=own[name][:2]) for name, d in plain.items()}, weights={"photos": 1, "more": 1}
        )


@pytest.mark.parametrize("pick", ["random", "exact", "one_source"])
def test_goes_on_with_other_ranks(client: bowstring.Client, pick: Any) -> None:
    """Two ranks read a part of an epoch, three go on, one reads the next epoch: together what one rank reads."""
    mix = pickle.loads(pickle.dumps(mixed(client, pick=pick)))
    whole = [Counter(rows(mix.batches(20, epoch=e, rank=0, world_size=1))) for e in range(2)]
    assert sum(whole[0].values()) == EPOCH
    got: Counter[tuple[str, int]] = Counter()
    for rank in range(2):
        with mix.batches(20, rank=rank, world_size=2) as batches:
            taken = [next(batches) for _ in range(7)]
            got.update(rows(taken))
            state = batches.ticket
        assert (state["step"], state.get("row", 0)) == (7, 0)
    for rank in range(3):
        ticket = {**state, "world": {"size": 3}, "rank": rank}
        got.update(rows(mix.resume(ticket)))
    assert got == whole[0]
    steps = [rows([b]) for b in mix.batches(20, epoch=1, rank=0, world_size=1)]
    for step in steps:
        n = sum(source == "more" for source, _ in step)
        assert n in {"random": range(3, 8), "exact": (5,), "one_source": (0, 20)}[pick]
    assert sum((Counter(s) for s in steps), Counter()) == whole[1]


def test_torch(client: bowstring.Client) -> None:
    """A dataset of torch reads a mixture, and goes on where another one was."""
    source = mixed(client)
    whole = [p for b in BowstringDataset(source, global_batch_size=40) for p in b["position"].tolist()]
    first = BowstringDataset(source, global_batch_size=40)
    got, state = [], None
    it = iter(first)
    for _ in range(4):
        got += next(it)["position"].tolist()
    state = first.state_dict()
    second = BowstringDataset(source, global_batch_size=40)
    second.load_state_dict(state)
    got += [p for b in second for p in b["position"].tolist()]
    assert got == whole


def test_lineage(client: bowstring.Client) -> None:
    """The samples of a step: which of which source, in which epoch of it."""
    with mixed(client).batches(20, epoch=1, rank=0, world_size=1) as batches:
        served = [rows([b]) for b in batches]
    (job,) = (j for j in client.jobs_on_record() if "+" in j.dataset)
    assert job.dataset == "photos@1+more@1"
    (held,) = client.lineage(job.job, step=3, epoch=1)
    assert list(zip(held.sources, held.positions, strict=True)) == served[3]
    # Rows 300 to 600 of photos, which has 270: its epochs 1 and 2. Rows 100 to 200 of more: its epoch 1.
    epochs = {(s, e) for s, e in zip(held.sources, held.source_epochs, strict=True)}
    assert epochs <= {("photos", 1), ("photos", 2), ("more", 1)}


def test_mistakes_raise_errors(client: bowstring.Client) -> None:
    """Mistakes are reported where they are made, by the source's name."""
    photos, more = client.dataset("photos"), client.dataset("more")
    with pytest.raises(bowstring.InvalidRequest, match="weight"):
        bowstring.mixture({"a": photos, "b": more}, weights={"a": 1})
    with pytest.raises(bowstring.InvalidRequest, match="got source"):
        bowstring.mixture({"a": photos, "b": more}, weights={"a": 1, "c": 1})
    with pytest.raises(bowstring.InvalidRequest, match="columns"):
        bowstring.mixture({"a": photos.columns(["image"])}, weights={"a": 1})
    with pytest.raises(bowstring.InvalidRequest, match='did you mean "source"'):
        mixed(client).columns(["sourc"])
    with pytest.raises(bowstring.InvalidRequest, match="sources"):
        mixed(client).where("label > 2")
    with pytest.raises(bowstring.InvalidRequest, match="take"):
        mixed(client).take([1])
    with pytest.raises(bowstring.InvalidRequest, match="place"):
        mixed(client).options(place="client")
    assert "photos+more" in repr(mixed(client))
    assert "300 of photos" in str(mixed(client).explain())


def test_command_line(node: Node, tmp_path: Path, bowstring: Callable[..., CompletedProcess[str]]) -> None:
    """`get` writes a mixture, and `explain` says how its sources go by."""
    mixture = '{"sources": [{"dataset": "photos", "weight": 1}, {"dataset": "more", "weight": 1}], "epoch_size": 200}'
    out = tmp_path / "mixed.parquet"
    bowstring(
        "get", "--server", node.url, "--mixture", mixture, "--columns", "source", "--columns", "image", "--to", str(out)
    )
    assert Counter(pq.read_table(out)["source"].to_pylist()) == {"photos": 100, "more": 100}
    rates = tmp_path / "rates.json"
    rates.write_text('{"store": {"latency_ms": 1, "reads_per_s": 1000, "bytes_per_s": 1e9}}')
    said = bowstring("explain", "--server", node.url, "--mixture", mixture, "--rates", str(rates), "--step", "2").stdout
    assert "more@1" in said
    assert "SEEN BEFORE STEP 2" in said


def test_a_run_is_steered(client: bowstring.Client) -> None:
    """Weights change while a run goes on. A second reader, and one that resumes from a ticket, get the same."""
    mix = mixed(client, run="llama").columns(["source"])
    with mix.batches(4, epoch=0) as stream:
        first = next(stream)
        ticket = stream.ticket
        assert first.num_rows == 4
    step = client.steer("photos", "llama", {"more": 0})
    assert step > 0
    rows = [row for batch in mix.batches(4, epoch=0) for row in batch["source"].to_pylist()]
    assert rows[: 4 * step].count("more") == pytest.approx(min(step, 100), abs=1)  # it has 100 rows
    assert "more" not in rows[4 * step :]
    assert [row for batch in mix.resume(ticket) for row in batch["source"].to_pylist()] == rows[4:]
    (run,) = client.runs("photos")
    assert (run["run"], [change["step"] for change in run["changes"]]) == ("llama", [step])
    with pytest.raises(bowstring.InvalidRequest, match="settled"):
        client.steer("photos", "llama", {"more": 1}, from_step=1)
    with pytest.raises(bowstring.NotFound, match="llama"):
        client.steer("photos", "lama", {"more": 1}, over=10)
