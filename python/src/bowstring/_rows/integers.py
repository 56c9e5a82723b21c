"""Integers between NumPy and Arrow, without pandas."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Positions = npt.NDArray[np.int64]


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
