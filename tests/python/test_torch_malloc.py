"""Workers of a DataLoader let glibc keep the memory of batches, unless they are told not to."""

from __future__ import annotations

import ctypes
import platform
from typing import Any

import bowstring
import pytest
from bowstring.torch import BowstringDataset
from torch.utils.data import DataLoader

LARGE = 33 << 20  # bytes that glibc maps by themselves, whatever was freed before, if nobody has told it not to

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library"),
    pytest.mark.filterwarnings("ignore:.*set_vital.*", "ignore:This DataLoader will create"),
]


class _Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", *"abcde")]


def is_kept(_: Any) -> bool:
    """Whether a large block comes from memory that glibc keeps."""
    libc = ctypes.CDLL("libc.so.6")
    libc.mallinfo2.restype = _Mallinfo
    libc.malloc.restype = ctypes.c_void_p
    before: int = libc.mallinfo2().hblkhd
    block = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(LARGE)))
    after: int = libc.mallinfo2().hblkhd
    libc.free(block)
    return after == before


def first(photos: bowstring.Dataset, *, workers: int, **options: Any) -> Any:
    dataset = BowstringDataset(photos.columns(["position"]), global_batch_size=270, collate=is_kept, **options)
    context = "fork" if workers else None
    return next(iter(DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=context)))


@pytest.mark.parametrize("told", ["nothing", "not to", "by the environment"])
def test_workers(photos: bowstring.Dataset, monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    if told == "by the environment":
        monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    options = {"tune_malloc": False} if told == "not to" else {}
    assert first(photos, workers=1, **options) is (told == "nothing")


def test_a_process_of_the_users(photos: bowstring.Dataset) -> None:
    """What is read without workers changes nothing of the process."""
    before = is_kept(None)
    assert first(photos, workers=0) is before
