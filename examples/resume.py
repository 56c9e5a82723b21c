"""Stop in the middle of an epoch, and continue elsewhere from one small piece of JSON.

    python examples/resume.py grpc://127.0.0.1:8815 photos

A ticket says what comes after a batch. The server keeps no state, so any server with the dataset continues.
"""

import json
import sys

import bowstring

photos = bowstring.connect(sys.argv[1]).dataset(sys.argv[2], split="train").columns(["position"]).shuffle(7)
first = photos.batches(64)
seen = next(first)["position"].to_pylist() + next(first)["position"].to_pylist()
checkpoint = json.dumps(first.ticket)  # what a job would write beside its model
print(len(checkpoint), "bytes after", len(seen), "samples")

elsewhere = bowstring.connect(sys.argv[1]).dataset(sys.argv[2], split="train")
for batch in elsewhere.resume(json.loads(checkpoint)):
    seen += batch["position"].to_pylist()
print(len(seen), "samples,", len(set(seen)), "of them different,", photos.num_rows, "expected")
