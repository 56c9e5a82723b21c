"""Writes the Parquet files beside it: encodings, codecs and types that Arrow's Go library does not write."""

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

root = Path(__file__).parent
when = [dt.datetime(1, 1, 1), None, dt.datetime(2020, 1, 2, 3, 4, 5, 678901), dt.datetime.max]
table = pa.table(
    {
        "f": pa.array([0.5, None, -1.25, 3]),
        "i": pa.array([1, 2, None, 2**62]),
        "s": ["prefix one", "prefix two", None, ""],
        "fixed": pa.array([b"aaab", b"aaac", None, b"zzzz"], pa.binary(4)),
        "pair": pa.array([[1, 2], None, [3, 4], None], pa.list_(pa.int32(), 2)),
        "took": pa.array([1, None, -5, 2**40], pa.duration("s")),
        "when": pa.array(when, pa.timestamp("us")),
    }
)
encodings = {"f": "BYTE_STREAM_SPLIT", "i": "DELTA_BINARY_PACKED", "s": "DELTA_BYTE_ARRAY", "fixed": "DELTA_BYTE_ARRAY"}
for version in ("1.0", "2.0"):
    pq.write_table(
        table,
        root / f"pages-{version[0]}.parquet",
        compression="lz4",
        column_encoding=encodings,
        use_dictionary=False,
        use_deprecated_int96_timestamps=True,
        data_page_version=version,
    )
