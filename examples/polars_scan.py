"""Query a dataset with Polars, and read what the query has found: python examples/polars_scan.py SERVER photos.

Polars sends filters and columns to the server, so no image is read for the query.
"""

import sys

import bowstring
import bowstring.polars
import polars as pl

client = bowstring.connect(sys.argv[1])
frame = bowstring.polars.scan(client, sys.argv[2])
print(frame.group_by("label").agg(pl.len(), pl.col("width").mean().round(1)).sort("label").collect())
widest = frame.select("id", "width").sort("width", descending=True).head(10).collect()
chosen = client.dataset(sys.argv[2]).select(widest)
for batch in chosen.columns(["image", "width"]).batches(5):
    print(len(batch), "images; widths", batch["width"].to_pylist())
