"""Images and sound as people have them: what the operators make of each kind is what its own library reads."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pytest
import tifffile
from conftest import StartNode
from node import Node
from own_images import Kind, all_images, photo, saved
from own_sounds import Sound, all_sounds
from PIL import Image, ImageOps
from wire import read

IMAGES = all_images()
SOUNDS = all_sounds()
DECODE: list[dict[str, Any]] = [{"Decode": {}}]


def written(root: Path, files: dict[str, bytes]) -> Path:
    root.mkdir()
    for name, data in files.items():
        (root / name).write_bytes(data)
    return root


def by_name(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["file_name"]: row for row in rows}


@pytest.fixture(scope="module")
def imports(tmp_path_factory: pytest.TempPathFactory, bowstring: Callable[..., Any]) -> dict[str, Any]:
    """A store with all that is good, checked by decoding it, and what the imports said was bad."""
    root = tmp_path_factory.mktemp("own")
    made: dict[str, Any] = {"store": root / "store", "bad": {}}
    for name, table in (("pictures", IMAGES), ("sounds", SOUNDS)):
        folder = written(root / name, {name: kind.data for name, kind in table.items()})
        bad = root / f"{name}.jsonl"
        options = ["--verify", "decode", "--skip-bad", "--bad-list", bad, "--store", made["store"]]
        bowstring("import", folder, name, *options)
        # And as they are, for what streams say of them.
        bowstring("import", folder, f"any-{name}", "--verify", "none", "--store", made["store"])
        lines = [json.loads(line) for line in bad.read_text().splitlines()]
        made["bad"][name] = {line["key"]: line["reason"] for line in lines}
    return made


@pytest.fixture(scope="module")
def served(imports: dict[str, Any], binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Node(binary, imports["store"], log=tmp_path_factory.mktemp("log") / "server.log") as node:
        yield node.url


@pytest.fixture(scope="module")
def pixels(served: str) -> dict[str, dict[str, Any]]:
    with fl.connect(served) as client:
        columns = ["file_name", "image", "width", "height", "format", "orientation"]
        table = read(client, dataset="pictures", columns=columns, operators={"image": DECODE})
    return by_name(table.to_pylist())


@pytest.fixture(scope="module")
def samples(served: str) -> dict[str, dict[str, Any]]:
    with fl.connect(served) as client:
        columns = ["file_name", "audio", "duration", "sampling_rate", "channels"]
        table = read(client, dataset="sounds", columns=columns, operators={"audio": DECODE}, on_error="null")
    return by_name(table.to_pylist())


def test_there_are_many() -> None:
    assert len(IMAGES) >= 140
    assert len(SOUNDS) >= 50


@pytest.mark.parametrize("name", [name for name, kind in IMAGES.items() if not kind.refused])
def test_pixels(pixels: dict[str, dict[str, Any]], name: str) -> None:
    kind: Kind = IMAGES[name]
    row = pixels[name]
    assert kind.rgb is not None
    assert row["image"]["shape"] == list(kind.rgb.shape)
    np.testing.assert_array_equal(np.array(row["image"]["data"], np.uint8).reshape(kind.rgb.shape), kind.rgb)
    assert (row["height"], row["width"]) == kind.rgb.shape[:2]
    assert row["orientation"] == 1


@pytest.mark.parametrize("name", [name for name, sound in SOUNDS.items() if sound.samples is not None])
def test_samples(samples: dict[str, dict[str, Any]], name: str) -> None:
    sound: Sound = SOUNDS[name]
    row = samples[name]
    want = sound.samples
    assert want is not None
    assert row["audio"]["shape"] == list(want.shape)
    got = np.array(row["audio"]["data"], np.float32).reshape(want.shape)
    if sound.decibels is None:
        np.testing.assert_array_equal(got, want)
    else:
        noise = max(np.square(got.astype(float) - want).mean(), 1e-30)
        assert 10 * np.log10(np.square(want.astype(float)).mean() / noise) >= sound.decibels
    assert row["channels"] == want.shape[0]
    assert row["duration"] == pytest.approx(want.shape[1] / row["sampling_rate"])


@pytest.mark.parametrize(
    "name",
    ["float32.tif", "float32-motorola.tif", "float64.tif", "int16.tif", "F-raw.tif", "F-tiff_lzw.tif", "I-raw.tif"],
)
def test_numbers(served: str, name: str) -> None:
    """Values come as they are with mode F."""
    with fl.connect(served) as client:
        operators = {"image": [{"Decode": {"mode": "F"}}]}
        table = read(client, dataset="pictures", columns=["image"], where=f"file_name == '{name}'", operators=operators)
    cell = table["image"].to_pylist()[0]
    if name[0] in "FI":
        with Image.open(io.BytesIO(IMAGES[name].data)) as image:
            want = np.asarray(image)
    else:
        want = tifffile.imread(io.BytesIO(IMAGES[name].data))
    got = np.array(cell["data"], np.float32).reshape(cell["shape"])
    np.testing.assert_array_equal(got, want.astype(np.float32)[:, :, None])


def test_bad_images_are_those_that_are_not_supported(imports: dict[str, Any]) -> None:
    refused = {name: kind.refused for name, kind in IMAGES.items() if kind.refused}
    bad = imports["bad"]["pictures"]
    assert set(bad) == set(refused)
    for name, words in refused.items():
        assert bad[name].startswith("not supported: "), name
        assert words in bad[name], name


def test_bad_sound_is_damaged(imports: dict[str, Any]) -> None:
    damaged = {name: sound.damaged for name, sound in SOUNDS.items() if sound.damaged}
    bad = imports["bad"]["sounds"]
    assert set(bad) == set(damaged)
    for name, words in damaged.items():
        assert words in bad[name], name


def test_sound_that_is_not_read_is_imported_as_it_is(samples: dict[str, dict[str, Any]]) -> None:
    assert {name for name, row in samples.items() if row["audio"] is None} == {
        n for n, s in SOUNDS.items() if s.refused
    }


def test_what_is_not_supported_is_not_damaged_in_streams(served: str) -> None:
    wanted = [("any-pictures", "image", name, kind.refused, "") for name, kind in IMAGES.items() if kind.refused]
    for name, sound in SOUNDS.items():
        if sound.refused or sound.damaged:
            wanted.append(("any-sounds", "audio", name, sound.refused, sound.damaged))
    with fl.connect(served) as client:
        for dataset, column, name, refused, damaged in wanted:
            request = {"dataset": dataset, "where": f"file_name == '{name}'", "operators": {column: DECODE}}
            error = pa.ArrowNotImplementedError if refused else fl.FlightInternalError
            with pytest.raises(error) as caught:
                read(client, columns=[column], **request)
            assert (refused or damaged) in str(caught.value), name
            assert ("not supported" in str(caught.value)) == bool(refused), name
            # Whatever it is, on_error takes it.
            assert read(client, columns=[column], on_error="null", **request)[column].to_pylist() == [None], name


def test_orientation(bowstring: Callable[..., Any], start: StartNode, tmp_path: Path) -> None:
    """It is a column; pixels are turned where the request says so, as Pillow turns them."""
    files: dict[str, bytes] = {}
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[274] = orientation
        for kind in ("JPEG", "PNG", "TIFF", "WEBP"):
            files[f"{orientation}.{kind.lower()}"] = saved(photo(seed=orientation), kind, exif=exif)
    root = written(tmp_path / "turned", files)
    bowstring("import", root, "turned", "--store", tmp_path / "store")
    with fl.connect(start(store=tmp_path / "store").url) as client:
        columns = ["file_name", "image", "width", "height", "orientation"]
        for turn in (False, True):
            decode = [{"Decode": {"apply_exif_orientation": turn}}]
            rows = by_name(read(client, dataset="turned", columns=columns, operators={"image": decode}).to_pylist())
            assert set(rows) == set(files)
            for name, row in rows.items():
                assert row["orientation"] == int(name[0])
                assert (row["width"], row["height"]) == photo().size
                with Image.open(root / name) as image:
                    image.load()  # which turns a TIFF, whether that is asked for or not; so does the operator
                    want = np.asarray((ImageOps.exif_transpose(image) if turn else image).convert("RGB"))
                got = np.array(row["image"]["data"], np.uint8).reshape(row["image"]["shape"])
                np.testing.assert_array_equal(got, want, name)
