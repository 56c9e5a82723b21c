"""A client that takes samples which operators make, wherever its stream has them made.

    python bench/place_reader.py SPEC

SPEC is JSON: `url`, `column`, `operators`, `place`, `batch` and `seconds`. It prints one JSON object: the rows that it
got after its first batch, the seconds it took, and how many batches came of each place.
"""

from __future__ import annotations

import collections
import json
import sys
import time

import bowstring


def main() -> None:
    spec = json.loads(sys.argv[1])
    places: collections.Counter[str] = collections.Counter()
    with bowstring.connect(spec["url"]) as client:
        dataset = client.dataset("bench").columns([spec["column"]]).shuffle(7)
        dataset = dataset.operators({spec["column"]: spec["operators"]}).options(place=spec["place"])
        rows, began = 0, 0.0
        # One stream of many epochs, as a job has it.
        batches = dataset.batches(spec["batch"], epochs=1000)
        for batch in batches:
            now = time.perf_counter()
            places[(batches.place or {}).get("place", "server")] += 1
            if not began:
                began = now
                continue
            rows += batch.num_rows
            if now - began > spec["seconds"]:
                break
        print(json.dumps({"rows": rows, "seconds": now - began, "places": places}))


if __name__ == "__main__":
    main()
