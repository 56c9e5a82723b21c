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

from harness import Context, Figure, Result, emit
from sizes import sized

CLIPS, SECONDS = sized((16, 14.0), smoke=(2, 3.0))  # as LibriSpeech's
DECODE: list[dict[str, Any]] = [{"Decode": {}}]
LOG_MEL: list[dict[str, Any]] = [
    *DECODE,
    {"MelSpectrogram": {"n_fft": 400, "hop_length": 160, "n_mels": 80}},
    {"Log": {}},
]
TURN_S = sized(3.0, smoke=0.1)  # how long a side works at a time


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
    vs_soundfile: list[float] = []
    vs_torchaudio: list[float] = []
    vs_dali: list[float] = []
    for _ in context.repeat(vs_soundfile, vs_torchaudio, *([vs_dali] if dali.exists() else [])):
        found = {
            "soundfile": rate(sys.executable, reader, "soundfile", str(TURN_S), *paths),
            "flac": rate(tool, "-seconds", str(TURN_S), "-steps", json.dumps(DECODE), *paths),
            "torchaudio": rate(sys.executable, reader, "torchaudio", str(TURN_S), *paths),
            "log_mel": rate(tool, "-seconds", str(TURN_S), "-steps", json.dumps(LOG_MEL), *paths),
        }
        if dali.exists():
            found["dali"] = rate(sys.executable, reader, "dali", str(TURN_S), *paths, packages=dali)
            vs_dali.append(found["log_mel"] / found["dali"])
        emit(case="audio_ops", **{name: round(value, 1) for name, value in found.items()})
        vs_soundfile.append(found["flac"] / found["soundfile"])
        vs_torchaudio.append(found["log_mel"] / found["torchaudio"])
    optional = [Figure("vs_dali", vs_dali)] if vs_dali else []
    return Result(
        "audio_ops",
        [
            *optional,
            Figure("go_flac_vs_soundfile", vs_soundfile),
            Figure("vs_torchaudio", vs_torchaudio),
        ],
        {"clips": CLIPS, "seconds": SECONDS},
    )
