"""Have the server decode, crop and flip: python examples/augment.py grpc://127.0.0.1:8815 photos.

The random choices follow from the seed, the epoch and the sample, so a resumed job gets the same pixels.
"""

import sys

import bowstring
from bowstring import operators

photos = bowstring.connect(sys.argv[1]).dataset(sys.argv[2], split="train").columns(["image", "label"])
steps = [{"Decode": {}}, {"RandomResizedCrop": {"size": [64, 64]}}, {"RandomHorizontalFlip": {}}]
augmented = photos.operators(image=steps).shuffle(7)
for epoch in range(2):
    images = [operators.arrays(batch)["image"] for batch in augmented.batches(64, epoch=epoch)]
    print("epoch", epoch, sum(map(len, images)), "images of", images[0].shape[1:], "mean", round(images[0].mean(), 2))
again = operators.arrays(next(augmented.batches(64, epoch=1)))["image"]
print("the same pixels again:", bool((again == images[0]).all()))
