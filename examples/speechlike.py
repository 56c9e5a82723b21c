"""Sound that is made as speech is, the same everywhere: pulses or noise, through the resonances of a mouth.

It is as compressible as recordings of speech, has no licence and needs no download.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

RATE = 16000  # samples a second
RESONANCES = ((250, 800, 80), (900, 2200, 120), (2300, 3200, 180))  # lowest and highest frequency, and width


def clip(seed: int, seconds: float) -> npt.NDArray[np.int16]:
    """Syllables and pauses, with the noise of a quiet room."""
    rng = np.random.default_rng(seed)
    count = round(seconds * RATE)
    out = np.zeros(count)
    at = 0
    while at < count:
        length = min(int(RATE * rng.uniform(0.06, 0.25)), count - at)
        kind = rng.random()
        if kind > 0.15:
            out[at : at + length] = syllable(rng, length, voiced=kind > 0.35)
        at += length
    noisy = out * 0.25 + rng.normal(0, 0.002, count)
    return np.round(noisy * 32767).clip(-32768, 32767).astype(np.int16)


def syllable(rng: np.random.Generator, length: int, *, voiced: bool) -> npt.NDArray[np.float64]:
    """One sound, of a level and a pitch of its own."""
    time = np.arange(length)
    source = rng.normal(0, 0.02 if voiced else 0.3, length)
    if voiced:
        phase = np.cumsum(rng.uniform(90, 220) / RATE * (1 + 0.02 * np.sin(time / 800)))
        source += 5.0 * (np.diff(np.floor(phase), prepend=0) > 0)
    mouth = [(rng.uniform(low, high), width) for low, high, width in RESONANCES]
    sound = resonate(source, mouth) * np.hanning(length)
    level = rng.uniform(0.1, 1)
    return np.asarray(sound / (np.abs(sound).max() + 1e-9) * level)


def resonate(source: npt.NDArray[np.float64], mouth: Sequence[tuple[float, float]]) -> npt.NDArray[np.float64]:
    """A source through resonances, each of a frequency and a width in hertz."""
    length = len(source)
    spectrum = np.fft.rfft(source, 2 * length)
    turn = np.exp(-1j * np.linspace(0, np.pi, length + 1))
    for frequency, width in mouth:
        radius, angle = np.exp(-np.pi * width / RATE), 2 * np.pi * frequency / RATE
        spectrum *= (1 - radius) / (1 - 2 * radius * np.cos(angle) * turn + radius**2 * turn**2)
    return np.asarray(np.fft.irfft(spectrum)[:length])
