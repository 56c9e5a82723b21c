"""Makes the fixtures in this folder with the libraries whose formats they are in.

pip install mosaicml-streaming datasets webdataset; python make.py

Each holds the same few samples: JPEGs and PNGs of a few pixels, a label and columns of several types.
versions.txt says which versions wrote what is checked in.
"""

import decimal
import importlib.metadata
import io
import pathlib
import shutil

import datasets
import numpy as np
import webdataset
from PIL import Image
from streaming import MDSWriter

HERE = pathlib.Path(__file__).parent
CLASSES = ["ant", "bee", "cat"]


def picture(i: int, form: str) -> bytes:
    rgb = np.add.outer(np.arange(6 + i)[:, None] * 9, np.arange(8)[:, None] * [5, 11, 17] + i * 20).reshape(6 + i, 8, 3)
    out = io.BytesIO()
    Image.fromarray(rgb.astype(np.uint8)).save(out, format=form)
    return out.getvalue()


def mds() -> None:
    columns = {
        "image": "jpeg", "icon": "png", "raw": "bytes", "label": "int", "caption": "str", "weight": "float32",
        "tiny": "uint8", "big": "str_int", "ratio": "str_float", "price": "str_decimal", "extra": "json",
        "box": "ndarray:int32:2,2", "half": "float16",
    }
    for name, compression in (("plain", None), ("zstd", "zstd:7"), ("gz", "gz"), ("br", "br:1"), ("bz2", "bz2"), ("snappy", "snappy")):
        out = HERE / "mds" / name
        splits = ("train", "val") if name == "plain" else ("",)
        for split in splits:
            with MDSWriter(columns=columns, out=str(out / split), compression=compression, hashes=["sha1", "xxh64"], size_limit=4000) as w:
                for i in range(5):
                    w.write({
                        "image": picture(i, "JPEG"), "icon": picture(i, "PNG"), "raw": bytes(range(i)), "label": i % 3,
                        "caption": f"número {i}", "weight": i / 2, "tiny": 250 + i, "big": 10**12 * i, "ratio": i / 8,
                        "price": decimal.Decimal(i) / 4, "extra": {"i": i, "tags": ["a"] * i},
                        "box": np.arange(4, dtype=np.int32).reshape(2, 2) + i,
                        "half": np.float16(i / 4),
                    })
    for encoding, value in (("pkl", {"any": "thing"}), ("pil", Image.new("L", (2, 2))), ("ndarray", np.zeros((2, 3)))):
        with MDSWriter(columns={"x": encoding}, out=str(HERE / "mds" / encoding)) as w:
            w.write({"x": value})


def parquet() -> None:
    features = datasets.Features({
        "image": datasets.Image(), "label": datasets.ClassLabel(names=CLASSES), "id": datasets.Value("int64"),
        "caption": datasets.Value("string"), "score": datasets.Value("float32"), "boxes": datasets.Sequence(datasets.Sequence(datasets.Value("int32"), length=4)),
    })
    data = HERE / "huggingface" / "data"
    data.mkdir(parents=True)
    for split, shards, rows in (("train", 2, 6), ("test", 1, 2)):
        d = datasets.Dataset.from_dict({
            "image": [{"bytes": picture(i, "JPEG"), "path": f"{split}_{i}.jpg"} for i in range(rows)],
            "label": [i % 3 for i in range(rows)], "id": [100 + i for i in range(rows)],
            "caption": [None if i == 1 else f"picture {i}" for i in range(rows)], "score": [i / 4 for i in range(rows)],
            "boxes": [[[i, i, 2, 2]] * (i % 3) for i in range(rows)],
        }, features=features)
        for s in range(shards):
            d.shard(shards, s).to_parquet(data / f"{split}-{s:05d}-of-{shards:05d}.parquet")


def tars() -> None:
    for split, rows in (("train", 5), ("val", 2)):
        (HERE / "webdataset").mkdir(exist_ok=True)
        with webdataset.ShardWriter(str(HERE / "webdataset" / f"{split}-%04d.tar"), maxcount=3) as w:
            for i in range(rows):
                w.write({"__key__": f"{i:06d}", "jpg": picture(i, "JPEG"), "cls": i % 3, "txt": f"picture {i}",
                         "json": {"place": {"lat": i / 2, "name": "x" * i}, "n": i}})


if __name__ == "__main__":
    for part in ("mds", "huggingface", "webdataset"):
        shutil.rmtree(HERE / part, ignore_errors=True)
    mds()
    parquet()
    tars()
    used = ("mosaicml-streaming", "datasets", "pyarrow", "webdataset", "pillow")
    (HERE / "versions.txt").write_text("".join(f"{p} {importlib.metadata.version(p)}\n" for p in used))
