"""Open a folder of images, one folder for each split and class: python examples/from_folder.py FOLDER.

The package starts a server on this machine. The images stay where they are.
"""

import sys

import bowstring

photos = bowstring.open(sys.argv[1], split="train")
print(len(photos), "images of the classes", photos.classes("label"))
for batch in photos.columns(["image", "label"]).shuffle(7).batches(64):
    print(len(batch), "images; first label", batch["label"][0].as_py())
