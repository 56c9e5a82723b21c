"""Files of sound as people have them, made by soundfile and by hand, and the samples that soundfile reads."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile

RATE = 8000
# Subtypes of formats that soundfile writes and Bowstring does not read; those of other formats are not read at all.
REFUSED = {
    "IMA_ADPCM": "IMA ADPCM",
    "MS_ADPCM": "Microsoft ADPCM",
    "GSM610": "GSM 6.10",
    "G721_32": "G.721 ADPCM",
    "NMS_ADPCM_16": "NMS ADPCM",
    "NMS_ADPCM_24": "NMS ADPCM",
    "NMS_ADPCM_32": "NMS ADPCM",
    "OPUS": "Ogg Opus",
}
MONO = {"GSM610", "G721_32", "NMS_ADPCM_16", "NMS_ADPCM_24", "NMS_ADPCM_32"}
UNWRITTEN = {"MPEG_LAYER_III"}  # of WAV: soundfile lists it, and does not write it
TRAILER = b"LIST" + struct.pack("<I", 7) + b"INFOabc\0"


@dataclass
class Sound:
    """A file, and what comes of it: samples, the words of a refusal, or those of damage."""

    data: bytes
    samples: npt.NDArray[np.float32] | None = None  # channels first
    decibels: float | None = None  # how far the difference is below the signal; None: there is none
    refused: str = ""
    damaged: str = ""


def soundfile_reads(data: bytes) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)[0].T)


def written() -> dict[str, Sound]:
    """Each subtype of each format that soundfile has, and Bowstring reads."""
    rng = np.random.default_rng(2)
    time = np.arange(4000)
    clip = np.stack([0.6 * np.sin(time / (9 + c)) + rng.normal(0, 0.05, len(time)) for c in range(2)], -1)
    sounds = {}
    for kind in ("WAV", "WAVEX", "RF64", "W64", "FLAC", "OGG"):
        for subtype in soundfile.available_subtypes(kind):
            if subtype in UNWRITTEN:
                continue
            out = io.BytesIO()
            soundfile.write(out, clip[:, 0] if subtype in MONO else clip, RATE, format=kind, subtype=subtype)
            data = out.getvalue()
            ending = {"WAVEX": "wav", "RF64": "wav"}.get(kind, kind.lower())
            sound = Sound(data, refused=REFUSED.get(subtype, ""))
            if not sound.refused:
                sound.samples, sound.decibels = soundfile_reads(data), 120 if subtype == "VORBIS" else None
            sounds[f"{kind}-{subtype}.{ending}".lower()] = sound
    return sounds


def wav(kind: int, bits: int, data: bytes, size: int | None = None, magic: bytes = b"RIFF", ds64: bytes = b"") -> bytes:
    """A WAV of one channel. RF64 and BW64 have their sizes in ds64."""
    wide = (bits + 7) // 8
    fmt = struct.pack("<HHIIHH", kind, 1, RATE, RATE * wide, wide, bits)
    body = b"WAVE" + ds64 + b"fmt " + struct.pack("<I", len(fmt)) + fmt
    body += b"data" + struct.pack("<I", len(data) if size is None else size) + data
    return magic + struct.pack("<I", len(body) if magic == b"RIFF" else 0xFFFFFFFF) + body


def by_hand() -> dict[str, Sound]:
    """Files that other programs write."""
    samples = np.random.default_rng(3).integers(-32768, 32768, 200).astype("<i2")
    raw, codes = samples.tobytes(), bytes(range(256))
    as_floats = (samples.astype(np.float32) / np.float32(32768))[None]
    ds64 = b"ds64" + struct.pack("<IQQQI", 28, 0, len(raw), len(samples), 0)
    long: dict[str, Any] = {"size": 0xFFFFFFFF, "ds64": ds64}
    made = {
        "mu-law.wav": wav(7, 8, codes),
        "a-law.wav": wav(6, 8, codes),
        "12.wav": wav(1, 12, raw),
        "20.wav": wav(1, 20, raw[:300]),
        "chunks.wav": wav(1, 16, raw) + TRAILER,
        "streamed.wav": wav(1, 16, raw, size=0xFFFFFFFF),
        "cut.wav": wav(1, 16, raw, size=100_000),
        "rf64-chunks.wav": wav(1, 16, raw, magic=b"RF64", **long) + TRAILER,
        "empty.wav": wav(1, 16, b""),
    }
    sounds = {name: Sound(data, soundfile_reads(data)) for name, data in made.items()}
    sounds["bw64.wav"] = Sound(
        wav(1, 16, raw, magic=b"BW64", **long) + TRAILER, as_floats
    )  # soundfile does not read it
    sounds["no-size.wav"] = Sound(wav(1, 16, raw, size=0), damaged="says that it is empty, and 400 bytes follow")
    sounds["no-ds64.wav"] = Sound(wav(1, 16, raw, size=0xFFFFFFFF, magic=b"RF64"), damaged="no chunk ds64")
    for kind in ("AIFF", "AU", "CAF"):
        out = io.BytesIO()
        soundfile.write(out, samples, RATE, format=kind, subtype="PCM_16")
        sounds[f"{kind.lower()}.wav"] = Sound(out.getvalue(), refused=kind)
    return sounds


def all_sounds() -> dict[str, Sound]:
    """The whole table."""
    return written() | by_hand()
