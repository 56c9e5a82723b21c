"""audio_same: samples and spectrograms of the operators alone beside those of soundfile and torchaudio."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from harness import Context, Figure, Result, emit
from sizes import sized

from .audio_ops import build

CLIPS, SECONDS = sized((8, 6.0), smoke=(1, 2.0))
MEL: dict[str, Any] = {"n_fft": 400, "hop_length": 160, "n_mels": 80}
RATES = sized((8000, 11025, 22050, 44100, 48000), smoke=(8000, 11025))
Array = npt.NDArray[np.float32]


def write(folder: Path) -> dict[str, list[Path]]:
    """Clips in each format, by what is expected of it."""
    import soundfile
    import speechlike

    folder.mkdir(exist_ok=True)
    made: dict[str, list[Path]] = {"exact": [], "mp3": [], "flac": []}
    for number in range(CLIPS):
        clip = speechlike.clip(number, SECONDS)
        wide = np.stack([clip, np.roll(clip, 777)], axis=1).astype(np.int32) * 65536 + 1234567
        files: list[tuple[str, str, Any, int, dict[str, str]]] = [
            ("flac", "flac", clip, 16000, {}),
            ("exact", "wide.flac", wide, 48000, {"subtype": "PCM_24"}),
            ("exact", "wav", clip, 16000, {}),
            ("exact", "wide.wav", wide, 44100, {"subtype": "PCM_32"}),
            ("exact", "float.wav", clip / 40000, 22050, {"subtype": "FLOAT"}),
            ("mp3", "mp3", clip, 16000, {"format": "MP3"}),
        ]
        for kind, name, samples, rate, how in files:
            path = folder / f"{number}.{name}"
            soundfile.write(path, samples, rate, **how)
            made[kind].append(path)
    made["exact"] += made["flac"]
    return made


def results(tool: Path, files: list[Path], *steps: dict[str, Any]) -> list[Array]:
    """The results of the steps for files."""
    out = files[0].parent / "results"
    out.mkdir(exist_ok=True)
    command: list[str | Path] = [tool, "-steps", json.dumps([{"Decode": {}}, *steps]), "-out", out, *files]
    environment = {name: value for name, value in os.environ.items() if name != "BOWSTRING_LIBSNDFILE"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    errors = [line["error"] for line in lines if "error" in line]
    if errors:
        raise RuntimeError("; ".join(errors))
    return [np.fromfile(out / str(k), np.float32).reshape(line["dims"]) for k, line in enumerate(lines)]


def decibels(got: Array, want: Array) -> float:
    """How far the difference is below the signal."""
    if got.shape != want.shape:
        raise RuntimeError(f"{got.shape} instead of {want.shape}")
    noise = np.square(got.astype(float) - want).mean()
    return float(10 * np.log10(np.square(want.astype(float)).mean() / max(noise, 1e-30)))


def run(context: Context) -> Result:
    """All of it is exact or not; one round says it."""
    import soundfile
    import torch

    torch.version.cuda = torch.version.cuda and "13.0"  # what torchaudio's last release was built for
    from torchaudio import transforms

    def reference(path: Path) -> Array:
        return np.asarray(soundfile.read(path, dtype="float32", always_2d=True)[0].T)

    files, tool = write(context.folder / "audio-same"), build(context)
    differing = total = 0
    for path, got in zip(files["exact"], results(tool, files["exact"]), strict=True):
        want = reference(path)
        differing += int((got != want).sum()) if got.shape == want.shape else want.size
        total += want.size
    # The library in Go clips samples of MP3 beyond full scale.
    loud = [reference(path).clip(-1, 32767 / 32768) for path in files["mp3"]]
    mp3 = [decibels(got, want) for want, got in zip(loud, results(tool, files["mp3"]), strict=True)]
    waves = [torch.from_numpy(reference(path)) for path in files["flac"]]
    resampled = []
    for rate in RATES:
        transform = transforms.Resample(16000, rate)
        made = results(tool, files["flac"], {"Resample": {"new_freq": rate}})
        resampled += [decibels(got, transform(wave).numpy()) for got, wave in zip(made, waves, strict=True)]
    mel, off = [], 0.0
    transform = transforms.MelSpectrogram(16000, **MEL)
    for got, wave in zip(results(tool, files["flac"], {"MelSpectrogram": MEL}, {"Log": {}}), waves, strict=True):
        want = torch.log(transform(wave) + 1e-6).numpy()
        mel.append(decibels(got, want))
        off = max(off, float(np.abs(got - want).max()))
    emit(case="audio_same", mp3_db=min(mp3), resample_db=min(resampled), mel_db=min(mel))
    return Result(
        "audio_same",
        [
            Figure("differing", differing),
            Figure("mp3_db", min(mp3)),
            Figure("resample_db", min(resampled)),
            Figure("mel_db", min(mel)),
            Figure("mel_off", off),
        ],
        {"samples": total},
    )
