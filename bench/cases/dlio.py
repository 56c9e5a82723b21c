"""dlio: accelerator utilisation of MLPerf Storage's workloads by Bowstring's loader, beside DLIO's own readers.

DLIO generates the files. Its readers read them as local files, and from a bucket over two links; Bowstring reads the
same bucket over the same links, attached. The server has no spill, so each run reads all bytes from the bucket. Sizes
are smaller than the benchmark's, and the sleeps are its own: no result of MLPerf Storage.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bucket import KEY, linked, served
from harness import Context, Figure, Need, Result, emit, median, needs
from server import Server
from sizes import sized

ROOT = Path(__file__).parents[2]
INSTALLED = ROOT / "build/dlio"
BUCKET = "dlio"
LINKS: dict[str, float | None] = {"0ms": None, "20ms": 20.0}  # round trips in milliseconds
SHORT = 0.9  # an AU below it is not enough, by the rules for unet3d and resnet50
LOADER = {"data_loader_classname": "bowstring.dlio.BowstringDataLoader", "data_loader_sampler": "index"}

DLIO = Need("DLIO", lambda: "" if (INSTALLED / ".installed").exists() else "make build/dlio/.installed installs it")


@dataclass(frozen=True)
class Workload:
    """A workload of DLIO, and what is smaller here than in its file."""

    name: str
    config: str
    format: str
    dataset: dict[str, Any]
    reader: dict[str, Any]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that all sides have."""
        return {
            **{f"dataset.{name}": value for name, value in self.dataset.items()},
            **{f"reader.{name}": value for name, value in self.reader.items()},
            "workflow.checkpoint": False,
            "train.epochs": 1,
        }

    def s3(self, url: str, data: Path) -> tuple[dict[str, Any], dict[str, str]]:
        """Settings and environment of DLIO's reader of a bucket."""
        if self.format == "npz":
            return {
                "reader.reader_classname": "dlio_s3.NPZReaderS3",
                "dataset.data_folder": data / self.name,
            }, {"DLIO_S3": url}
        return {
            "storage.storage_type": "s3",
            "storage.storage_root": BUCKET,
            "dataset.data_folder": self.name,
        }, {"S3_ENDPOINT": url}


WORKLOADS = (
    # A 32nd of the bytes of a sample.
    Workload(
        "unet3d",
        "unet3d_h100",
        "npz",
        {
            "num_files_train": sized(168, smoke=14),
            "record_length": 4_581_269,
            "record_length_stdev": 2_135_681,
            "record_length_resize": 65_536,
        },
        {},
    ),
    # The samples have their size; a step has 128 of 400.
    Workload(
        "resnet50",
        "resnet50_h100",
        "tfrecord",
        {"num_files_train": 8, "num_samples_per_file": sized(480, smoke=64)},
        {"batch_size": 128},
    ),
    # A 16th of the bytes of a sample.
    Workload(
        "cosmoflow",
        "cosmoflow_h100",
        "tfrecord",
        {"num_files_train": sized(1500, smoke=50), "record_length": 176_780, "record_length_stdev": 4_457},
        {},
    ),
)


class Runs:
    """A process that runs workloads of DLIO."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        programs = folder / "programs"  # DLIO makes an index for DALI of each TFRecord file, which nothing here reads
        programs.mkdir()
        (programs / "tfrecord2idx").symlink_to("/bin/true")
        peers = ROOT / "bench/peers"
        self._process = subprocess.Popen(
            [sys.executable, peers / "dlio_run.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": f"{INSTALLED}:{peers}",
                "LD_LIBRARY_PATH": f"{INSTALLED}/lib",
                "PATH": f"{programs}:{os.environ['PATH']}",
                "CUDA_VISIBLE_DEVICES": "",
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": KEY,
                "AWS_SECRET_ACCESS_KEY": 2 * KEY,
            },
        )
        if self._line() != "ready":
            raise RuntimeError("DLIO was not imported")

    def _line(self) -> str:
        return self._process.stdout.readline().strip() if self._process.stdout else ""

    def run(self, workload: Workload, settings: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
        """Run a workload; its summary, or nothing if it only generates data."""
        out = self._folder / "out"
        summary = out / "summary.json"
        summary.unlink(missing_ok=True)
        given = {**workload.settings, "output.folder": out, **settings}
        arguments = [f"workload={workload.config}", *(f"++workload.{name}={value}" for name, value in given.items())]
        log = self._folder / "log"
        if self._process.stdin:
            asked = {"argv": [*arguments, f"hydra.run.dir={out}"], "env": environment, "log": str(log)}
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
        if (status := self._line()) != "0":
            raise RuntimeError(f"{workload.name} ended with {status}: {log.read_text(errors='replace')[-3000:]}")
        return dict(json.loads(summary.read_text())) if summary.exists() else {}

    def close(self) -> None:
        """End the process."""
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()


class Bench:
    """One run of the case: the data, the ways to the bucket, and the store that has what is attached."""

    def __init__(self, context: Context, runs: Runs, data: Path, urls: dict[str, str]) -> None:
        self.context, self.runs, self.data, self.urls = context, runs, data, urls
        self.store = context.folder / "dlio-store"
        for link, url in urls.items():
            for workload in WORKLOADS:
                place = "files.csv" if workload.format == "npz" else "train"
                source = f"s3://{BUCKET}/{workload.name}/{place}?endpoint={url}"
                context.bowstring(
                    "attach", "--verify", "none", "--store", self.store, source, f"{workload.name}-{link}"
                )

    def read(self, workload: Workload, side: str, link: str) -> float:
        """The AU of a run, from 0 to 1."""
        settings: dict[str, Any] = {"dataset.data_folder": self.data / workload.name}
        environment: dict[str, str] = {}
        with contextlib.ExitStack() as stack:
            if side == "s3":
                settings, environment = workload.s3(self.urls[link], self.data)
            elif side == "bowstring":
                server = stack.enter_context(Server(self.context.binary, self.store))
                settings |= {f"reader.{name}": value for name, value in LOADER.items()}
                environment = {"BOWSTRING_DLIO": f"{server.url}/{workload.name}-{link}"}
            metric = self.runs.run(workload, settings, environment)["metric"]
        au = float(metric["train_au_mean_percentage"]) / 100
        rate = float(metric["train_throughput_mean_samples_per_second"])
        emit(case="dlio", workload=workload.name, side=side, link=link, au=round(au, 4), samples_per_s=round(rate, 1))
        return au


def generate(runs: Runs, data: Path) -> None:
    """Have DLIO write the files of all workloads."""
    for workload in WORKLOADS:
        folder = data / workload.name
        runs.run(workload, {"dataset.data_folder": folder, "workflow.generate_data": True, "workflow.train": False}, {})
        if workload.format == "npz":
            names = sorted(f.relative_to(folder) for f in folder.rglob("*.npz"))
            (folder / "files.csv").write_text("file_name\n" + "".join(f"{name}\n" for name in names))


@contextlib.contextmanager
def started(context: Context) -> Iterator[Bench]:
    """All that runs."""
    root = context.folder / "dlio"
    data = root / "objects" / BUCKET
    data.mkdir(parents=True)
    runs = Runs(root)
    try:
        generate(runs, data)
        with served(context.binary, data.parent) as url, linked(context.binary, url, LINKS) as urls:
            yield Bench(context, runs, data, urls)
    finally:
        runs.close()


@needs(DLIO)
def run(context: Context) -> Result:
    """Interleave the sides of all workloads."""
    cells = [(w.name, side, link) for w in WORKLOADS for link in LINKS for side in ("s3", "bowstring")]
    cells += [(w.name, "files", "local") for w in WORKLOADS]
    found: dict[tuple[str, str, str], list[float]] = {cell: [] for cell in cells}
    by_name = {w.name: w for w in WORKLOADS}
    with started(context) as bench:
        for round_ in context.repeat():
            random.Random(round_).shuffle(cells)
            for name, side, link in cells:
                found[name, side, link].append(bench.read(by_name[name], side, link))
    return result(found)


def result(found: dict[tuple[str, str, str], list[float]]) -> Result:
    """The figures: of the worst workload and link."""
    ours = {(name, link): found[name, "bowstring", link] for name, side, link in found if side == "bowstring"}
    to_files = {
        (name, link): [a / b for a, b in zip(rounds, found[name, "files", "local"], strict=True)]
        for (name, link), rounds in ours.items()
    }
    short = [cell for cell in ours if median(found[cell[0], "s3", cell[1]]) < SHORT]
    return Result(
        "dlio",
        [
            Figure("au", min((ours[cell] for cell in short or ours), key=median)),
            Figure("vs_files", min(to_files.values(), key=median)),
        ],
        {
            "s3_short": [" ".join(cell) for cell in sorted(short)],
            "utilisation": {
                w.name: {
                    f"{side} {link}": round(median(rounds), 3)
                    for (name, side, link), rounds in sorted(found.items())
                    if name == w.name
                }
                for w in WORKLOADS
            },
        },
    )
