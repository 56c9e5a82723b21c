"""What a Python loader does with clips: soundfile's samples, or torchaudio's log-mel spectrogram of them.

python sound_reader.py soundfile|torchaudio SECONDS FILE…

It prints clips for each second of processor time, of the best pass over all files, as others use the machine, too.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import soundfile


def samples(blob: bytes) -> object:
    """As whole numbers, which is what soundfile is fastest at."""
    return soundfile.read(io.BytesIO(blob), dtype="int16")[0]


def log_mel() -> Callable[[bytes], Any]:
    """The transform of 80 bands, 25 ms every 10 ms."""
    import torch

    torch.version.cuda = torch.version.cuda and "13.0"  # what torchaudio's last release was built for
    import torchaudio.transforms

    torch.set_num_threads(1)
    mel = torchaudio.transforms.MelSpectrogram(16000, n_fft=400, hop_length=160, n_mels=80)
    return lambda blob: torch.log(mel(torch.from_numpy(samples(blob)).to(torch.float32) / 32768) + 1e-6)


def main() -> None:
    """Pass over the files until the time is over."""
    one = samples if sys.argv[1] == "soundfile" else log_mel()
    blobs = [Path(name).read_bytes() for name in sys.argv[3:]]
    one(blobs[0])
    best, end = 0.0, time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        start = time.process_time()
        for blob in blobs:
            one(blob)
        best = max(best, len(blobs) / (time.process_time() - start))
    print(json.dumps({"per_cpu_second": best}))


if __name__ == "__main__":
    main()
