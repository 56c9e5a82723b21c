"""Spoken keywords for train_speech.py: vowels, one after another, by a voice that is made.

    python examples/keywords.py DIRECTORY [--count 600]

Writes DIRECTORY/{train,val}/WORD/NAME.wav. Words differ in their vowels and in the order of these; pitch,
tempo, level and the noise of the room are each recording's own. The same files come out of every run.
"""

from __future__ import annotations

import argparse
import wave
from pathlib import Path

import numpy as np
import numpy.typing as npt
from speechlike import RATE, resonate

# Resonances of vowels in hertz, from Peterson and Barney's measurements of speakers (1952).
VOWELS = {"a": (730, 1090, 2440), "e": (530, 1840, 2480), "i": (270, 2290, 3010), "o": (570, 840, 2410)}
WORDS = ("ai", "ia", "oe", "eo", "aoi", "ioa")
WIDTHS = (80, 120, 180)
VAL_PART = 5  # every fifth recording of a word is for validation


def recording(word: str, number: int) -> npt.NDArray[np.int16]:
    """A word as one speaker says it, between two pauses."""
    rng = np.random.default_rng([WORDS.index(word), number])
    pitch, tract, tempo = rng.uniform(90, 220), rng.uniform(0.92, 1.1), rng.uniform(0.8, 1.25)
    sounds = [np.zeros(int(RATE * rng.uniform(0.05, 0.2)))]
    for vowel in word:
        length = int(RATE * tempo * rng.uniform(0.14, 0.2))
        phase = np.cumsum(np.full(length, pitch / RATE) * (1 + 0.02 * np.sin(np.arange(length) / 800)))
        source = 5.0 * (np.diff(np.floor(phase), prepend=0) > 0) + rng.normal(0, 0.02, length)
        mouth = [(f * tract, width) for f, width in zip(VOWELS[vowel], WIDTHS, strict=True)]
        sound = resonate(source, mouth) * np.hanning(length)
        sounds.append(sound / (np.abs(sound).max() + 1e-9))
    sounds.append(np.zeros(int(RATE * rng.uniform(0.05, 0.2))))
    said = np.concatenate(sounds) * rng.uniform(0.05, 0.5)
    noisy = said + rng.normal(0, 0.002, len(said))
    return np.round(noisy * 32767).clip(-32768, 32767).astype(np.int16)


def write(root: Path, count: int) -> None:
    """Write count recordings, words in turn."""
    for i in range(count):
        number, word = i // len(WORDS), WORDS[i % len(WORDS)]
        split = "val" if number % VAL_PART == VAL_PART - 1 else "train"
        path = root / split / word / f"{word}-{number:04d}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(recording(word, number).astype("<i2").tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--count", type=int, default=600, help="recordings to write (600)")
    args = parser.parse_args()
    write(args.directory, args.count)
    print(f"{args.count} recordings of {len(WORDS)} words in {args.directory}")


if __name__ == "__main__":
    main()
