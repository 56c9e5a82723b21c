"""The sizes of a run: those of a machine with a GPU, and little ones that show on a CPU whether the run works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """The sizes of a run."""

    rows: int  # photographs of the dataset, a multiple of the batch
    batch: int
    warm: int  # steps before the clock starts
    seconds: float  # that a rate is measured
    stalled: float  # seconds without a batch after which a feed has failed; 14 workers start in some seconds
    workers: int  # of a loader that decodes
    documents: int  # of the text, at most
    length: int  # tokens of a sequence
    sequences: int  # in a batch
    width: int  # of the language model
    layers: int
    copy: int  # bytes of a copy to the device
    copies: int
    ring: str  # memory that the server shares with a stream


FULL = Sizes(4096, 256, 6, 2.0, 30, 14, 4000, 2048, 16, 1024, 8, 256 << 20, 20, "512MiB")
DRY = Sizes(16, 4, 1, 0.05, 300, 1, 40, 64, 2, 32, 1, 1 << 20, 2, "64MiB")
