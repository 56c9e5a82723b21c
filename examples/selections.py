"""Choose samples by a condition and by a table: python examples/selections.py grpc://127.0.0.1:8815 photos.

The server evaluates the condition. The table has metadata alone, so no image is read for it.
"""

import sys

import bowstring
import pyarrow.compute as pc

photos = bowstring.connect(sys.argv[1]).dataset(sys.argv[2], split="train")
wide = photos.where("width >= 100")
table = wide.columns(["position", "label", "width", "height"]).to_arrow()
largest = table.take(pc.sort_indices(pc.multiply(table["width"], table["height"]), sort_keys=[("", "descending")])[:10])
chosen = photos.select(largest)
print(photos.num_rows, "samples;", wide.num_rows, "of them wide;", chosen.num_rows, "selected")
for batch in chosen.columns(["image", "label"]).batches(4):
    print(len(batch), "images; labels", batch["label"].to_pylist())
