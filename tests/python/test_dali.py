"""Datasets as an external source of DALI: what its pipelines take, epoch after epoch, and DALI's own pipeline of it."""

from __future__ import annotations

import io
import itertools
from importlib.util import find_spec
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pytest
from bowstring.dali import external_source
from bowstring.stream import Batches
from node import Node
from PIL import Image

COLUMNS = ["image", "label", "position"]


def rows(source: bowstring.dali.ExternalSource) -> list[tuple[bytes, int, int]]:
    """An epoch, sample by sample."""
    found: list[tuple[bytes, int, int]] = []
    while True:
        try:
            images, labels, positions = source()
        except StopIteration:
            return found
        assert len(images) == len(labels) == len(positions) <= 16
        found += [(i.tobytes(), int(n), int(p)) for i, n, p in zip(images, labels, positions, strict=True)]


def test_epochs_have_every_sample_once(node: Node) -> None:
    source = external_source(node.url, "photos", columns=COLUMNS, shuffle=7, global_batch_size=16)
    first, second = rows(source), rows(source)
    with bowstring.connect(node.url) as client:
        table = client.dataset("photos").columns(COLUMNS).to_arrow()
    want = sorted(zip(*(table[name].to_pylist() for name in COLUMNS), strict=True), key=lambda row: row[2])
    assert sorted(first, key=lambda row: row[2]) == sorted(second, key=lambda row: row[2]) == want
    assert first != second
    assert source.epoch == 2


def test_a_step_goes_on_after_an_error(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples of a step that came before an error are not lost."""
    with bowstring.connect(node.url) as client:
        photos = client.dataset("photos").columns(COLUMNS).shuffle(7)._with_options(batch_bytes=1)  # a row at a time
        want = rows(external_source(photos, global_batch_size=16))
        source = external_source(photos, global_batch_size=16)
        read, calls, failed = Batches._next, itertools.count(), 0

        def failing(batches: Batches) -> pa.RecordBatch:
            if next(calls) % 5 == 3:
                raise bowstring.DataLoss("this read alone")
            return read(batches)

        monkeypatch.setattr(Batches, "_next", failing)
        found: list[tuple[bytes, int, int]] = []
        while len(found) < len(want):
            try:
                images, labels, positions = source()
            except bowstring.DataLoss:
                failed += 1
                continue
            found += [(i.tobytes(), int(n), int(p)) for i, n, p in zip(images, labels, positions, strict=True)]
        assert found == want
        assert failed > 3


def test_ranks_share_an_epoch(node: Node) -> None:
    shares = [
        rows(
            external_source(
                node.url, "photos", columns=COLUMNS, shuffle=7, global_batch_size=16, rank=rank, world_size=2
            )
        )
        for rank in range(2)
    ]
    alone = rows(external_source(node.url, "photos", columns=COLUMNS, shuffle=7, global_batch_size=16))
    assert sorted(shares[0] + shares[1]) == sorted(alone)
    assert not {p for *_, p in shares[0]} & {p for *_, p in shares[1]}


def test_the_launcher_says_the_rank(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    given = external_source(node.url, "photos", columns=COLUMNS, global_batch_size=16, rank=1, world_size=2)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    found = external_source(node.url, "photos", columns=COLUMNS, global_batch_size=16)
    assert rows(found) == rows(given)


def test_reset_begins_the_next_epoch(node: Node) -> None:
    source, other = (
        external_source(node.url, "photos", columns=COLUMNS, shuffle=7, global_batch_size=16) for _ in range(2)
    )
    source.reset()
    assert source.epoch == 0
    source()
    source.reset()
    assert source.epoch == 1
    other.set_epoch(1)
    assert rows(source) == rows(other)
    source.set_epoch(1)
    other.set_epoch(1)
    assert rows(source) == rows(other)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"global_batch_size": 0}, "global_batch_size: got 0"),
        ({"global_batch_size": 1, "rank": 0, "world_size": 2}, "global_batch_size: got 1"),
        ({"global_batch_size": 1, "rank": 2, "world_size": 2}, "rank: got rank 2 of 2"),
        ({"rank": 0}, "rank, world_size: want both"),
        ({"batch": 16}, "batch: got 16; the argument is global_batch_size now"),
    ],
)
def test_wrong_arguments(node: Node, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        external_source(node.url, "photos", **arguments)


@pytest.mark.skipif(find_spec("nvidia.dali") is None if find_spec("nvidia") else True, reason="DALI is not installed")
def test_a_pipeline_decodes_what_it_is_given(node: Node) -> None:
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=16, num_threads=2, device_id=None)  # type: ignore[untyped-decorator]
    def photos(source: object) -> object:
        images, labels, positions = fn.external_source(source, num_outputs=3, batch=True)
        return fn.decoders.image(images), labels, positions

    pipeline = photos(external_source(node.url, "photos", columns=COLUMNS, shuffle=7, global_batch_size=16))
    pipeline.build()
    seen: set[int] = set()
    with bowstring.connect(node.url) as client:
        dataset = client.dataset("photos").columns(COLUMNS)
        count = dataset.num_rows
        files = dataset.to_arrow()["image"].to_pylist()
    while len(seen) < count:
        images, _, positions = pipeline.run()
        for k in range(len(positions)):
            position = int(np.asarray(positions[k]))
            assert position not in seen
            seen.add(position)
            want = np.asarray(Image.open(io.BytesIO(files[position])).convert("RGB")).astype(int)
            assert np.abs(np.asarray(images[k]).astype(int) - want).mean() < 2
    with pytest.raises(StopIteration):
        pipeline.run()
