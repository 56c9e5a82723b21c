"""own_data: files of every kind that people have, read by their libraries and through Bowstring.

pandas, Polars, DuckDB, webdataset, mosaicml-streaming, datasets, soundfile, Pillow and tifffile make the files when the
case runs. Each kind is imported, read back by the client, and compared value by value with what the library reads.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import soundfile
from bowstring.operators import arrays
from harness import Context, Figure, Result, emit
from own import KINDS, UnavailableError
from own.kind import Made, Row, differences
from server import Server
from sizes import sized


def rows_of(client: bowstring.Client, name: str, made: Made) -> list[Row]:
    """The rows of a dataset, in the order of their positions."""
    dataset = client.dataset(name)
    if made.operators:
        dataset = dataset.operators(dict(made.operators))
    found: list[Row] = []
    for batch in dataset.batches(64):
        tensors: dict[str, Any] = arrays(batch) if made.operators else {}
        metadata = batch.select([n for n in batch.schema.names if n not in made.operators])
        for at, row in enumerate(pa.Table.from_batches([metadata]).to_pylist(maps_as_pydicts="strict")):
            found.append(row | {n: np.asarray(tensors[n][at]) for n in made.operators})
    return found


def run(context: Context) -> Result:
    """Make, import, read back, compare."""
    cli = (context.root / "docs/cli.md").read_text()
    store = context.folder / "own-store"
    imported: list[tuple[str, Made]] = []
    refused, unlisted, left_out = [], [], []
    kinds = KINDS[:: sized(1, smoke=7)]
    for number, kind in enumerate(kinds):
        folder = context.folder / "own" / f"{number:03d}"
        folder.mkdir(parents=True)
        try:
            made = kind.make(folder)
        except UnavailableError as why:
            left_out.append(kind.name)
            emit(case="own_data", kind=kind.name, left_out=str(why))
            continue
        done = subprocess.run(
            [context.binary, "import", "--store", store, *made.args, made.source, kind.name.replace(" ", "_")],
            check=False,
            capture_output=True,
            text=True,
            cwd=folder,
        )
        if done.returncode == 0:
            imported.append((kind.name, made))
            continue
        refused.append(kind.name)
        if not kind.refused or kind.refused not in cli:
            unlisted.append(kind.name)
        emit(case="own_data", kind=kind.name, refused=done.stderr.strip()[-600:], listed=kind.name not in unlisted)
    differing = []
    library = Path(soundfile.__file__).parent / "_soundfile_data" / soundfile._packaged_libname
    os.environ.setdefault("BOWSTRING_LIBSNDFILE", str(library))  # what soundfile reads with decodes Opus
    with Server(context.binary, store) as server, bowstring.connect(server.url) as client:
        for name, made in imported:
            try:
                found = differences(made, rows_of(client, name, made))
            except (bowstring.errors.BowstringError, pa.ArrowException) as error:
                found = [f"{type(error).__name__}: {error}"]
            if found:
                differing.append(name)
                emit(case="own_data", kind=name, differences=len(found), first=found[:4])
    return Result(
        "own_data",
        [
            Figure("kinds", len(kinds) - len(left_out)),
            Figure("differing", len(differing)),
            Figure("refused_unlisted", len(unlisted)),
        ],
        {"refused": refused, "differing_kinds": differing, "unlisted": unlisted, "left_out": left_out},
    )
