"""Operators of sound compute what soundfile and torchaudio do."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import soundfile
import speechlike
import torch

# torchaudio's last release asks for the CUDA that it was built for, also where there is none.
torch.version.cuda = torch.version.cuda and "13.0"
from torchaudio import transforms  # noqa: E402

ROOT = Path(__file__).parent.parent
LIBRARY = Path(soundfile.__file__).parent / "_soundfile_data" / "libsndfile_x86_64.so"
Array = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that runs operators on files."""
    path = tmp_path_factory.mktemp("tool") / "soundops"
    subprocess.run(["go", "build", "-o", path, "./bench/soundops"], cwd=ROOT, check=True)  # noqa: S607
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two seconds in every format."""
    folder = tmp_path_factory.mktemp("sound")
    mono = speechlike.clip(1, 2.0)
    stereo = np.stack([mono, np.roll(mono, 777) // 2], axis=1)
    wide = stereo.astype(np.int32) * 65536 + 1234567
    made: dict[str, tuple[Any, int, dict[str, str]]] = {
        "mono.flac": (mono, 16000, {}),
        "stereo.flac": (stereo, 44100, {}),
        "wide.flac": (wide, 48000, {"subtype": "PCM_24"}),
        "mono.wav": (mono, 16000, {}),
        "byte.wav": (stereo, 8000, {"subtype": "PCM_U8"}),
        "wide.wav": (wide, 48000, {"subtype": "PCM_24"}),
        "whole.wav": (wide, 48000, {"subtype": "PCM_32"}),
        "float.wav": (stereo / 40000, 22050, {"subtype": "FLOAT"}),
        "double.wav": (stereo / 40000, 22050, {"subtype": "DOUBLE"}),
        "mono.mp3": (mono, 16000, {"format": "MP3"}),
        "stereo.mp3": (stereo, 44100, {"format": "MP3"}),
        "mono.ogg": (mono, 16000, {"format": "OGG", "subtype": "VORBIS"}),
        "stereo.ogg": (stereo, 44100, {"format": "OGG", "subtype": "VORBIS"}),
        "stereo.opus": (stereo, 48000, {"format": "OGG", "subtype": "OPUS"}),
    }
    for name, (samples, rate, how) in made.items():
        soundfile.write(folder / name, samples, rate, **how)
    return {name: folder / name for name in made}


def run(tool: Path, file: Path, *steps: dict[str, Any], **environment: str) -> Array:
    """The results of the steps for a file."""
    listed = json.dumps([{"Decode": {}}, *steps])
    done = subprocess.run(
        [tool, "-steps", listed, "-out", file.parent, file],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    line = json.loads(done.stdout)
    assert "error" not in line, line["error"]
    return np.fromfile(file.parent / "0", np.float32).reshape(line["dims"])


def reference(file: Path) -> Array:
    """The samples that soundfile reads, channels first."""
    return np.asarray(soundfile.read(file, dtype="float32", always_2d=True)[0].T)


def decibels(got: Array, want: Array) -> float:
    """How far the difference is below the signal."""
    assert got.shape == want.shape
    noise = np.square(got.astype(float) - want).mean()
    return float(10 * np.log10(np.square(want.astype(float)).mean() / max(noise, 1e-30)))


@pytest.mark.parametrize(
    "name",
    [
        "mono.flac",
        "stereo.flac",
        "wide.flac",
        "mono.wav",
        "byte.wav",
        "wide.wav",
        "whole.wav",
        "float.wav",
        "double.wav",
    ],
)
def test_samples_are_those_of_soundfile(tool: Path, files: dict[str, Path], name: str) -> None:
    assert np.array_equal(run(tool, files[name]), reference(files[name]))


@pytest.mark.parametrize("name", ["mono.mp3", "stereo.mp3"])
def test_mp3_has_the_length_and_the_sound_of_soundfile(tool: Path, files: dict[str, Path], name: str) -> None:
    # The library in Go gives 16 bits: what goes beyond full scale is cut off. libsndfile keeps it.
    assert decibels(run(tool, files[name]), reference(files[name]).clip(-1, 32767 / 32768)) >= 60


@pytest.mark.parametrize("name", ["mono.ogg", "stereo.ogg"])
def test_vorbis_is_that_of_soundfile(tool: Path, files: dict[str, Path], name: str) -> None:
    assert decibels(run(tool, files[name]), reference(files[name])) >= 120


def test_mp3_beyond_full_scale_is_cut_off(tool: Path, files: dict[str, Path]) -> None:
    assert np.abs(reference(files["stereo.mp3"])).max() > 1.1
    assert np.abs(run(tool, files["stereo.mp3"])).max() <= 1


@pytest.mark.skipif(not LIBRARY.exists(), reason="soundfile brings no libsndfile for this machine")
@pytest.mark.parametrize("name", ["mono.mp3", "stereo.mp3", "mono.ogg", "stereo.opus"])
def test_libsndfile_is_used_where_it_is_named(tool: Path, files: dict[str, Path], name: str) -> None:
    got = run(tool, files[name], BOWSTRING_LIBSNDFILE=str(LIBRARY))
    assert decibels(got, reference(files[name])) >= 120


@pytest.mark.parametrize(
    "rate", [8000, 11025, 22050, 44100, 48000, 15990, pytest.param(15999, marks=pytest.mark.nightly)]
)
def test_resample(tool: Path, files: dict[str, Path], rate: int) -> None:
    got = run(tool, files["mono.flac"], {"Resample": {"new_freq": rate}})
    want = transforms.Resample(16000, rate)(torch.from_numpy(reference(files["mono.flac"]))).numpy()
    assert decibels(got, want) >= 120


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"n_fft": 400, "hop_length": 160, "n_mels": 80},
        {"n_fft": 512, "win_length": 400, "hop_length": 160, "n_mels": 80},
        {"n_fft": 1024, "norm": "slaney", "mel_scale": "slaney", "n_mels": 64, "f_min": 20.0, "f_max": 7600.0},
        {"power": 1.0, "center": False},
        {"pad_mode": "constant", "normalized": True, "pad": 77},
        {"n_fft": 441, "hop_length": 100},
    ],
)
def test_log_mel(tool: Path, files: dict[str, Path], params: dict[str, Any]) -> None:
    got = run(tool, files["mono.flac"], {"MelSpectrogram": params}, {"Log": {}})
    wave = torch.from_numpy(reference(files["mono.flac"]))
    want = torch.log(transforms.MelSpectrogram(16000, **params)(wave) + 1e-6).numpy()
    assert np.abs(got - want).max() <= 1e-3
    assert decibels(got, want) >= 100


def test_other_transforms(tool: Path, files: dict[str, Path]) -> None:
    wave = torch.from_numpy(reference(files["mono.flac"]))
    mel = transforms.MelSpectrogram(16000)(wave)
    expected: list[tuple[list[dict[str, Any]], Any]] = [
        ([{"Vol": {"gain": 6, "gain_type": "db"}}], transforms.Vol(6, "db")(wave)),
        ([{"Preemphasis": {}}], transforms.Preemphasis()(wave.clone())),
        ([{"Spectrogram": {}}], transforms.Spectrogram()(wave)),
        ([{"MelSpectrogram": {}}, {"AmplitudeToDB": {"top_db": 80}}], transforms.AmplitudeToDB(top_db=80)(mel)),
    ]
    for steps, want in expected:
        assert decibels(run(tool, files["mono.flac"], *steps), want.numpy()) >= 110, steps
