"""The samples of a long run. Each follows from its key alone, so a client knows what it has to be."""

from __future__ import annotations

import functools
import hashlib
import io
import random

import pyarrow as pa
from PIL import Image

DATASET = "bench"  # as the cases and bench/breaker.py call it
ATTACHED = "attached"
SAMPLES = 600
LABELS = 7
WIDTH, HEIGHT = 96, 72
LENGTH = 256  # tokens of a packed sequence
OPERATORS = [{"Decode": {}}, {"Resize": {"size": [32, 32]}}, {"ToImage": {}}]
SCHEMA = pa.schema(
    [
        ("key", pa.int64()),
        ("label", pa.int64()),
        ("tokens", pa.list_(pa.uint16())),
        ("n_tokens", pa.int64()),
        ("image", pa.large_binary()),
    ]
)


def image(key: int) -> bytes:
    """A JPEG of noise, of some 9 KB."""
    out = io.BytesIO()
    pixels = random.Random(key).randbytes(3 * WIDTH * HEIGHT)
    Image.frombytes("RGB", (WIDTH, HEIGHT), pixels).save(out, "JPEG", quality=80)
    return out.getvalue()


def tokens(key: int) -> list[int]:
    """A document of up to 120 tokens, which begins with its key."""
    return [key % 65536] + [(31 * key + i) % 65536 for i in range(key * 7919 % 120)]


def table(keys: list[int]) -> pa.Table:
    """The rows of the keys."""
    texts = [tokens(k) for k in keys]
    return pa.table(
        [keys, [k % LABELS for k in keys], texts, [len(t) for t in texts], [image(k) for k in keys]], schema=SCHEMA
    )


@functools.lru_cache(maxsize=4 * SAMPLES)
def digest(key: int) -> bytes:
    """The digest of a sample's image. A client keeps those of as many keys as it meets in a few epochs."""
    return digest_of(image(key))


def digest_of(content: bytes | memoryview | pa.Buffer) -> bytes:
    """The digest of some bytes."""
    return hashlib.blake2b(content, digest_size=16).digest()


def wrong(batch: pa.RecordBatch) -> int:
    """How many samples of a batch are not what their keys say; the columns are `key`, `image` and any of the others."""
    keys = batch.column("key").to_pylist()
    images = batch.column("image")
    bad = {i for i, key in enumerate(keys) if digest_of(images[i].as_buffer()) != digest(key)}
    names = batch.schema.names
    for name, value in (("label", lambda k: k % LABELS), ("tokens", tokens)):
        if name in names:
            found = batch.column(name).to_pylist()
            bad |= {i for i, key in enumerate(keys) if found[i] != value(key)}
    return len(bad)
