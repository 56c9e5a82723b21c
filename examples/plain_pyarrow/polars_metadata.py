"""Look at a dataset's metadata with Polars; not one image is read for it.

python examples/plain_pyarrow/polars_metadata.py grpc://127.0.0.1:8815 photos
"""

import json
import sys

import polars as pl
import pyarrow.flight as fl

client = fl.connect(sys.argv[1])
request = {"dataset": sys.argv[2], "columns": ["split", "label", "width", "height"], "where": "width >= 400"}
info = client.get_flight_info(fl.FlightDescriptor.for_command(json.dumps(request)))
classes = json.loads(info.schema.field("label").metadata[b"bowstring.classes"])
frame = pl.DataFrame(client.do_get(info.endpoints[0].ticket).read_all())
print(
    frame.with_columns(label=pl.col("label").replace_strict(dict(enumerate(classes))))
    .group_by("split", "label")
    .agg(pl.len().alias("images"), pl.col("width").mean().round(1), pl.col("height").mean().round(1))
    .sort("split", "label")
)
