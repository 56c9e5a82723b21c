"""Files of sound, decoded by soundfile and by the operators."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile

from .kind import Kind, Made

KINDS: list[Kind] = []
RATE = 16_000
DECODE = {"audio": {"kind": "audio", "steps": [{"Decode": {}}]}}


def kind(
    name: str, extension: str, form: str, subtype: str, tolerance: float = 0, edit: Callable[[bytes], bytes] = bytes
) -> None:
    """Three files by soundfile, which reads them back."""

    def make(folder: Path) -> Made:
        there = folder / "sounds"
        there.mkdir()
        rows = []
        for number in range(3):
            times = np.arange(RATE // 4 + number) / RATE
            waves = np.stack([0.5 * np.sin(times * 2 * np.pi * 440 * (c + 1 + number)) for c in range(2)], -1)
            path = there / f"{number}.{extension}"
            soundfile.write(path, waves, RATE, subtype, format=form)
            samples, _ = soundfile.read(path, dtype="float32", always_2d=True)
            path.write_bytes(edit(path.read_bytes()))
            rows.append({"file_name": path.name, "audio": samples.T})
        return Made(there, rows, "file_name", operators=DECODE, tolerance=tolerance)

    KINDS.append(Kind(name, make))


def with_more(data: bytes) -> bytes:
    """A chunk behind the sound, as editors leave it."""
    return data + b"LIST" + struct.pack("<I", 10) + b"INFOabcdef"


def bw64(data: bytes) -> bytes:
    """The same file under the name that ITU-R BS.2088 gives it."""
    assert data[:4] == b"RF64"
    return b"BW64" + data[4:]


for subtype in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"):
    kind(f"wav_{subtype.lower()}", "wav", "WAV", subtype)
kind("wav_extensible", "wav", "WAVEX", "PCM_24")
kind("wav_with_more_chunks", "wav", "WAV", "PCM_16", edit=with_more)
kind("rf64", "wav", "RF64", "PCM_16")
kind("rf64_with_more_chunks", "wav", "RF64", "PCM_16", edit=with_more)
kind("bw64", "wav", "RF64", "PCM_16", edit=bw64)
for subtype in ("PCM_16", "PCM_24"):
    kind(f"flac_{subtype.lower()}", "flac", "FLAC", subtype)
kind("ogg_vorbis", "ogg", "OGG", "VORBIS", tolerance=1e-4)
kind("ogg_opus", "opus", "OGG", "OPUS", tolerance=1e-3)
kind("mp3", "mp3", "MP3", "MPEG_LAYER_III", tolerance=1e-4)
