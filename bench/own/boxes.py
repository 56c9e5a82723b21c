"""Containers and folders: WebDataset, MosaicML MDS, Hugging Face folders."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import webdataset
from PIL import Image

from .kind import Kind, Made, Row, UnavailableError, kind
from .pictures import encoded, files, pixels

KINDS: list[Kind] = []
COUNT = 6


def samples(start: int = 0) -> list[Row]:
    """Samples as webdataset's writer takes them."""
    return [
        {"__key__": f"s{i:04d}", "png": encoded(i), "cls": i % 3, "json": {"n": i, "name": f"sample {i}"}}
        for i in range(start, start + COUNT)
    ]


def shard(path: Path, rows: list[Row]) -> Path:
    """A tar by webdataset."""
    with webdataset.TarWriter(str(path)) as writer:
        for row in rows:
            writer.write(row)
    return path


def read(*paths: Path) -> list[Row]:
    """The samples that webdataset reads."""
    found = webdataset.WebDataset([str(p) for p in paths], shardshuffle=False, empty_check=False)
    return [
        {
            "n": json.loads(r["json"])["n"],
            "name": json.loads(r["json"])["name"],
            "label": int(r["cls"]),
            "image": r["png"],
        }
        for r in found
    ]


@kind(KINDS)
def wds_shards(folder: Path) -> Made:
    there = folder / "shards"
    there.mkdir()
    paths = [shard(there / f"train-{i:06d}.tar", samples(i * COUNT)) for i in range(2)]
    return Made(there, read(*paths))


@kind(KINDS)
def wds_gzip_members(folder: Path) -> Made:
    path = shard(folder / "plain.tar", samples())
    whole = path.read_bytes()
    joined = gzip.compress(whole[: len(whole) // 2]) + gzip.compress(whole[len(whole) // 2 :])
    (folder / "t.tar.gz").write_bytes(joined)
    return Made(folder / "t.tar.gz", read(path))


@kind(KINDS)
def wds_joined_by_cat(folder: Path) -> Made:
    paths = [shard(folder / f"part{i}.tar", samples(i * COUNT)) for i in range(2)]
    there = folder / "joined"
    there.mkdir()
    (there / "t.tar").write_bytes(b"".join(p.read_bytes() for p in paths))
    return Made(there / "t.tar", read(*paths))


@kind(KINDS)
def wds_json_list(folder: Path) -> Made:
    rows = [{"__key__": f"s{i}", "png": encoded(i), "cls": i, "json": [i, "word"]} for i in range(3)]
    path = shard(folder / "t.tar", rows)
    found = webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False)
    return Made(
        path, [{"label": int(r["cls"]), "json": [str(v) for v in json.loads(r["json"])]} for r in found], key="label"
    )


@kind(KINDS)
def wds_json_text(folder: Path) -> Made:
    rows = [{"__key__": f"s{i}", "png": encoded(i), "cls": i, "json": json.dumps(f"caption {i}")} for i in range(3)]
    path = shard(folder / "t.tar", rows)
    return Made(path, [{"label": i, "json": f"caption {i}"} for i in range(3)], key="label")


@kind(KINDS)
def wds_named_json(folder: Path) -> Made:
    rows = [{"__key__": f"s{i}", "png": encoded(i), "cls": i, "info.json": {"height": i, "by": "me"}} for i in range(3)]
    path = shard(folder / "t.tar", rows)
    found = webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False)
    rows = [{"label": int(r["cls"]), **{f"info_{k}": v for k, v in json.loads(r["info.json"]).items()}} for r in found]
    return Made(path, rows, key="label")


@kind(KINDS)
def wds_large_numbers(folder: Path) -> Made:
    rows = samples()
    for row in rows:
        row["json"]["hash"] = 2**63 + row["json"]["n"]
    path = shard(folder / "t.tar", rows)
    return Made(path, [{"n": r["json"]["n"], "hash": r["json"]["hash"]} for r in rows])


@kind(KINDS)
def wds_long_names(folder: Path) -> Made:
    rows = samples()
    for row in rows:
        row["__key__"] = "a/" * 60 + row["__key__"]
    path = shard(folder / "t.tar", rows)
    return Made(path, read(path))


@kind(KINDS)
def wds_pax(folder: Path) -> Made:
    path = folder / "t.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for i in range(COUNT):
            for extension, data in (("png", encoded(i)), ("cls", str(i).encode()), ("txt", b"caption")):
                member = tarfile.TarInfo(f"photo-é-{i}.{extension}")
                member.size, member.mtime = len(data), 1.5
                tar.addfile(member, io.BytesIO(data))
    return Made(path, [{"label": i, "txt": "caption", "image": encoded(i)} for i in range(COUNT)], key="label")


def mds(folder: Path, columns: dict[str, str], rows: Iterable[Row], shard: int = 1 << 26) -> Path:
    """A folder by mosaicml-streaming, which is not among the tests' packages; shards have that many bytes."""
    sys.path.append(str(Path(__file__).parents[2] / "build" / "mosaicml"))
    try:
        from streaming import MDSWriter  # type: ignore[import-not-found]
    except ImportError as error:
        raise UnavailableError(f"mosaicml-streaming: {error}") from error
    finally:
        sys.path.pop()
    out = str(folder / "mds")
    with contextlib.redirect_stdout(sys.stderr), MDSWriter(out=out, columns=columns, size_limit=shard) as writer:
        for row in rows:
            writer.write(row)
    return folder / "mds"


@kind(KINDS)
def mds_jpeg(folder: Path) -> Made:
    rows = [{"n": i, "image": Image.fromarray(pixels(i)), "name": f"s{i}"} for i in range(COUNT)]
    there = mds(folder, {"n": "int", "image": "jpeg", "name": "str"}, rows)
    return Made(there, [{"n": r["n"], "name": r["name"]} for r in rows])


@kind(KINDS)
def mds_scalars(folder: Path) -> Made:
    rows: list[Row] = [
        {
            "n": i,
            "image": encoded(i),
            "u64": np.uint64(2**64 - 1 - i),
            "f16": np.float16(i / 3),
            "text_int": -i,
            "text_float": i / 3,
            "meta": {"a": [i, "x"]},
        }
        for i in range(COUNT)
    ]
    kinds = {"n": "int64", "image": "png", "u64": "uint64", "f16": "float16", "text_int": "str_int"}
    there = mds(folder, {**kinds, "text_float": "str_float", "meta": "json", "image": "bytes"}, rows)
    return Made(there, [{**{k: v for k, v in r.items() if k != "meta"}, "meta": json.dumps(r["meta"])} for r in rows])


@kind(KINDS)
def mds_jpeg_array(folder: Path) -> Made:
    rows = [{"n": i, "images": [encoded(i + j, "JPEG") for j in range(2)]} for i in range(COUNT)]
    there = mds(folder, {"n": "int", "images": "jpeg_array"}, rows)
    return Made(there, [{"n": i} for i in range(COUNT)])


@kind(KINDS)
def mds_list_of_jpegs(folder: Path) -> Made:
    rows = [{"n": i, "images": [Image.fromarray(pixels(i + j)) for j in range(2)]} for i in range(COUNT)]
    there = mds(folder, {"n": "int", "images": "list[jpeg]"}, rows)
    return Made(there, [{"n": i} for i in range(COUNT)])


@kind(KINDS)
def mds_ndarray_of_a_shape(folder: Path) -> Made:
    rows: list[Row] = [
        {"n": i, "image": encoded(i), "vector": np.arange(3, dtype=np.float32) * i} for i in range(COUNT)
    ]
    there = mds(folder, {"n": "int", "image": "bytes", "vector": "ndarray:float32:3"}, rows)
    return Made(there, [{"n": r["n"], "vector": r["vector"].tolist()} for r in rows])


@kind(KINDS)
def mds_ndarray_of_any_shape(folder: Path) -> Made:
    rows: list[Row] = [{"n": i, "image": encoded(i), "vector": np.arange(i + 1, dtype=np.int16)} for i in range(COUNT)]
    there = mds(folder, {"n": "int", "image": "bytes", "vector": "ndarray"}, rows)
    return Made(there, [{"n": r["n"], "vector": r["vector"].tolist()} for r in rows])


@kind(KINDS)
def folder_of_classes(folder: Path) -> Made:
    there = folder / "photos"
    files(there, [f"{split}/{c}/{i}.png" for split in ("train", "test") for c in ("zebra", "ape") for i in range(2)])
    back = datasets.load_dataset("imagefolder", data_dir=str(there), cache_dir=str(folder / "cache"))
    rows = []
    for split, part in back.items():
        for row in part.cast_column("image", datasets.Image(decode=False)):
            name = Path(row["image"]["path"]).relative_to(there)
            rows.append(
                {"file_name": str(name), "label": row["label"], "image": name.parts and (there / name).read_bytes()}
            )
        assert split in ("train", "test")
    return Made(there, rows, key="file_name")


@kind(KINDS)
def folder_with_metadata(folder: Path) -> Made:
    there = folder / "photos"
    names = files(there, [f"{i}.png" for i in range(4)])
    frame = pd.DataFrame({"file_name": names, "caption": ["1.10", "b", "True", "d"], "n": range(4)})
    frame.to_csv(there / "metadata.csv", index=False)
    return Made(there, frame.drop(columns="file_name").to_dict("records"))


@kind(KINDS)
def folder_with_several_files_a_row(folder: Path) -> Made:
    there = folder / "photos"
    files(there, [f"image/{i}.png" for i in range(3)] + [f"mask/{i}.png" for i in range(3)])
    lines = [{"image_file_name": f"image/{i}.png", "mask_file_name": f"mask/{i}.png", "n": i} for i in range(3)]
    (there / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    back = datasets.load_dataset("imagefolder", data_dir=str(there), split="train", cache_dir=str(folder / "cache"))
    for name in ("image", "mask"):
        back = back.cast_column(name, datasets.Image(decode=False))
    rows = [
        {"n": r["n"], **{c: r[c]["bytes"] or Path(r[c]["path"]).read_bytes() for c in ("image", "mask")}} for r in back
    ]
    return Made(there, rows)
