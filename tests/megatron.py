"""Pairs of files as Megatron-LM's IndexedDatasetBuilder writes them, written by its published format alone."""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}


def write(prefix: Path, documents: Sequence[Sequence[Sequence[int]]], dtype: npt.DTypeLike) -> None:
    """Write documents, each of them sequences of token ids, to PREFIX.bin and PREFIX.idx."""
    kind = np.dtype(dtype)
    sequences = [np.array(s, kind) for d in documents for s in d]
    with Path(f"{prefix}.bin").open("wb") as tokens:
        for s in sequences:
            tokens.write(s.tobytes(order="C"))
    sizes = np.array([len(s) for s in sequences], np.int32)
    pointers = np.zeros(len(sequences), np.int64)
    if len(sequences):
        pointers[1:] = np.cumsum(sizes[:-1].astype(np.int64) * kind.itemsize)
    borders = np.cumsum([0, *(len(d) for d in documents)], dtype=np.int64)
    with Path(f"{prefix}.idx").open("wb") as index:
        index.write(b"MMIDIDX\x00\x00")
        index.write(struct.pack("<Q", 1))
        index.write(struct.pack("<B", CODES[kind.name]))
        index.write(struct.pack("<Q", len(sequences)))
        index.write(struct.pack("<Q", len(borders)))
        index.write(sizes.tobytes(order="C"))
        index.write(pointers.tobytes(order="C"))
        index.write(borders.tobytes(order="C"))


if __name__ == "__main__":  # the files that tests of the importer have
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "train_text_document", [[[5, 6, 7, 65535]], [[8]], [[]], [[9, 10], [11, 12, 13]]], np.uint16)
    write(folder / "valid_text_document", [[[1, 2, 3]]], np.uint16)
