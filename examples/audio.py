"""Get waveforms of one rate from recordings: python examples/audio.py FOLDER.

The server decodes, resamples and cuts. FOLDER has a folder for each split and class, as keywords.py makes it.
"""

import sys

import bowstring
from bowstring import operators

words = bowstring.open(sys.argv[1], split="train")
print(len(words), "recordings of", words.classes("label"))
steps = [{"Decode": {}}, {"Resample": {"new_freq": 8000}}, {"Mono": {}}, {"RandomCrop": {"length": 2000}}]
for batch in words.columns(["audio", "label"]).operators(audio=steps).shuffle(7).batches(32):
    print(operators.arrays(batch)["audio"].shape)
