"""audio_ops: FLAC to samples and to log-mel spectrograms, by CPU time.

It is compared with soundfile and torchaudio, and with DALI where `make nightly-dali` has installed it.
"""

from __future__ import annotations

import json
import os
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


def rate(*command: str | Path, packages: Path | None = None) -> float:
    """Clips for each CPU second, as a side prints it."""
    env = dict(os.environ) | ({"PYTHONPATH": str(packages)} if packages else {})
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr}")
    return float(json.loads(done.stdout)["per_cpu_second"])


def run(context: Context) -> Result:
    """Interleave the sides; what counts is the median of ratios within rounds."""
    paths, tool = write(context.folder / "audio"), build(context)
    reader = context.root / "bench" / "sound_reader.py"
    dali = context.root / "build" / "dali"
    rounds = []
    for _ in range(context.rounds):
        found = {
            "soundfile": rate(sys.executable, reader, "soundfile", str(TURN_S), *paths),
            "flac": rate(tool, "-seconds", str(TURN_S), "-steps", json.dumps(DECODE), *paths),
            "torchaudio": rate(sys.executable, reader, "torchaudio", str(TURN_S), *paths),
            "log_mel": rate(tool, "-seconds", str(TURN_S), "-steps", json.dumps(LOG_MEL), *paths),
        }
        if dali.exists():
            found["dali"] = rate(sys.executable, reader, "dali", str(TURN_S), *paths, packages=dali)
        emit(case="audio_ops", **{name: round(value, 1) for name, value in found.items()})
        rounds.append(found)
    optional = [Figure("vs_dali", median(r["log_mel"] / r["dali"] for r in rounds))] if dali.exists() else []
    return Result(
        "audio_ops",
        [
            *optional,
            Figure("go_flac_vs_soundfile", median(r["flac"] / r["soundfile"] for r in rounds)),
            Figure("vs_torchaudio", median(r["log_mel"] / r["torchaudio"] for r in rounds)),
        ],
        {"clips": CLIPS, "seconds": SECONDS},
    )
