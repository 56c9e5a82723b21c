"""Functions that the package's modules share to talk to a server."""

from __future__ import annotations

import ctypes
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bowstring.errors import ServerError

Positions = npt.NDArray[np.int64]


def keep_forever(thing: object) -> None:
    """Keep an object that must not be destroyed, not even when the process ends.

    An object that gRPC made before a fork waits, when it is destroyed, for threads that only the parent has.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def decoded(message: bytes) -> dict[str, Any]:
    """The JSON object in a server's message."""
    found = json.loads(message)
    if not isinstance(found, dict):
        raise ServerError(f"the server sent {found!r} where an object belongs")
    return found


def progress_bar(progress: bool, title: str, total: int | None, unit: str) -> Any:
    """A progress bar of tqdm, which shows nothing without `progress`."""
    if not progress:
        from tqdm.std import tqdm as plain  # the notebook's tqdm warns without widgets

        return plain(disable=True)
    from tqdm.auto import tqdm

    return tqdm(desc=title, total=total, unit=unit, unit_scale=True)


def to_numpy(array: pa.Array | pa.ChunkedArray) -> Positions:
    """The values of an integer array without nulls, as NumPy's.

    pyarrow's own `to_numpy` imports pandas at its first call, which takes most of a second.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    if isinstance(array, pa.ChunkedArray):  # an old pyarrow, and no chunk
        return np.empty(0, np.int64)
    array = pc.cast(array, pa.int64())
    if len(array) == 0:
        return np.empty(0, np.int64)
    return np.frombuffer(array.buffers()[1], np.int64, len(array), array.offset * 8)


def to_arrow(values: Positions) -> pa.Array:
    """An integer array of NumPy as an Arrow array, without a copy and without pandas."""
    values = np.ascontiguousarray(values, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def text(given: str | bytes) -> str:
    """Text that pyarrow returns as bytes or text."""
    return given.decode() if isinstance(given, bytes) else given
