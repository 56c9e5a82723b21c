"""Random access by DoExchange: positions or ids in, samples out in the order asked for."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from wire import command, decode, read


def take(client: fl.FlightClient, requests: list[pa.RecordBatch], **request: Any) -> list[list[dict[str, Any]]]:
    """Send batches, at most three ahead of the answers, and return the rows of each answer."""
    writer, reader = client.do_exchange(command(take={"dataset": "photos"} | request))
    answers: list[list[dict[str, Any]]] = []

    def receive() -> None:
        rows: list[dict[str, Any]] = []
        while True:
            chunk = reader.read_chunk()
            about = decode(chunk.app_metadata)
            assert about["request"] == len(answers)
            assert about["row"] == len(rows)
            rows += chunk.data.to_pylist()
            assert about["rows"] == chunk.data.num_rows
            if about["last"]:
                break
        answers.append(rows)

    with writer:
        writer.begin(requests[0].schema)
        for n, batch in enumerate(requests):
            writer.write_batch(batch)
            if n >= 3:
                receive()
        writer.done_writing()
        while len(answers) < len(requests):
            receive()
        with pytest.raises(StopIteration):
            reader.read_chunk()
    return answers


def positions(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"position": pa.array(values, pa.int64())})


@pytest.fixture(scope="module")
def rows(node: Any) -> list[dict[str, Any]]:
    with fl.connect(node.url) as own:
        table = read(own, dataset="photos", columns=["id", "label", "image", "position"])
    listed: list[dict[str, Any]] = table.to_pylist()
    return listed


def test_by_position_in_order_with_repeats(client: fl.FlightClient, rows: list[dict[str, Any]]) -> None:
    asked = [[9, 3, 3, 299, 0], [], [5], [299, 298, 297]]
    columns = ["id", "label", "image", "position"]
    answers = take(client, [positions(*part) for part in asked], columns=columns)
    assert answers == [[rows[p] for p in part] for part in asked]


@pytest.mark.parametrize("kind", ["uuid", "bytes", "text"])
def test_by_id(client: fl.FlightClient, rows: list[dict[str, Any]], kind: str) -> None:
    asked = [17, 250, 17, 4]
    ids = [rows[p]["id"] for p in asked]
    array = {
        "uuid": lambda: pa.array([i.bytes for i in ids], pa.uuid()),
        "bytes": lambda: pa.array([i.bytes for i in ids], pa.binary(16)),
        "text": lambda: pa.array([str(i) for i in ids], pa.string()),
    }[kind]()
    (answer,) = take(client, [pa.record_batch({"id": array})], columns=["position"])
    assert [r["position"] for r in answer] == asked


def test_many_pipelined_requests_keep_their_order(client: fl.FlightClient, rows: list[dict[str, Any]]) -> None:
    rng = random.Random(20)
    asked = [[rng.randrange(300) for _ in range(rng.randrange(1, 40))] for _ in range(60)]
    answers = take(client, [positions(*part) for part in asked], columns=["id", "image"], batch_bytes=400_000)
    assert [[r["id"] for r in a] for a in answers] == [[rows[p]["id"] for p in part] for part in asked]
    assert [r["image"] for r in answers[7]] == [rows[p]["image"] for p in asked[7]]


def test_a_large_answer_comes_in_parts(client: fl.FlightClient, rows: list[dict[str, Any]]) -> None:
    writer, reader = client.do_exchange(
        command(take={"dataset": "photos", "columns": ["image"], "batch_bytes": 200_000})
    )
    with writer:
        writer.begin(pa.schema([("position", pa.int64())]))
        writer.write_batch(positions(*range(20)))
        writer.done_writing()
        parts = [(c.data, decode(c.app_metadata)) for c in reader]
    assert len(parts) > 3
    assert [about["part"] for _, about in parts] == list(range(len(parts)))
    assert [about["last"] for _, about in parts] == [False] * (len(parts) - 1) + [True]
    assert [i.as_py() for data, _ in parts for i in data["image"]] == [rows[p]["image"] for p in range(20)]


def test_schema_comes_before_the_first_request(client: fl.FlightClient) -> None:
    writer, reader = client.do_exchange(command(take={"dataset": "photos", "columns": ["label", "id"]}))
    with writer:
        writer.begin(pa.schema([("position", pa.int64())]))
        assert reader.schema.names == ["label", "id"]
        writer.done_writing()


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        (positions(4, 300), pa.ArrowInvalid, "300"),
        (positions(-1), pa.ArrowInvalid, "-1"),
        (
            pa.record_batch({"id": pa.array([b"0" * 16], pa.binary(16))}),
            KeyError,
            "30303030-3030-3030-3030-303030303030",
        ),
        (pa.record_batch({"id": pa.array(["nonsense"])}), pa.ArrowInvalid, "nonsense"),
        (pa.record_batch({"position": pa.array([1.5])}), pa.ArrowInvalid, "position"),
        (pa.record_batch({"where": pa.array([1])}), pa.ArrowInvalid, "where"),
    ],
)
def test_a_wrong_request_is_named(
    client: fl.FlightClient, batch: pa.RecordBatch, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        take(client, [batch], columns=["label"])


def test_answers_before_a_wrong_request_are_kept(client: fl.FlightClient) -> None:
    writer, reader = client.do_exchange(command(take={"dataset": "photos", "columns": ["position"]}))
    writer.begin(pa.schema([("position", pa.int64())]))
    writer.write_batch(positions(8, 1))
    writer.write_batch(positions(12345))
    writer.done_writing()
    assert reader.read_chunk().data["position"].to_pylist() == [8, 1]
    with pytest.raises(pa.ArrowInvalid, match="12345"):
        reader.read_chunk()
