"""The command line, on a store and on a running server: what goes in with import comes out with get and take."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import datasets
import photos
import polars as pl
import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.parquet as pq
import pytest
from conftest import StartNode
from node import Node
from wire import put, read

Bowstring = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(params=["server", "store"])
def target(request: pytest.FixtureRequest, node: Node, imported: Path) -> list[str]:
    """The two things a command works on: a running server, and a store that no server serves."""
    return ["--server", node.url] if request.param == "server" else ["--store", str(imported)]


@pytest.fixture
def table(client: fl.FlightClient) -> pa.Table:
    return read(client, dataset="photos")


def test_get_to_parquet(bowstring: Bowstring, target: list[str], table: pa.Table, tmp_path: Path) -> None:
    out = tmp_path / "photos.parquet"
    done = bowstring("get", "photos", "--to", out, *target)
    assert done.stdout == ""  # standard output carries data only
    got = pq.read_table(out)
    assert got.column_names == [*table.column_names, "split"]  # there are several
    assert set(got["split"].to_pylist()) == {"train", "val"}
    assert got["image"].to_pylist() == table["image"].to_pylist()
    assert got.drop_columns(["image", "id", "split"]).to_pylist() == table.drop_columns(["image", "id"]).to_pylist()
    frame = pl.read_parquet(out, columns=["label", "width", "image"])
    assert frame["image"].to_list() == table["image"].to_pylist()
    assert frame["width"].to_list() == table["width"].to_pylist()


def test_get_to_hugging_face_parquet(bowstring: Bowstring, target: list[str], tmp_path: Path) -> None:
    out = tmp_path / "val.parquet"
    bowstring("get", "photos/val", "--to", out, "--layout", "huggingface", "--columns", "image,label", *target)
    own = datasets.Dataset.from_parquet(str(out), cache_dir=str(tmp_path / "cache"))
    assert isinstance(own.features["image"], datasets.Image)
    assert own.features["label"].names == sorted(photos.PHOTOGRAPHS)
    assert own[3]["image"].format == "JPEG"
    assert len(own) == 30


def test_get_to_arrow(bowstring: Bowstring, target: list[str], table: pa.Table, tmp_path: Path) -> None:
    out = tmp_path / "some.arrow"
    where = ["--where", "width > 500", "--columns", "id,width,image", "--limit", "20"]
    bowstring("get", "photos@1/train", "--to", out, *where, *target)
    with pa.ipc.open_file(out) as opened:
        got = opened.read_all()
    wanted = [r for r in table.to_pylist() if r["width"] > 500][:20]
    assert got["id"].type == pa.uuid()
    assert got["id"].to_pylist() == [r["id"] for r in wanted]
    assert got["image"].to_pylist() == [r["image"] for r in wanted]


def test_get_to_a_folder_and_import_it_again(
    bowstring: Bowstring, folder: Path, target: list[str], tmp_path: Path
) -> None:
    bowstring("get", "photos", "--to", tmp_path / "copy", "--format", "folder", *target)
    for path in folder.rglob("*.jpg"):
        assert (tmp_path / "copy" / path.relative_to(folder)).read_bytes() == path.read_bytes()
    again = tmp_path / "again"
    bowstring("import", tmp_path / "copy", "photos", "--store", again)
    (described,) = [json.loads(bowstring("describe", "photos", "--json", "--store", again).stdout)]
    assert described["rows"] == 300
    assert {s["name"]: s["rows"] for s in described["splits"]} == {"train": 270, "val": 30}


def test_get_in_shuffled_order(
    bowstring: Bowstring, client: fl.FlightClient, target: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "shuffled.parquet"
    options = ["--columns", "position", "--shuffle-seed", "9", "--epoch", "2"]
    bowstring("get", "photos", "--to", out, *options, *target)
    served = read(client, dataset="photos", columns=["position"], shuffle={"seed": 9, "epoch": 2})
    assert pq.read_table(out)["position"].to_pylist() == served["position"].to_pylist()


def test_get_replaces_only_with_a_flag(bowstring: Bowstring, target: list[str], tmp_path: Path) -> None:
    out = tmp_path / "x.parquet"
    out.write_text("precious")
    done = bowstring("get", "photos", "--to", out, "--columns", "label", *target, status=1)
    assert str(out) in done.stderr
    assert out.read_text() == "precious"
    bowstring("get", "photos", "--to", out, "--columns", "label", "--force", *target)
    assert pq.read_table(out).num_rows == 300


def test_a_failed_get_leaves_no_file(bowstring: Bowstring, target: list[str], tmp_path: Path) -> None:
    done = bowstring("get", "photos", "--to", tmp_path / "x.parquet", "--where", "breadth > 1", *target, status=1)
    assert "breadth" in done.stderr
    bowstring("get", "photos/test", "--to", tmp_path / "x.parquet", *target, status=1)
    assert list(tmp_path.iterdir()) == []


def test_take(bowstring: Bowstring, target: list[str], table: pa.Table, tmp_path: Path) -> None:
    shown = json.loads(bowstring("take", "photos", "7", "290", "7", "--json", *target).stdout)
    assert [r["position"] for r in shown] == [7, 290, 7]
    assert [r["id"] for r in shown] == [str(table["id"][p].as_py()) for p in (7, 290, 7)]
    assert str(table["id"][7].as_py()) in bowstring("take", "photos", "7", *target).stdout
    bowstring("take", "photos", "--id", str(table["id"][5].as_py()), "--to", tmp_path / "five", *target)
    (image,) = (tmp_path / "five").rglob("*.jpg")
    assert image.read_bytes() == table["image"][5].as_py()


def test_ls_and_describe(bowstring: Bowstring, target: list[str]) -> None:
    listed = json.loads(bowstring("ls", "photos", "--json", *target).stdout)
    assert {(r["dataset"], r["split"], r["snapshot"], r["rows"]) for r in listed} == {
        ("photos", "train", 1, 270),
        ("photos", "val", 1, 30),
    }
    assert "photos" in bowstring("ls", *target).stdout
    described = json.loads(bowstring("describe", "photos", "--json", *target).stdout)
    assert described["rows"] == 300
    text = bowstring("describe", "photos", *target).stdout
    assert "image" in text
    assert "motorcycle" in text or "10 classes" in text


def test_drop_and_gc(bowstring: Bowstring, imported: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(imported, store)
    size = sum(p.stat().st_size for p in store.rglob("*") if p.is_file())
    assert "--yes" in bowstring("drop", "photos", "--store", store, status=2).stderr
    bowstring("drop", "photos", "--yes", "--store", store)
    assert json.loads(bowstring("ls", "--json", "--store", store).stdout) == []
    bowstring("gc", "--dry-run", "--store", store)
    assert sum(p.stat().st_size for p in store.rglob("*") if p.is_file()) > 0.9 * size
    bowstring("gc", "--store", store)
    assert sum(p.stat().st_size for p in store.rglob("*") if p.is_file()) < 0.1 * size
    bowstring("drop", "photos", "--yes", "--store", store, status=1)


def test_a_20_mb_image(bowstring: Bowstring, start: StartNode, tmp_path: Path) -> None:
    node = start()
    image = os.urandom(20_000_000)
    with fl.connect(node.url) as own:
        put(own, pa.table({"image": pa.array([image] * 2, pa.large_binary()), "n": [1, 2]}), dataset="huge")
    bowstring("get", "huge", "--to", tmp_path / "huge.parquet", "--server", node.url)
    assert pq.read_table(tmp_path / "huge.parquet")["image"].to_pylist() == [image] * 2
    bowstring("take", "huge", "1", "--to", tmp_path / "one", "--server", node.url)
    assert image in [p.read_bytes() for p in (tmp_path / "one").rglob("*") if p.is_file()]


def test_a_store_in_use_is_refused_and_its_holder_named(bowstring: Bowstring, node: Node) -> None:
    done = bowstring("ls", "--store", node.store, status=1)
    assert str(node.pid) in done.stderr
    assert node.url in done.stderr


@pytest.mark.parametrize(
    ("args", "status", "says"),
    [
        (["explode"], 2, "explode"),
        (["ls", "--colour"], 2, "colour"),
        (["get", "photos"], 2, "--to"),
        (["get", "photos", "--to", "x.gif"], 2, "format"),
        (["take", "photos"], 2, "position"),
        (["take", "photos", "-1"], 2, "-1"),
        (["ls", "--server", "http://127.0.0.1:1"], 2, "grpc://"),
        (["describe", "nothing"], 1, "nothing"),
        (["ls", "--store", "/dev/null/x"], 1, "/dev/null"),
        (["ls", "--server", "grpc://127.0.0.1:1"], 1, "127.0.0.1:1"),
        (["serve", "--listen", "nowhere"], 2, "HOST:PORT"),
        (["serve", "--max-streams", "0"], 2, "max-streams"),
    ],
)
def test_mistakes(bowstring: Bowstring, node: Node, tmp_path: Path, args: list[str], status: int, says: str) -> None:
    place = [] if "--server" in args or "--store" in args else ["--server", node.url]
    if args[0] == "serve":
        place = ["--store", str(tmp_path / "s")]
    done = bowstring(*args, *place, status=status)
    assert done.stdout == ""
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "s").exists()


def test_version(bowstring: Bowstring) -> None:
    assert bowstring("version").stdout.startswith("bowstring ")
    assert json.loads(bowstring("version", "--json").stdout)["go"].startswith("go1.")


def test_a_flag_beats_the_environment_beats_the_file(binary: Path, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("serve:\n  max-streams: 11\n  usage-keep: 12\n  read-timeout: 13s\nlog-level: warn\n")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "BOWSTRING_CONFIG": str(file),
        "BOWSTRING_SERVE_USAGE_KEEP": "22",
        "BOWSTRING_LOG_LEVEL": "error",
    }
    done = subprocess.run(
        [binary, "config", "print", "--json", "--log-level", "debug"],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    settings = json.loads(done.stdout)
    found = {s["name"]: (str(s["value"]), s["source"]) for s in settings}
    assert found["serve.max-streams"] == ("11", f"{file}:2")
    assert found["serve.usage-keep"] == ("22", "environment BOWSTRING_SERVE_USAGE_KEEP")
    assert found["serve.read-timeout"] == ("13s", f"{file}:4")
    assert found["log-level"] == ("debug", "command line")
    assert found["serve.listen"] == ("127.0.0.1:8815", "default")


def test_a_mistake_in_the_file_is_located(bowstring: Bowstring, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("log-level: info\nserve:\n  max-stream: 11\n")
    done = bowstring("ls", "--config", file, "--store", tmp_path / "store", status=2)
    assert "max-stream" in done.stderr
    assert f"{file}:3" in done.stderr
