"""The work of a Python loader on clips: soundfile's samples, or a log-mel spectrogram by torchaudio or DALI.

python sound_reader.py soundfile|torchaudio|dali SECONDS FILE…

It prints clips for each CPU second, of the best pass over all files, because others use the machine, too.
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


Pass = Callable[[list[bytes]], object]


def each(one: Callable[[bytes], Any]) -> Pass:
    """A pass that does one clip after the other."""

    def every(blobs: list[bytes]) -> None:
        for blob in blobs:
            one(blob)

    return every


def dali(count: int) -> Pass:
    """DALI's decoder and bands, in one thread, a batch of all clips at a time."""
    import numpy as np
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=count, num_threads=1, device_id=None, prefetch_queue_depth=1)  # type: ignore[untyped-decorator]
    def bands() -> Any:
        files = fn.external_source(name="files", global_batch_size=True, dtype=types.UINT8)
        sound, _ = fn.decoders.audio(files, dtype=types.FLOAT, downmix=True)
        power = fn.spectrogram(sound, nfft=400, window_length=400, window_step=160)
        mel = fn.mel_filter_bank(power, sample_rate=16000, nfilter=80, normalize=False, mel_formula="htk")
        return fn.to_decibels(mel, multiplier=1.0)

    pipeline = bands()
    pipeline.build()

    def all_at_once(blobs: list[bytes]) -> object:
        pipeline.feed_input("files", [np.frombuffer(blob, np.uint8) for blob in blobs])
        return pipeline.run()

    return all_at_once


def main() -> None:
    """Pass over the files until the time is over."""
    blobs = [Path(name).read_bytes() for name in sys.argv[3:]]
    side = sys.argv[1]
    one = dali(len(blobs)) if side == "dali" else each(samples if side == "soundfile" else log_mel())
    one(blobs)
    best, end = 0.0, time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        start = time.process_time()
        one(blobs)
        best = max(best, len(blobs) / (time.process_time() - start))
    print(json.dumps({"per_cpu_second": best}))


if __name__ == "__main__":
    main()
