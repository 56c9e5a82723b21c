"""Draw batches from two datasets by weights: python examples/mixture.py grpc://127.0.0.1:8815.

The program makes the datasets web and code. After any number of rows each has its share, within a row.
"""

import sys
from collections import Counter

import bowstring
import pyarrow as pa

client = bowstring.connect(sys.argv[1])
for name, count in (("web", 700), ("code", 100)):
    rows = pa.table({"key": [f"{n}" for n in range(count)], "text": [f"{name} {n}" for n in range(count)]})
    client.ingest(name, rows, key="key")

sources = {"web": client.dataset("web"), "code": client.dataset("code")}
mixed = bowstring.mixture(sources, weights={"web": 0.75, "code": 0.25}).shuffle(7)
seen: Counter[str] = Counter()
for step, batch in enumerate(mixed.columns(["source", "text"]).batches(100)):
    seen.update(batch["source"].to_pylist())
    print("step", step, dict(seen))
    if step == 3:
        break
