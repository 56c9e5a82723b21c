"""Write a dataset from Python, sample by sample: python examples/write.py grpc://127.0.0.1:8815 NAME.

A sample whose key is in the dataset replaces that sample, so the program may run again.
"""

import sys

import bowstring
import numpy as np

random = np.random.default_rng(7)
with bowstring.write(sys.argv[2], into=sys.argv[1]) as out:
    for n in range(100):
        picture = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)  # is stored as a PNG
        out.add(key=f"{n:03}", image=picture, brightness=float(picture.mean()))
made = out.dataset()
print(len(made), "samples of snapshot", made.snapshot, "with", made.schema.names)
print(made.where("brightness > 127").num_rows, "of them are bright")
