"""A batch may be changed in place, wherever its bytes are: no process ends by it, and nothing else changes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import bowstring
import numpy as np
import pytest
from bowstring import operators
from bowstring._transport import shm
from bowstring.torch import BowstringDataset, BowstringMapDataset
from bowstring.torch._columns import batch_of
from local_photos import digests, photos
from node import Node

CROPS = [{"Decode": {}}, {"CenterCrop": {"size": [96, 96]}}]


@pytest.fixture(scope="module")
def shared(imported: Path, binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("written")
    shutil.copytree(imported, folder / "store")
    options = "--local", str(folder / "socket"), "--local-ring=16MiB"
    with Node(binary, folder / "store", *options, log=folder / "server.log") as node:
        yield node


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The result for each slot that came: whether pages of it were copied."""
    found = []
    copied = shm._Pages.copied

    def looked(self: Any, offset: int, length: int) -> bool:
        found.append(copied(self, offset, length))
        return found[-1]

    monkeypatch.setattr(shm._Pages, "copied", looked)
    return found


def test_what_comes_after_a_change_in_place_is_what_was_sent(shared: Node, copied: list[bool]) -> None:
    dataset = photos(bowstring.connect(shared.url))
    with dataset.options(order="strict").batches(16, epochs=6) as batches:
        seen: dict[int, str] = {}
        came = 0
        kept: list[tuple[Any, dict[int, str]]] = []
        for batch in batches:
            assert batches.place is not None
            assert batches.place["transport"] == "shared"
            came += batch.nbytes
            now = digests(batch)
            assert all(seen.setdefault(position, digest) == digest for position, digest in now.items())
            tensors = batch_of(batch)
            tensors["image"].data.bitwise_not_()
            kept = [*kept[-2:], (batch, digests(batch))]
            assert not set(kept[-1][1].values()) & set(now.values())
            # Bytes that the program has changed and still holds stay as it has changed them.
            assert all(digests(one) == changed for one, changed in kept)
            del batch, tensors
    assert len(seen) == 300
    assert came > 3 * 16 << 20  # bytes: the ring went round
    assert any(copied)


def test_nothing_is_dropped_where_nothing_was_changed(shared: Node, copied: list[bool]) -> None:
    with photos(bowstring.connect(shared.url)).batches(16, epochs=3) as batches:
        for batch in batches:
            batch_of(batch)["image"].data.sum()
    assert copied
    assert not any(copied)


def test_a_kernel_that_says_nothing_of_pages(shared: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm._Pages, "copied", lambda *_: True)
    test_what_comes_after_a_change_in_place_is_what_was_sent(shared, [True])


@pytest.mark.parametrize("layout", ["binary", "huggingface"])
def test_each_column_of_numbers_and_bytes_can_be_changed(
    shared: Node, layout: Literal["binary", "huggingface"]
) -> None:
    dataset = bowstring.connect(shared.url).dataset("photos").options(layout=layout).shuffle(2)
    rows = list(dataset.batches(16, epochs=2))
    again = list(dataset.batches(16, epochs=2))
    for batch in rows:
        for column in batch_of(batch).values():
            for tensor in column.values() if isinstance(column, dict) else [column]:
                _zero(tensor)
    for batch, other in zip(again, dataset.batches(16, epochs=2), strict=True):
        assert batch.equals(other)


def _zero(column: Any) -> None:
    data = getattr(column, "data", column)
    if hasattr(data, "zero_"):
        data.zero_()


def test_arrays_are_read_only_or_copies(shared: Node) -> None:
    dataset = bowstring.connect(shared.url).dataset("photos").operators(image=CROPS)
    with dataset.batches(64) as batches:
        batch = next(batches)
    images = operators.arrays(batch)["image"]
    with pytest.raises(ValueError, match="read-only"):
        images[:] = 0
    copy = operators.arrays(batch, writable=True)["image"]
    assert np.array_equal(images, copy)
    copy[:] = 0
    assert images.any()


def test_arrays_of_several_shapes_are_read_only_or_copies(shared: Node) -> None:
    with bowstring.connect(shared.url).dataset("photos").operators(image=[{"Decode": {}}]).batches(8) as batches:
        batch = next(batches)
    images, copies = (operators.arrays(batch, writable=writable)["image"] for writable in (False, True))
    for image, copy in zip(images, copies, strict=True):
        with pytest.raises(ValueError, match="read-only"):
            image[:] = 0
        assert np.array_equal(image, copy)
        copy[:] = 0
        assert image.any()


def test_datasets_of_torch_can_be_changed(shared: Node) -> None:
    source = bowstring.connect(shared.url).dataset("photos").operators(image=CROPS).shuffle(1)
    for output in ("batches", "dlpack"):
        for batch in BowstringDataset(source, global_batch_size=32, output=output):
            for column in batch.values():
                _zero(column)
    for sample in BowstringDataset(source, global_batch_size=32, output="samples"):
        sample["image"].zero_()
    rows = BowstringMapDataset(source)
    rows[[0, 5]]["image"].zero_()
    assert rows[0]["image"].any()


_WRITES = """
import ctypes, sys, warnings
import bowstring, numpy as np, torch
warnings.simplefilter("ignore")
batch = next(b := bowstring.connect(sys.argv[1]).dataset("photos").batches(16))
assert b.place["transport"] == "shared"
data = batch["image"].buffers()[2]
torch.frombuffer(memoryview(data), dtype=torch.uint8).zero_()
torch.from_numpy(np.frombuffer(data, np.uint8)).zero_()
torch.from_dlpack(batch["label"]).zero_()
ctypes.memset(data.address, 1, data.size)
print("whole")
"""


def test_no_write_ends_the_process(shared: Node) -> None:
    done = subprocess.run([sys.executable, "-c", _WRITES, shared.url], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr


_LOCKED = """
import ctypes, sys
import bowstring
sys.path[:0] = [sys.argv[2]]
from local_photos import digests, photos
if ctypes.CDLL(None).mlockall(3):  # what there is, and what comes
    print("refused")
    sys.exit()
seen = {}
with photos(bowstring.connect(sys.argv[1])).batches(16, epochs=3) as batches:
    for batch in batches:
        assert batches.place["transport"] == "shared"
        for position, digest in digests(batch).items():
            assert seen.setdefault(position, digest) == digest
print(len(seen))
"""


def test_a_process_that_has_locked_its_memory_reads_what_was_sent(shared: Node) -> None:
    tests = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", _LOCKED, shared.url, tests], capture_output=True, text=True, timeout=600
    )
    if done.stdout == "refused\n":
        pytest.skip("this process may not lock memory")
    assert (done.returncode, done.stdout) == (0, "300\n"), done.stderr
