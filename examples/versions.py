"""Change a dataset, and read its old and new snapshots: python examples/versions.py grpc://127.0.0.1:8815 NAME.

A change makes a snapshot. Jobs that read an older snapshot continue with it.
"""

import sys

import bowstring
import pyarrow as pa

client, name = bowstring.connect(sys.argv[1]), sys.argv[2]
client.ingest(
    name, pa.table({"key": ["a", "b", "c"], "label": ["cat", "dog", "cat"], "width": [300, 400, 500]}), key="key"
)
client.tag(name, "first")
client.alter(name, delete_where="width < 400")
client.ingest(name, pa.table({"key": ["b", "c"], "loss": [0.5, 2.5]}), mode="merge", on="key")

before, now = client.dataset(name, snapshot="first"), client.dataset(name)
print("snapshot", before.snapshot, before.columns(["key"]).to_arrow()["key"].to_pylist())
print("snapshot", now.snapshot, now.columns(["key"]).to_arrow()["key"].to_pylist())
print("where:", now.where("loss > 1 and label == 'cat'").num_rows)
print("SQL:", now.where(sql="loss > 1 AND label IN ('cat', 'dog')").num_rows)
