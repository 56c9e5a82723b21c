"""Open WebDataset shards: python examples/from_tars.py FOLDER SHARDS.

The program makes two shards in SHARDS from the JPEGs of FOLDER. Files of one name up to the first dot are one sample.
"""

import io
import sys
import tarfile
from pathlib import Path

import bowstring

files = sorted(Path(sys.argv[1]).rglob("*.jpg"))
shards = Path(sys.argv[2])
shards.mkdir(exist_ok=True)
for n in range(2):
    with tarfile.open(shards / f"photos-{n:04}.tar", "w") as tar:
        for file in files[n::2]:
            tar.add(file, f"{file.stem}.jpg")
            caption = f"a photograph of {file.parent.name}".encode()
            member = tarfile.TarInfo(f"{file.stem}.txt")
            member.size = len(caption)
            tar.addfile(member, io.BytesIO(caption))

photos = bowstring.open(shards)
print(len(photos), "samples with", photos.schema.names)
batch = next(photos.shuffle(7).batches(4))
print(batch["txt"].to_pylist())
