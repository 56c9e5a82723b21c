"""The programs of docs/frameworks.md run as they stand there, and train on each photograph once an epoch."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import bowstring
import pytest
from conftest import ROOT, StartNode
from node import Node

pytestmark = pytest.mark.slow

Bowstring = Callable[..., subprocess.CompletedProcess[str]]
PAGE = ROOT / "docs" / "frameworks.md"
TEXT = PAGE.read_text()
EPOCHS = 2
# Behind what the programs have in common: each label that a model has seen is written down.
SEEN = """
import os

def seen(image, label):
    assert tuple(image.shape[1:]) == (32, 32, 3), image.shape
    with open(os.path.join(os.environ["SEEN"], str(os.getpid())), "a") as file:
        file.writelines(f"{int(n)}\\n" for n in label)

def step(image, label):
    seen(image, label)
"""
IN_MODEL = """
def forward(self, image, label, plain=Model.forward):
    seen(image, label)
    return plain(self, image, label)

Model.forward = forward
"""
RANKS = 2
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
heavy = pytest.mark.clients  # of nightly-clients
without_jax = pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")


def blocks(heading: str) -> list[str]:
    """The Python of a section."""
    found = re.search(rf"^{heading}$(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    assert found, heading
    return re.findall(r"```python\n(.*?)```", found[1], re.DOTALL)


def common() -> str:
    """The code that the programs for torch share."""
    (block,) = blocks("# Frameworks")
    return block


def run(node: Node, program: str, folder: Path, *launcher: str) -> Counter[int]:
    """Run a program; how often each label was seen."""
    (folder / "seen").mkdir()
    job = folder / "job.py"
    job.write_text(program.replace("grpc://127.0.0.1:8815", node.url))
    done = subprocess.run(
        [sys.executable, *launcher, job],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=800,
        cwd=folder,
        env={
            **os.environ,
            "SEEN": str(folder / "seen"),
            "OMP_NUM_THREADS": "1",
            "RAY_AUTH_MODE": "disabled",
            "RAY_TRAIN_V2_ENABLED": "0",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={RANKS}",
        },
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return Counter(int(n) for path in (folder / "seen").iterdir() for n in path.read_text().split())


@pytest.fixture
def labels(photos: bowstring.Dataset) -> Counter[int]:
    """How often each label is to be seen."""
    found = Counter(photos.columns(["label"]).to_arrow()["label"].to_pylist())
    return Counter({label: EPOCHS * count for label, count in found.items()})


@pytest.mark.parametrize(
    "heading",
    [
        pytest.param("DDP", marks=pytest.mark.nightly),  # test_trainers.py has torch's in `make test`
        "FSDP and torchtitan",
        "Lightning",
        "Accelerate",
        pytest.param("Trainer of transformers", marks=heavy),
    ],
)
def test_programs_of_ranks(node: Node, labels: Counter[int], tmp_path: Path, heading: str) -> None:
    (block,) = blocks(f"## {heading}")
    # transformers imports torchaudio with its Trainer, and fails where that is for another torch.
    before = "import sys\nsys.modules['torchaudio'] = None\n" if "transformers" in block else ""
    assert run(node, before + common() + SEEN + IN_MODEL + block, tmp_path, *TORCHRUN) == labels


@heavy
def test_ray_train(node: Node, labels: Counter[int], tmp_path: Path) -> None:
    (block,) = blocks("## Ray Train")
    begin = "import ray\nray.init(num_cpus=3, include_dashboard=False)\n"
    assert run(node, begin + common() + SEEN + IN_MODEL + block, tmp_path) == labels


@without_jax
def test_jax(node: Node, labels: Counter[int], tmp_path: Path) -> None:
    (block,) = blocks("## JAX")
    assert run(node, SEEN + block, tmp_path) == labels


@pytest.mark.parametrize("which", [0, 1])
def test_grain(node: Node, labels: Counter[int], tmp_path: Path, which: int) -> None:
    found = blocks("## Grain")
    assert len(found) == 2
    assert run(node, SEEN + found[which], tmp_path) == labels


@pytest.mark.skipif(find_spec("lhotse") is None, reason="lhotse is not installed")
def test_lhotse(start: StartNode, bowstring: Bowstring, tmp_path: Path) -> None:
    """Each recording once, with its own samples."""
    (block,) = blocks("## Lhotse and NeMo")
    keywords: list[str | Path] = [
        sys.executable,
        ROOT / "examples" / "keywords.py",
        tmp_path / "words",
        "--count",
        "120",
    ]
    subprocess.run(keywords, check=True, stdout=subprocess.DEVNULL)
    bowstring("import", tmp_path / "words", "words", "--store", tmp_path / "store", "--format", "audiofolder")
    node = start(store=tmp_path / "store")
    checks = """
    for row, length, one in zip(audio, lengths, batch):
        stored = words.take([int(one.recording.id.rpartition("/")[2])], columns=["audio"])["audio"][0].as_py()
        wave, rate = soundfile.read(io.BytesIO(stored), dtype="float32")
        assert int(length) == len(wave) and abs(row[: len(wave)].numpy() - wave).max() < 1e-4
        seen([None], one.recording.id)
"""
    # Lhotse prefers torchaudio, which may be for another torch.
    begin = """
import io, os, sys, soundfile
sys.modules["torchaudio"] = None
os.environ["LHOTSE_AUDIO_BACKEND"] = "LibsndfileBackend"
names = []
def seen(_, name):
    names.append(name)
"""
    end = """
assert len(set(names)) == len(names) == words.num_rows, (len(names), words.num_rows)
"""
    assert run(node, begin + block.rstrip() + checks + end, tmp_path) == Counter()


def test_every_program_is_run() -> None:
    """No section that this file does not know."""
    sections = re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
    source = Path(__file__).read_text()
    with_code = [name for name in sections if blocks(f"## {name}")]
    assert all(f'"{name}"' in source or f'"## {name}"' in source for name in with_code)
    assert sum(1 for _ in itertools.chain(*(blocks(f"## {name}") for name in sections))) == 10
