"""Train an image classifier from a Bowstring server with nothing but pyarrow.flight.

    python examples/plain_pyarrow/train.py grpc://127.0.0.1:8815 photos

Two epochs in a global shuffle that the seed and the epoch alone determine; the model is a softmax
on 32x32 thumbnails. Ends with a failure if a sample of an epoch came twice or not at all, or if the
accuracy on the `val` split did not rise.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.flight as fl
from PIL import Image

SIDE = 32
Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


def thumbnail(image: pa.Scalar) -> Floats:
    """Decode an image to SIDE x SIDE pixels between -1 and 1. JPEG is scaled while it is decoded."""
    with Image.open(io.BytesIO(image.as_buffer())) as opened:
        opened.draft("RGB", (SIDE, SIDE))
        small = opened.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX)
    return np.asarray(small, dtype=np.float32).ravel() / 127.5 - 1


class Softmax:
    """A linear classifier, trained by gradient descent with momentum."""

    def __init__(self, classes: int, rate: float = 0.01) -> None:
        self.weights: Floats = np.zeros((SIDE * SIDE * 3 + 1, classes), np.float32)
        self.speed: Floats = np.zeros_like(self.weights)
        self.rate = rate

    def scores(self, x: Floats) -> Floats:
        product: Floats = x @ self.weights[:-1] + self.weights[-1]
        return product

    def learn(self, x: Floats, y: Labels) -> None:
        scores = self.scores(x)
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(y)), y] -= 1
        slope = (np.vstack([x.T @ p, p.sum(axis=0, keepdims=True)]) / len(y)).astype(np.float32)
        self.speed = np.float32(0.9) * self.speed - np.float32(self.rate) * slope
        self.weights += self.speed

    def accuracy(self, x: Floats, y: Labels) -> float:
        return float((self.scores(x).argmax(axis=1) == y).mean())


class Timer:
    """Seconds by what they were spent on."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def batches(self, reader: fl.FlightStreamReader) -> Iterator[tuple[pa.RecordBatch, dict[str, Any]]]:
        """Yield a stream's batches with their app_metadata, timing the wait for each."""
        while True:
            start = time.perf_counter()
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            finally:
                self.seconds["wait for batch"] += time.perf_counter() - start
            yield chunk.data, json.loads(chunk.app_metadata.to_pybytes())

    def print(self, title: str) -> None:
        total = sum(self.seconds.values()) or 1.0
        ranked = sorted(self.seconds.items(), key=lambda item: -item[1])
        parts = (f"{name} {s:.2f} s ({s / total:.0%})" for name, s in ranked)
        print(f"    {title}: {', '.join(parts)}")


def command(**request: Any) -> fl.FlightDescriptor:
    return fl.FlightDescriptor.for_command(json.dumps(request))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("server", help="such as grpc://127.0.0.1:8815")
    parser.add_argument("dataset")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()

    client = fl.connect(args.server)
    columns = ["id", "image", "label"]
    schema = client.get_schema(command(dataset=args.dataset, split="train", columns=columns)).schema
    classes = json.loads(schema.field("label").metadata[b"bowstring.classes"])
    pool = ThreadPoolExecutor(2)  # Pillow decodes without holding Python's lock

    def decode(batch: pa.RecordBatch) -> tuple[Floats, Labels]:
        images = np.stack(list(pool.map(thumbnail, batch["image"])))
        return images, np.array(batch["label"].to_pylist(), np.int64)

    # The whole validation split, in order: a path is enough to ask for it.
    info = client.get_flight_info(fl.FlightDescriptor.for_path(args.dataset, "val"))
    held = [decode(chunk.data) for e in info.endpoints for chunk in client.do_get(e.ticket)]
    val_x, val_y = (np.concatenate(part) for part in zip(*held, strict=True))

    # No blob column is named, so this reads no image.
    info = client.get_flight_info(command(dataset=args.dataset, split="train", columns=["id"]))
    expected = client.do_get(info.endpoints[0].ticket).read_all()["id"].to_pylist()

    model = Softmax(len(classes))
    accuracy = [model.accuracy(val_x, val_y)]
    print(f"{len(expected)} samples of {len(classes)} classes; accuracy before training {accuracy[0]:.1%}")
    complete = True
    for epoch in range(args.epochs):
        request = command(
            dataset=args.dataset,
            split="train",
            columns=columns,
            shuffle={"seed": args.seed, "epoch": epoch},
            batch=args.batch,
        )
        info = client.get_flight_info(request)
        here, there = Timer(), Timer()
        seen: Counter[Any] = Counter()
        start = time.perf_counter()
        for batch, about in here.batches(client.do_get(info.endpoints[0].ticket)):
            began = time.perf_counter()
            x, y = decode(batch)
            decoded = time.perf_counter()
            model.learn(x, y)
            here.seconds["decode"] += decoded - began
            here.seconds["train"] += time.perf_counter() - decoded
            for name, microseconds in about["wait"].items():
                there.seconds[name] += microseconds / 1e6
            seen.update(batch["id"].to_pylist())
        took = time.perf_counter() - start
        accuracy.append(model.accuracy(val_x, val_y))
        print(
            f"epoch {epoch}: {seen.total()} samples in {took:.1f} s, {seen.total() / took:.0f} samples/s; "
            f"accuracy {accuracy[-1]:.1%}"
        )
        here.print("this script")
        there.print("the server ")
        if seen != Counter(expected):
            print(f"epoch {epoch}: {len(expected)} samples expected, {len(seen)} came, some more than once")
            complete = False

    rose = accuracy[-1] > accuracy[0]
    print("every sample came exactly once an epoch" if complete else "NOT every sample came exactly once")
    print(f"accuracy {'rose' if rose else 'did NOT rise'}: " + " -> ".join(f"{a:.1%}" for a in accuracy))
    return 0 if complete and rose else 1


if __name__ == "__main__":
    sys.exit(main())
