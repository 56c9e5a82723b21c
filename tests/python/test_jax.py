"""JAX on a server: the program of examples/trainers, on the devices of a mesh."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import bowstring
import pytest
from conftest import ROOT
from node import Node
from ports import free_port
from programs import Found, judged, trained_on
from torch_photos import positions

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed; make nightly-frameworks"),
]

BATCH = 90  # three steps, which four devices cannot share evenly: two and six can
PROGRAM = ROOT / "examples" / "trainers" / "with_jax.py"


def run(node: Node, folder: Path, *, processes: int, devices: int, stop: int = -1) -> str:
    """Run the program in a number of processes, each with a number of devices."""
    port = free_port()
    options = [f"--batch={BATCH}", "--epochs=2", f"--stop={stop}"]
    started = []
    for rank in range(processes):
        env = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_PLATFORMS": "cpu"}
        if processes > 1:
            env |= {"JAX_COORDINATOR": f"127.0.0.1:{port}", "RANK": str(rank), "WORLD_SIZE": str(processes)}
        command: list[str | Path] = [sys.executable, PROGRAM, node.url, "photos", folder, *options]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env))
    said: list[str] = []
    try:
        for process in started:
            out, _ = process.communicate(timeout=600)
            said.append(out)
            assert process.returncode == 0, out[-6000:]
    finally:
        for process in started:
            process.kill()
            process.wait()
    return said[0]


@pytest.mark.parametrize("history", [[(1, 6, 4), (1, 2, -1)]])
def test_devices_of_a_mesh(
    node: Node, photos: bowstring.Dataset, tmp_path: Path, history: list[tuple[int, int, int]]
) -> None:
    """It stops within the second epoch, and goes on with other processes and devices."""
    for processes, devices, stop in history:
        out = run(node, tmp_path, processes=processes, devices=devices, stop=stop)
        assert f"{6 if stop < 0 else stop} steps on {processes * devices} devices of {processes} processes" in out
    found = trained_on(tmp_path)
    assert judged(found, set(photos.positions().tolist())) == Found(0, 0, 0)
    wanted = [sorted(step) for step in positions(photos.shuffle(7), 1, batch=BATCH)]
    assert [sorted(step) for step in found[1]] == wanted
