"""The examples do what they say, each as its own process, as a reader would run it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from bowstring._local import servers
from conftest import ROOT, StartNode
from node import Node

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "examples"
Bowstring = Callable[..., subprocess.CompletedProcess[str]]


def run(script: str, *args: str | Path, **environment: str) -> str:
    return python(EXAMPLES / script, *args, **environment)


def python(*args: str | Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *args],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_train(node: Node) -> None:
    out = run("plain_pyarrow/train.py", node.url, "photos")
    assert len(re.findall(r"epoch \d: 270 samples in .* samples/s", out)) == 2
    assert "every sample came exactly once an epoch" in out
    assert "accuracy rose" in out
    for part in ("store", "window", "encode", "consumer"):
        assert len(re.findall(rf"the server .*\b{part}\b", out)) == 2


def test_train_image(node: Node) -> None:
    out = run("train_image.py", node.url, "photos", "--side", "32", "--epochs", "3", OMP_NUM_THREADS="1")
    assert len(re.findall(r"epoch \d: 270 samples in .* waiting for batches", out)) == 3
    assert "every sample came exactly once an epoch" in out
    assert "accuracy rose" in out


def test_train_speech(bowstring: Bowstring, start: StartNode, tmp_path: Path) -> None:
    run("keywords.py", tmp_path / "words", "--count", "120")
    bowstring("import", tmp_path / "words", "words", "--store", tmp_path / "store", "--format", "audiofolder")
    node = start(store=tmp_path / "store")
    out = run("train_speech.py", node.url, "words", "--epochs", "6", OMP_NUM_THREADS="1")
    assert len(re.findall(r"epoch \d: 96 samples in .* waiting for batches", out)) == 6
    assert "every sample came exactly once an epoch" in out
    assert "accuracy rose" in out


def test_language_model(start: StartNode, tmp_path: Path) -> None:
    """Two ranks train on packed sequences, are ended within the first epoch, and go on."""
    node = start(store=tmp_path / "store")
    program = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

    def ranks(*more: str) -> str:
        script: list[str | Path] = [
            *program,
            EXAMPLES / "language_model.py",
            node.url,
            "text",
            tmp_path / "checkpoints",
        ]
        return python(*script, "--text", "120", *more, OMP_NUM_THREADS="1")

    assert len(re.findall(r"rank \d ends after step 7$", ranks("--stop", "7"), re.MULTILINE)) == 2
    out = ranks()
    assert len(re.findall(r"rank \d goes on after step 7$", out, re.MULTILINE)) == 2
    for epoch in range(2):
        counts = re.findall(rf"epoch {epoch}: (\d+) tokens of (\d+)", out)
        assert len(counts) == 2
        assert all(got == want != "0" for got, want in counts), counts
    assert len(re.findall(r"the loss fell from", out)) == 2


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("quickstart.py", "step 4"),
        ("resume.py", "270 samples, 270 of them different, 270 expected"),
        ("selections.py", "10 selected"),
        ("plain_pyarrow/epoch.py", "step 4"),
        ("plain_pyarrow/continue_elsewhere.py", "300 of them different, 300 expected"),
        ("plain_pyarrow/polars_metadata.py", "motorcycle"),
    ],
)
def test_short_examples(node: Node, script: str, says: str) -> None:
    assert says in run(script, node.url, "photos")


@pytest.fixture
def starts_servers(binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package may start servers, which end with the test."""
    monkeypatch.setenv("BOWSTRING_BINARY", str(binary))
    monkeypatch.setenv("BOWSTRING_CACHE", str(tmp_path / "cache"))
    yield
    for server in servers.known():
        server.stop()


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("from_folder.py", "270 images of the classes ['astronaut'"),
        ("from_tars.py", "300 samples with"),
        ("from_huggingface.py", "300 samples with"),
    ],
)
@pytest.mark.usefixtures("starts_servers")
def test_own_data(folder: Path, tmp_path: Path, script: str, says: str) -> None:
    arguments = [] if script == "from_folder.py" else [tmp_path / "made"]
    out = run(script, folder, *arguments)
    assert says in out
    assert "images; first label" in out or "'a photograph of " in out


@pytest.mark.usefixtures("starts_servers")
def test_audio(tmp_path: Path) -> None:
    run("keywords.py", tmp_path / "words", "--count", "60")
    out = run("audio.py", tmp_path / "words")
    assert "48 recordings of ['ai'" in out
    assert "(32, 1, 2000)" in out


@pytest.mark.parametrize(
    ("script", "arguments", "says"),
    [
        ("write.py", ["written"], "100 samples of snapshot 1 "),
        ("versions.py", ["versions"], "SQL: 1"),
        ("mixture.py", [], "step 3 {'web': 300, 'code': 100}"),
        ("polars_scan.py", ["photos"], "5 images; widths ["),
        ("augment.py", ["photos"], "the same pixels again: True"),
    ],
)
def test_examples_of_one_idea(start: StartNode, script: str, arguments: list[str], says: str) -> None:
    assert says in run(script, start().url, *arguments)


@pytest.mark.nightly  # tests/python/test_ray.py has a Ray of its own
def test_ray_example(node: Node) -> None:
    assert "mean(bytes)" in run("plain_pyarrow/ray_data.py", node.url, "photos")


def test_the_demo_stops_its_server_when_it_is_interrupted(binary: Path, tmp_path: Path) -> None:
    script: list[str | Path] = [
        sys.executable,
        "-u",
        EXAMPLES / "demo.py",
        "--bowstring",
        binary,
        "--dir",
        tmp_path,
        "--count",
        "60",
    ]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True, start_new_session=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "listens on" in line:
                break
        server = [p for p in psutil.Process(demo.pid).children() if "serve" in p.cmdline()]
        assert len(server) == 1
        demo.send_signal(signal.SIGINT)
        demo.stdout.read()
        assert demo.wait(600) != 0
    assert not server[0].is_running()
