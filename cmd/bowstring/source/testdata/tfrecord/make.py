"""Writes the TensorFlow records beside it with the package tfrecord 1.14.6.

pip install tfrecord; python make.py
"""

import gzip
import io
from pathlib import Path

import numpy as np
from PIL import Image
from tfrecord.writer import TFRecordWriter

root = Path(__file__).parent


def picture(i: int) -> bytes:
    rgb = np.add.outer(np.arange(6 + i)[:, None] * 9, np.arange(8)[:, None] * [5, 11, 17] + i * 20).reshape(6 + i, 8, 3)
    out = io.BytesIO()
    Image.fromarray(rgb.astype(np.uint8)).save(out, format="JPEG")
    return out.getvalue()


(root / "records").mkdir(exist_ok=True)
n = 0
for name, rows in (
    ("train.tfrecord-00000-of-00002", 3),
    ("train.tfrecord-00001-of-00002", 2),
    ("val.tfrecord-00000-of-00001", 2),
):
    w = TFRecordWriter(str(root / "records" / name))
    for _ in range(rows):
        w.write(
            {
                "image/encoded": (picture(n), "byte"),
                "image/format": (b"jpeg", "byte"),
                "image/class/label": (n % 3, "int"),
                "image/object/bbox": ([n / 4 + k for k in range(4 * (n % 3))], "float"),
                "image/names": ([b"ant", b"bee"][: n % 3], "byte"),
                "views": ([bytes([0, n]), bytes([1, n])], "byte"),
                "score": (n / 8, "float"),
                "negative": (-n, "int"),
            }
        )
        n += 1
    w.close()
whole = b"".join(
    (root / "records" / name).read_bytes()
    for name in ("train.tfrecord-00000-of-00002", "train.tfrecord-00001-of-00002")
)
(root / "packed").mkdir(exist_ok=True)
(root / "packed" / "train.tfrecord.gz").write_bytes(gzip.compress(whole, mtime=0))
(root / "sequence").mkdir(exist_ok=True)
w = TFRecordWriter(str(root / "sequence" / "x.tfrecord"))
w.write({"length": (2, "int")}, {"frames": ([b"a", b"b"], "byte")})
w.close()
