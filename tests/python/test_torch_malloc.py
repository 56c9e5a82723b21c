"""Workers of a DataLoader let glibc keep the memory of batches, unless an option disables it."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Any

import bowstring
import pytest
from bowstring.torch import BowstringDataset
from torch.utils.data import DataLoader

# glibc maps a block of this size unless it was set otherwise: by itself it raises the threshold to 32 MiB at most.
# One of the heaps that it has beside the first holds 64 MiB.
LARGE = 40 << 20
BLOCKS = 24  # no heap has as much free
MAPPED = 2  # of the flags that are a part of a block's size

pytestmark = [
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library"),
    pytest.mark.filterwarnings("ignore:.*set_vital.*", "ignore:This DataLoader will create"),
]


def is_kept(_: Any) -> bool:
    """Whether a large block comes from memory that glibc keeps: it notes before a block whether it is mapped alone."""
    libc = ctypes.CDLL("libc.so.6")
    libc.malloc.restype = ctypes.c_void_p
    blocks: list[int] = [libc.malloc(ctypes.c_size_t(LARGE)) for _ in range(BLOCKS)]
    flags = ctypes.c_size_t.from_address(blocks[-1] - ctypes.sizeof(ctypes.c_size_t)).value
    for address in blocks:
        libc.free(ctypes.c_void_p(address))
    return not flags & MAPPED


def first(photos: bowstring.Dataset, *, workers: int, **options: Any) -> Any:
    dataset = BowstringDataset(photos.columns(["position"]), global_batch_size=270, collate=is_kept, **options)
    context = "fork" if workers else None
    return next(iter(DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=context)))


@pytest.mark.parametrize("setting", ["nothing", "not to", "by the environment"])
def test_workers(photos: bowstring.Dataset, monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)  # of a test before
    if setting == "by the environment":
        monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    options = {"tune_malloc": False} if setting == "not to" else {}
    assert first(photos, workers=1, **options) is (setting == "nothing")


def test_a_process_of_the_users(photos: bowstring.Dataset) -> None:
    """Reading without workers changes nothing of the process."""
    before = is_kept(None)
    assert first(photos, workers=0) is before
