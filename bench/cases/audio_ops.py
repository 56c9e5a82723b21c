"""audio_ops: FLAC to samples and to log-mel spectrograms, beside soundfile and torchaudio, by processor time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness import Context, Figure, Result, emit, median

CLIPS, SECONDS = 16, 14.0  # as LibriSpeech's
DECODE: list[dict[str, Any]] = [{"Decode": {}}]
LOG_MEL: list[dict[str, Any]] = [
    *DECODE,
    {"MelSpectrogram": {"n_fft": 400, "hop_length": 160, "n_mels": 80}},
    {"Log": {}},
]
TURN_S = 3.0  # how long a side works at a time


def write(folder: Path) -> list[Path]:
    """Clips of sound like speech, by soundfile's encoder at its default level."""
    import soundfile
    import speechlike

    folder.mkdir(exist_ok=True)
    paths = [folder / f"{k:02}.flac" for k in range(CLIPS)]
    for k, path in enumerate(paths):
        soundfile.write(path, speechlike.clip(k, SECONDS), speechlike.RATE)
    return paths


def build(context: Context) -> Path:
    """The program that runs operators on files."""
    tool = context.folder / "soundops"
    subprocess.run(["go", "build", "-o", tool, "./bench/soundops"], cwd=context.root, check=True)  # noqa: S607
    return tool


def rate(*command: str | Path) -> float:
    """Clips for each second of processor time, as a side prints it."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr}")
    return float(json.loads(done.stdout)["per_cpu_second"])


def run(context: Context) -> Result:
    """Interleave the sides; what counts is the median of ratios within rounds."""
    paths, tool = write(context.folder / "audio"), build(context)
    reader = context.root / "bench" / "sound_reader.py"
    rounds = []
    for _ in range(context.rounds):
        found = {
            "soundfile": rate(sys.executable, reader, "soundfile", str(TURN_S), *paths),
            "flac": rate(tool, "-seconds", str(TURN_S), "-steps", json.dumps(DECODE), *paths),
            "torchaudio": rate(sys.executable, reader, "torchaudio", str(TURN_S), *paths),
            "log_mel": rate(tool, "-seconds", str(TURN_S), "-steps", json.dumps(LOG_MEL), *paths),
        }
        emit(case="audio_ops", **{name: round(value, 1) for name, value in found.items()})
        rounds.append(found)
    return Result(
        "audio_ops",
        [
            Figure("go_flac_vs_soundfile", median(r["flac"] / r["soundfile"] for r in rounds), at_least=1.0),
            Figure("vs_torchaudio", median(r["log_mel"] / r["torchaudio"] for r in rounds), at_least=1.0),
        ],
        {"clips": CLIPS, "seconds": SECONDS},
    )
