"""A training process that reads photographs from a bucket, Cassandra or files, by the methods of other systems.

    python bench/bucket_reader.py SPEC

SPEC is JSON: `side`, `place` (http://HOST:PORT/BUCKET/PREFIX of the objects, a folder, or HOST:PORT of Cassandra),
`folder` (the same photographs as files, which name the objects), `batch`, `batches` (0: all), `compute` (seconds of
sleep after each batch), `epochs`, `workers`, `threads`, and `held` (samples that `deli` may hold). Sides:

- `objects`: a DataLoader whose workers request one object after another; with `threads`, that number of objects of a
  batch at once, as ConcurrentDataloader's threaded fetcher does.
- `files`: the same DataLoader over the files.
- `deli`: one object after another, and a thread that brings the next half of `held` whenever half is used, as DELI's
  prefetch service does: a cache in memory, that the sampler's order fills.
- `mosaicml`: a StreamingDataset of the shards (MDS) at `place`, with an empty local cache.
- `cassandra`: prepared reads of single rows, `threads` of them in flight, whose answers are taken in any order, as
  cassandra-dali-plugin does. The batches are those of the order in which the answers come.
- `dali`: a pipeline of DALI on CPUs, which decodes what `bowstring.dali` gives it of `dataset`, of the server at
  `place`.

Connections are made within the clock; imports and lists of objects are not. It prints `ready`, reads after the line
`go`, checks that no sample comes twice in an epoch, and prints one JSON list: the [seconds, rows, bytes, seconds
waited for it] of each batch.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import queue
import random
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

Spec = dict[str, Any]
Batch = tuple[list[int], int]  # numbers of samples, and their bytes

LOCAL = threading.local()
FETCHERS = 16  # threads of the prefetch service of `deli`


def get(host: str, path: str) -> bytes:
    """An object, on this thread's own connection, which stays."""
    connection = getattr(LOCAL, "connection", None)
    if connection is None:
        connection = LOCAL.connection = http.client.HTTPConnection(host)
    connection.request("GET", path)
    answer = connection.getresponse()
    data: bytes = answer.read()
    if answer.status != http.HTTPStatus.OK:
        raise RuntimeError(f"{path}: {answer.status}")
    return data


class Samples:
    """Photographs by number, from objects or files."""

    def __init__(self, spec: Spec) -> None:
        folder = Path(spec["folder"])
        self.paths = sorted(folder.rglob("*.jpg"), key=lambda path: path.name)
        self.threads: int = spec["threads"]
        place = urllib.parse.urlsplit(spec["place"])
        self.host = place.netloc
        self.keys = [f"{place.path}/{path.relative_to(folder)}" for path in self.paths]
        self.files = spec["side"] == "files"
        self.pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[int, bytes]:
        return index, self.paths[index].read_bytes() if self.files else get(self.host, self.keys[index])

    def __getitems__(self, indices: list[int]) -> list[tuple[int, bytes]]:
        """A batch's samples: one after another, or by threads."""
        if self.threads and self.pool is None:  # in the worker, which has no threads of its parent
            self.pool = ThreadPoolExecutor(self.threads)
        return list((self.pool.map if self.pool else map)(self.__getitem__, indices))


def collate(samples: list[tuple[int, bytes]]) -> tuple[list[int], Any]:
    """One tensor in shared memory: the cheapest way out of a worker."""
    import numpy as np
    import torch

    total = sum(len(data) for _, data in samples)
    shared: Any = torch.UntypedStorage  # whose way to shared memory has no types
    flat = torch.empty(0, dtype=torch.uint8).set_(shared._new_shared(total), 0, torch.Size((total,)), (1,))
    view, at = flat.numpy(), 0
    for _, data in samples:
        view[at : at + len(data)] = np.frombuffer(data, np.uint8)
        at += len(data)
    return [number for number, _ in samples], flat


def torch_epochs(spec: Spec) -> Callable[[int], Iterator[Batch]]:
    """Epochs of a DataLoader, which shuffles all samples."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Photographs(Samples, Dataset[tuple[int, bytes]]):
        """The samples, as torch takes them."""

    torch.set_num_threads(1)
    loader: DataLoader[Any] = DataLoader(
        Photographs(spec), spec["batch"], shuffle=True, num_workers=spec["workers"], collate_fn=collate
    )

    def epoch(_: int) -> Iterator[Batch]:
        for numbers, flat in loader:
            yield numbers, flat.numel()

    return epoch


class Prefetch:
    """DELI's prefetch service: it brings the next samples of the order into a cache that holds `held`."""

    def __init__(self, samples: Samples, order: list[int], held: int) -> None:
        self.samples, self.order = samples, order
        self.half = max(1, held // 2)
        self.cache: dict[int, bytes] = {}
        self.blocks: queue.Queue[int] = queue.Queue()  # beginnings of halves that are to be brought
        self.arrived = [threading.Event() for _ in order]
        threading.Thread(target=self._bring, daemon=True).start()
        for first in range(0, min(2 * self.half, len(order)), self.half):
            self.blocks.put(first)

    def _bring(self) -> None:
        with ThreadPoolExecutor(FETCHERS) as pool:
            while True:
                first = self.blocks.get()
                list(pool.map(self._one, range(first, min(first + self.half, len(self.order)))))

    def _one(self, at: int) -> None:
        number = self.order[at]
        self.cache[number] = self.samples[number][1]
        self.arrived[at].set()

    def take(self, at: int) -> bytes:
        """The sample at a place of the order; one that is not there is waited for."""
        self.arrived[at].wait()
        data = self.cache.pop(self.order[at])
        if (at + 1) % self.half == 0 and (following := at + 1 + self.half) < len(self.order):
            self.blocks.put(following)
        return data


def deli_epochs(spec: Spec) -> Callable[[int], Iterator[Batch]]:
    """Epochs out of the cache of a prefetch service."""
    samples = Samples(spec)
    orders = [random.Random(epoch).sample(range(len(samples)), len(samples)) for epoch in range(spec["epochs"])]
    whole = list(itertools.chain.from_iterable(orders))
    service: list[Prefetch] = []

    def epoch(number: int) -> Iterator[Batch]:
        if not service:
            service.append(Prefetch(samples, whole, spec["held"]))
        first = number * len(samples)
        for start in range(first, first + len(samples), spec["batch"]):
            places = range(start, min(start + spec["batch"], first + len(samples)))
            yield [whole[at] for at in places], sum(len(service[0].take(at)) for at in places)

    return epoch


def mosaicml_epochs(spec: Spec) -> Callable[[int], Iterator[Batch]]:
    """Epochs of MosaicML Streaming, whose local cache is empty."""
    place = urllib.parse.urlsplit(spec["place"])
    os.environ.update(
        S3_ENDPOINT_URL=f"{place.scheme}://{place.netloc}",
        AWS_ACCESS_KEY_ID="bench",
        AWS_SECRET_ACCESS_KEY="benchbench",  # noqa: S106  # the server looks at none
        AWS_DEFAULT_REGION="us-east-1",
    )
    import streaming.base.util  # type: ignore[import-not-found]
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    streaming.base.util.clean_stale_shared_memory()
    cache = tempfile.mkdtemp(prefix="mosaicml-", dir=spec["cache"])

    class Photographs(StreamingDataset):  # type: ignore[misc]
        """The samples as pairs."""

        def __getitem__(self, at: int) -> tuple[int, bytes]:
            row = super().__getitem__(at)
            return row["id"], row["data"]

    def epoch(number: int) -> Iterator[Batch]:
        dataset = Photographs(
            remote=f"s3:/{place.path}",
            local=cache,
            shuffle=True,
            batch_size=spec["batch"],
            shuffle_seed=number,
        )
        for stream in dataset.streams:
            stream._downloader.clean_up()  # workers would share its connection, which they inherit
        loader: DataLoader[Any] = DataLoader(dataset, spec["batch"], num_workers=spec["workers"], collate_fn=collate)
        for numbers, flat in loader:
            yield numbers, flat.numel()

    return epoch


def cassandra_epochs(spec: Spec) -> Callable[[int], Iterator[Batch]]:
    """Epochs of prepared reads, out of order."""
    from cassandra.cluster import Cluster

    host, _, port = spec["place"].partition(":")
    samples = Samples({**spec, "place": ""})

    def epoch(number: int) -> Iterator[Batch]:
        cluster = Cluster([host], port=int(port), protocol_version=4)
        session = cluster.connect("theirs")
        read = session.prepare("SELECT id, data FROM photographs WHERE id = ?")
        order = iter(random.Random(number).sample(range(len(samples)), len(samples)))
        answers: queue.Queue[Any] = queue.Queue()

        def request() -> None:
            if (at := next(order, None)) is not None:
                session.execute_async(read, (at,)).add_callbacks(
                    lambda rows: answers.put(rows[0]), lambda error: answers.put(error)
                )

        for _ in range(spec["threads"]):
            request()
        left = len(samples)
        while left:
            numbers, size = [], 0
            for _ in range(min(spec["batch"], left)):
                row = answers.get()
                if isinstance(row, Exception):
                    raise row
                request()
                numbers.append(row.id)
                size += len(row.data)
            left -= len(numbers)
            yield numbers, size
        cluster.shutdown()

    return epoch


def dali_epochs(spec: Spec) -> Callable[[int], Iterator[Batch]]:
    """Epochs of a pipeline of DALI, whose source is a server."""
    import numpy as np
    from bowstring.dali import external_source
    from nvidia.dali import fn, pipeline_def

    source = external_source(
        spec["place"],
        spec["dataset"],
        columns=["image", "position"],
        shuffle=7,
        global_batch_size=spec["batch"],
    )

    @pipeline_def(batch_size=spec["batch"], num_threads=1, device_id=None)  # type: ignore[untyped-decorator]
    def photographs() -> object:
        images, positions = fn.external_source(source, num_outputs=2, batch=True)
        return fn.resize(fn.decoders.image(images), size=(224, 224)), positions

    pipeline = photographs()
    pipeline.build()

    def epoch(_: int) -> Iterator[Batch]:
        while True:
            try:
                images, positions = pipeline.run()
            except StopIteration:
                pipeline.reset()
                return
            size = sum(int(np.prod(shape)) for shape in images.shape())
            yield [int(np.asarray(positions[k])) for k in range(len(positions))], size

    return epoch


SIDES = {
    "objects": torch_epochs,
    "files": torch_epochs,
    "deli": deli_epochs,
    "mosaicml": mosaicml_epochs,
    "cassandra": cassandra_epochs,
    "dali": dali_epochs,
}


def main() -> None:
    spec = json.loads(sys.argv[1])
    epochs = SIDES[spec["side"]](spec)
    print("ready", flush=True)
    sys.stdin.readline()
    marks: list[tuple[float, int, int, float]] = []
    begin = asked = time.perf_counter()
    for number in range(spec["epochs"]):
        seen: set[int] = set()
        for numbers, size in epochs(number):
            now = time.perf_counter()
            marks.append((now - begin, len(numbers), size, now - asked))
            if seen & set(numbers) or len(set(numbers)) != len(numbers):
                raise RuntimeError(f"samples came twice in epoch {number}")
            seen |= set(numbers)
            if len(marks) == spec["batches"]:
                break
            time.sleep(spec["compute"])
            asked = time.perf_counter()
        if len(marks) == spec["batches"]:
            break
    print(json.dumps(marks), flush=True)
    os._exit(0)  # workers, and threads of a prefetch service, may still read


if __name__ == "__main__":
    main()
