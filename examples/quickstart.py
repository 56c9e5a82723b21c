"""Read one epoch in a global shuffle: python examples/quickstart.py grpc://127.0.0.1:8815 photos."""

import sys

import bowstring

photos = bowstring.connect(sys.argv[1]).dataset(sys.argv[2], split="train")
print(photos.num_rows, "samples,", photos.nbytes, "bytes:", photos.schema.names)
batches = photos.shuffle(7).batches(64)  # batches.place has the position, batches.ticket what comes next
for step, batch in enumerate(batches):
    images, labels = batch["image"], batch["label"]
    print("step", step, len(images), "images; first label", labels[0].as_py())
