"""A training job's reader without the training: python bench/malloc_reader.py URL DATASET SECONDS.

Reads shuffled epochs with the package and keeps the last few batches, as a loader does that reads ahead. Prints MB/s.
"""

from __future__ import annotations

import sys
import time
from collections import deque

import bowstring


def main() -> None:
    url, name, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    dataset = bowstring.connect(url).dataset(name).columns(["id", "label", "image"]).shuffle(7)
    kept: deque[object] = deque(maxlen=4)
    size, start = 0, 0.0
    with dataset.batches(64, epochs=1000) as batches:
        for n, batch in enumerate(batches):
            if n == 8:  # the connection is warm
                size, start = 0, time.perf_counter()
            size += batch.nbytes
            kept.append(batch)
            if start and time.perf_counter() - start > seconds:
                break
    print(size / 1e6 / (time.perf_counter() - start))


if __name__ == "__main__":
    main()
