"""Open Parquet files as the Hugging Face Hub has them: python examples/from_huggingface.py FOLDER PARQUET.

The program makes such a file in PARQUET from the JPEGs of FOLDER. An image is a struct of its bytes and its path.
"""

import sys
from pathlib import Path

import bowstring
import pyarrow as pa
import pyarrow.parquet as pq

files = sorted(Path(sys.argv[1]).rglob("*.jpg"))
images = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
data = Path(sys.argv[2]) / "data"
data.mkdir(parents=True, exist_ok=True)
rows = pa.table({"image": images, "caption": [f"a photograph of {file.parent.name}" for file in files]})
pq.write_table(rows, data / "train-00000-of-00001.parquet")

photos = bowstring.open(data.parent, split="train")
print(len(photos), "samples with", photos.schema.names)
batch = next(photos.shuffle(7).batches(4))
print(batch["caption"].to_pylist())
