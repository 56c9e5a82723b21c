"""Writes the directories beside it with litdata 0.2.76.

pip install litdata zstd; python make.py
"""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import torch
from litdata.streaming.writer import BinaryWriter
from litdata.types import Audio
from litdata.types import Image as LitImage
from PIL import Image

root = Path(__file__).parent


def picture(i: int) -> bytes:
    rgb = np.add.outer(np.arange(6 + i)[:, None] * 9, np.arange(8)[:, None] * [5, 11, 17] + i * 20).reshape(6 + i, 8, 3)
    out = io.BytesIO()
    Image.fromarray(rgb.astype(np.uint8)).save(out, format="JPEG")
    return out.getvalue()


def sample(i: int) -> dict:
    return {
        "image": Image.open(io.BytesIO(picture(i))),
        "picture": LitImage(bytes=picture(i + 1), path="x.jpg"),
        "sound": Audio(bytes=b"RIFF" + bytes(range(i)), path="x.wav"),
        "raw": bytes(range(i)),
        "views": [Image.open(io.BytesIO(picture(i))), Image.open(io.BytesIO(picture(i + 2)))],
        "label": i % 3,
        "caption": f"número {i}",
        "weight": i / 2,
        "good": i % 2 == 0,
        "place": {"lat": i / 4, "name": "x" * i},
        "pair": (i, -i),
        "matrix": np.arange(6, dtype=np.int32).reshape(2, 3) + i,
        "vector": np.arange(i, dtype=np.float32),
        "tensor": torch.arange(4, dtype=torch.float64).reshape(2, 2) + i,
        "tokens": torch.arange(3, dtype=torch.int64) + i,
    }


def write(name: str, samples: list, **options) -> None:
    out = root / name
    shutil.rmtree(out, ignore_errors=True)
    w = BinaryWriter(str(out), **options)
    for i, s in enumerate(samples):
        w[i] = s
    w.done()
    w.merge()
    index = json.loads((out / "index.json").read_text())
    index.pop("updated_at")  # else each run writes another file
    (out / "index.json").write_text(json.dumps(index, sort_keys=True))


rows = [sample(i) for i in range(7)]
write("plain/train", rows[:5], chunk_size=2)
write("plain/val", rows[5:], chunk_size=2)
write("chunk", rows, chunk_size=4, compression="zstd", compression_level="chunk")
write("batch", rows, chunk_size=5, compression="zstd", compression_level="batch", compression_batch_size=2)
write("sample", rows, chunk_size=4, compression="zstd", compression_level="sample")
write("bare", [Image.open(io.BytesIO(picture(i))) for i in range(3)], chunk_size=2)
write("pickle", [{"x": {1, 2}}], chunk_size=2)
write("pil", [{"x": Image.new("L", (2, 2))}], chunk_size=2)
write("arrow", [{"x": [{"a": 1}], "y": "text"}] * 2, chunk_size=2)
