"""Information that a client can get before it reads: flights, plans, schemas, actions, health, reflection."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import photos
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from conftest import StartNode
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from node import Node
from wire import SERVICE, act, command, decode, read, stats, stream

TRAIN, VAL = 270, 30


def varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


def field(number: int, value: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return bytes([number << 3 | 2]) + varint(len(value)) + value


@pytest.fixture
def alone(start: StartNode) -> Iterator[fl.FlightClient]:
    """A connection to a server that no other test has left streams at, whose reads would count."""
    with fl.connect(start().url) as connected:
        yield connected


def test_list_flights_shows_each_split(client: fl.FlightClient) -> None:
    infos = {tuple(info.descriptor.path): info for info in client.list_flights(b'{"dataset": "photos"}')}
    assert set(infos) == {(b"photos", b"train"), (b"photos", b"val")}
    assert infos[b"photos", b"train"].total_records == TRAIN
    assert infos[b"photos", b"val"].total_records == VAL
    again = client.get_flight_info(infos[b"photos", b"val"].descriptor)
    assert again.total_records == VAL
    assert sum(p.data.num_rows for p in stream(client, again.endpoints[0])) == VAL


def test_list_flights_takes_a_prefix(client: fl.FlightClient) -> None:
    assert len(list(client.list_flights(b'{"dataset": "pho*"}'))) == 2
    assert len(list(client.list_flights(b'{"dataset": "nothing*"}'))) == 0
    assert {tuple(i.descriptor.path) for i in client.list_flights()} >= {
        (b"photos", b"train"),
        (b"photos", b"val"),
    }


@pytest.mark.parametrize(
    ("path", "rows"),
    [(["photos"], TRAIN + VAL), (["photos", "train"], TRAIN), (["photos@1", "val"], VAL)],
)
def test_a_path_means_a_split_in_order(client: fl.FlightClient, path: list[str], rows: int) -> None:
    info = client.get_flight_info(fl.FlightDescriptor.for_path(*path))
    assert info.total_records == rows
    assert len(info.endpoints) == 1
    assert info.ordered
    asked = command(dataset="photos", columns=["id", "file_name"], **({"split": path[1]} if len(path) > 1 else {}))
    names = client.do_get(client.get_flight_info(asked).endpoints[0].ticket).read_all()
    assert client.do_get(info.endpoints[0].ticket).read_all()["id"] == names["id"]


def test_total_bytes_are_the_images_and_metadata(client: fl.FlightClient, folder: Path) -> None:
    info = client.get_flight_info(command(dataset="photos", columns=["image"]))
    images = sum(p.stat().st_size for p in folder.rglob("*.jpg"))
    assert images <= info.total_bytes <= images * 1.01 + 65536
    whole = client.get_flight_info(command(dataset="photos"))
    assert whole.total_bytes >= info.total_bytes


def test_one_endpoint_per_rank(client: fl.FlightClient) -> None:
    info = client.get_flight_info(
        command(dataset="photos", split="train", batch=16, world={"size": 8}, shuffle={"seed": 3})
    )
    assert len(info.endpoints) == 8
    about = decode(pa.py_buffer(info.app_metadata))
    assert about["ranks"] == 8
    assert about["rows"] == info.total_records == TRAIN
    assert about["steps"] == -(-TRAIN // 16)
    assert (about["dropped"], about["padded"], about["snapshot"]) == (0, 0, 1)
    rows = 0
    for rank, endpoint in enumerate(info.endpoints):
        said = json.loads(endpoint.app_metadata)
        assert said["rank"] == rank
        assert said["steps"] == about["steps"]
        assert said["rows"] == sum(p.data.num_rows for p in stream(client, endpoint))
        rows += said["rows"]
    assert rows == TRAIN
    assert not info.ordered


@pytest.mark.parametrize(
    ("remainder", "rows", "dropped", "padded"),
    [
        ("uneven", 270, 0, 0),
        ("drop", 256, 14, 0),
        ("pad", 288, 0, 18),
    ],
)
def test_remainder_is_announced_and_kept(
    client: fl.FlightClient, remainder: str, rows: int, dropped: int, padded: int
) -> None:
    info = client.get_flight_info(
        command(
            dataset="photos",
            split="train",
            columns=["id"],
            batch=32,
            remainder=remainder,
            shuffle={},
            world={"size": 2},
        )
    )
    about = json.loads(info.app_metadata)
    assert (info.total_records, about["dropped"], about["padded"]) == (rows, dropped, padded)
    ids = [i for e in info.endpoints for p in stream(client, e) for i in p.data["id"].to_pylist()]
    assert len(ids) == rows
    assert len(set(ids)) == TRAIN - dropped


def test_expiration_is_in_the_future_and_printable(client: fl.FlightClient) -> None:
    endpoint = client.get_flight_info(fl.FlightDescriptor.for_path("photos")).endpoints[0]
    moment = endpoint.expiration_time.as_py()  # fails on nanoseconds where pandas is missing
    assert moment > dt.datetime.now(dt.timezone.utc)
    assert endpoint.expiration_time.value % 1000 == 0
    assert "expiration" in repr(endpoint)


def test_schema_is_the_same_wherever_it_is_asked(client: fl.FlightClient) -> None:
    for descriptor in (
        fl.FlightDescriptor.for_path("photos", "train"),
        command(dataset="photos", columns=["label", "image", "id"]),
        command(dataset="photos", layout="huggingface"),
        command(dataset="photos", columns=["position", "split"]),
    ):
        info = client.get_flight_info(descriptor)
        early = client.get_schema(descriptor).schema
        late = client.do_get(info.endpoints[0].ticket).schema
        assert early.equals(info.schema, check_metadata=True)
        assert early.equals(late, check_metadata=True)


def test_columns_have_their_types(client: fl.FlightClient) -> None:
    schema = client.get_schema(fl.FlightDescriptor.for_path("photos")).schema
    assert schema.field("id").type == pa.uuid()
    assert schema.field("image").type == pa.large_binary()
    assert schema.field("label").type == pa.int64()
    assert json.loads(schema.field("label").metadata[b"bowstring.classes"]) == sorted(photos.PHOTOGRAPHS)
    assert schema.field("image").metadata[b"bowstring.media"] == b"image"
    for name in ("width", "height"):
        assert pa.types.is_integer(schema.field(name).type)


def test_columns_come_in_the_order_asked_for(client: fl.FlightClient) -> None:
    asked = ["height", "image", "position", "id", "label", "split"]
    info = client.get_flight_info(command(dataset="photos", columns=asked))
    assert info.schema.names == asked
    table = client.do_get(info.endpoints[0].ticket).read_all()
    assert table.column_names == asked
    assert table["position"].to_pylist() == list(range(TRAIN + VAL))
    assert table["split"].to_pylist().count("train") == TRAIN


def test_size_and_key_of_a_blob_are_known_without_reading_it(alone: fl.FlightClient, folder: Path) -> None:
    contents = {path.name: path.read_bytes() for path in folder.rglob("*.jpg")}
    asked = ["image.key", "file_name", "image.size"]
    reads = act(alone, "stats")[0]["engine"]["reads"]
    info = alone.get_flight_info(command(dataset="photos", columns=asked))
    table = alone.do_get(info.endpoints[0].ticket).read_all()
    assert table.column_names == asked
    assert [f.type for f in table.schema] == [pa.binary(32), pa.string(), pa.int64()]
    rows = table.to_pylist()
    assert len(rows) == len(contents)
    for row in rows:
        content = contents[Path(row["file_name"]).name]
        assert row["image.size"] == len(content)
        assert row["image.key"] == hashlib.sha256(content).digest()
    assert info.total_bytes == sum(32 + 8 + len(row["file_name"]) for row in rows)
    assert act(alone, "stats")[0]["engine"]["reads"] <= reads + 1  # the manifest's

    large = sorted(len(c) for c in contents.values())[-30]
    found = read(alone, dataset="photos", columns=["image"], where=f"image.size >= {large}")["image"]
    assert sorted(map(len, found.to_pylist())) == sorted(n for n in map(len, contents.values()) if n >= large)
    key = rows[7]["image.key"].hex()
    (row,) = read(alone, dataset="photos", columns=["file_name"], where=f'image.key == "{key}"').to_pylist()
    assert row["file_name"] == rows[7]["file_name"]

    table = read(alone, dataset="photos", columns=["image.key", "image.size"], layout="huggingface")
    assert [f.type for f in table.schema] == [pa.binary(), pa.int64()]
    assert [row["image.key"] for row in rows] == table["image.key"].to_pylist()
    with pytest.raises(pa.ArrowInvalid, match=r"image\.len"):
        read(alone, dataset="photos", columns=["image.len"])


def test_poll_flight_info_is_complete_at_once(node: Node) -> None:
    descriptor = fl.FlightDescriptor.for_path("photos", "train").serialize()
    with grpc.insecure_channel(node.url.removeprefix("grpc://")) as channel:
        raw = channel.unary_unary(SERVICE + "PollFlightInfo")(descriptor, timeout=600)
    # PollInfo: info = 1, flight_descriptor = 2 (absent: nothing to poll any more).
    assert raw[0] == 0x0A
    length, shift, at = 0, 0, 1
    while True:
        length |= (raw[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if raw[at - 1] < 128:
            break
    info = fl.FlightInfo.deserialize(raw[at : at + length])
    assert info.total_records == TRAIN
    assert b"photos" not in raw[at + length :]


def test_list_actions_describes_all(client: fl.FlightClient) -> None:
    actions = {action.type: action.description for action in client.list_actions()}
    assert set(actions) >= {
        "list", "describe", "drop", "gc", "stats", "cancel", "CancelFlightInfo", "RenewFlightEndpoint",
    }  # fmt: skip
    assert all(actions.values())


def test_list_and_describe(client: fl.FlightClient, folder: Path) -> None:
    (listed,) = act(client, "list", dataset="photos")
    assert (listed["dataset"], listed["newest"], listed["snapshots"], listed["rows"]) == (
        "photos",
        1,
        [1],
        300,
    )
    assert {s["name"]: s["rows"] for s in listed["splits"]} == {"train": TRAIN, "val": VAL}
    (described,) = act(client, "describe", dataset="photos")
    columns = {c["name"]: c for c in described["columns"]}
    assert columns["id"]["kind"] == "id"
    assert columns["image"]["kind"] == "blob"
    assert columns["image"]["media"] == "image"
    assert columns["label"]["classes"] == sorted(photos.PHOTOGRAPHS)
    assert described["blob_bytes"] == sum(p.stat().st_size for p in folder.rglob("*.jpg"))
    ranges = [r for s in described["splits"] for r in s["ranges"]]
    assert sum(r["end"] - r["start"] for r in ranges) == 300


def test_stats_count_what_is_served(alone: fl.FlightClient) -> None:
    read(alone, dataset="photos", columns=["label"])  # the manifest was not requested before, so its blob is read, too
    before = stats(alone)
    table = alone.do_get(
        alone.get_flight_info(fl.FlightDescriptor.for_path("photos", "val")).endpoints[0].ticket
    ).read_all()
    after = stats(alone)
    assert after["server"]["rows"] - before["server"]["rows"] == table.num_rows == VAL
    assert after["server"]["streams"] > before["server"]["streams"]
    assert after["server"]["bytes"] - before["server"]["bytes"] >= sum(len(b.as_py()) for b in table["image"])
    assert after["engine"]["reads"] - before["engine"]["reads"] == VAL


def test_cancel_flight_info_and_renew(client: fl.FlightClient) -> None:
    info = client.get_flight_info(command(dataset="photos", shuffle={"seed": 5001}))
    results = list(client.do_action(("CancelFlightInfo", field(1, info.serialize()))))
    assert len(results) == 1  # CancelFlightInfoResult: status = 1, CANCELLED = 1
    assert results[0].body.to_pybytes() == b"\x08\x01"
    renewed = list(client.do_action(("RenewFlightEndpoint", field(1, info.endpoints[0].serialize()))))
    endpoint = fl.FlightEndpoint.deserialize(renewed[0].body.to_pybytes())
    assert endpoint.expiration_time.as_py() >= info.endpoints[0].expiration_time.as_py()
    assert endpoint.ticket == info.endpoints[0].ticket


def test_health_and_reflection(node: Node) -> None:
    with grpc.insecure_channel(node.url.removeprefix("grpc://")) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "arrow.flight.protocol.FlightService"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=600)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        services = list(ProtoReflectionDescriptorDatabase(channel).get_services())
    assert "arrow.flight.protocol.FlightService" in services
    assert "grpc.health.v1.Health" in services


def test_app_metadata_says_where_a_batch_stands(client: fl.FlightClient) -> None:
    info = client.get_flight_info(
        command(dataset="photos", shuffle={"seed": 1, "epoch": 4}, batch=50, world={"size": 2})
    )
    plan = json.loads(info.app_metadata)["plan"]
    steps = []
    for batch, about in stream(client, info.endpoints[1]):
        assert about["plan"] == plan
        assert (about["epoch"], about["rank"], about["rows"]) == (4, 1, batch.num_rows)
        assert set(about["wait"]) >= {"store", "window", "encode", "consumer"}
        assert all(w >= 0 for w in about["wait"].values())
        resume: dict[str, Any] = about["resume"]
        assert resume["dataset"] == "photos"
        assert resume["snapshot"] == 1
        steps.append(about["step"])
    assert steps == sorted(steps)
    assert set(steps) == set(range(6))
