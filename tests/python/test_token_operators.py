"""Operators on lists of tokens: against NumPy, by each call, on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pytest
import torch
from bowstring import operators
from bowstring.torch import BowstringDataset
from node import Node

ROWS = 300
Row = dict[str, list[int] | None]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    rng = np.random.default_rng(11)

    def ids() -> list[int] | None:
        return None if rng.random() < 0.1 else rng.integers(0, 1 << 16, int(rng.geometric(0.1)) - 1).tolist()

    return [{"prompt": ids(), "answer": ids()} for _ in range(ROWS)]


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory, binary: Any, rows: list[Row]) -> Iterator[bowstring.Dataset]:
    root = tmp_path_factory.mktemp("chat")
    kind = pa.list_(pa.uint16())
    columns = {name: pa.array([row[name] for row in rows], kind) for name in ("prompt", "answer")}
    with Node(binary, root / "store", log=root / "log") as own:
        client = bowstring.connect(own.url)
        table = pa.table({"name": [str(i) for i in range(ROWS)], **columns, "page": [b"blob"] * ROWS})
        client.ingest("chat", table, key="name", progress=False)
        yield client.dataset("chat")


def joined(row: Row, names: list[str]) -> np.ndarray[Any, Any] | None:
    lists = [row[name] for name in names]
    if any(one is None for one in lists):
        return None
    return np.concatenate([np.asarray(one, np.int64) for one in lists])


def filled(tokens: np.ndarray[Any, Any], size: int, value: int, side: str) -> tuple[list[int], list[int]]:
    """Tokens up to a size, and which of them are no padding."""
    tokens = tokens[:size]
    rest = size - len(tokens)
    width = (rest, 0) if side == "left" else (0, rest)
    return np.pad(tokens, width, constant_values=value).tolist(), np.pad(np.ones_like(tokens), width).tolist()


@pytest.mark.parametrize("seed", range(8))
def test_columns_are_what_numpy_makes(chat: bowstring.Dataset, rows: list[Row], seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = ["prompt", "answer"][: int(rng.integers(1, 3))]
    by, size, pieces = int(rng.integers(1, 5)), int(rng.integers(1, 30)), int(rng.integers(1, 4))
    side = ["left", "right"][int(rng.integers(2))]
    pad: operators.Step = {"Pad": {"length": size, "value": 9, "side": side, "long": "cut"}}
    labelled: list[operators.Step] = [
        {"Concat": {}},
        {"ToDtype": {"dtype": "int64"}},
        {"Shift": {"by": by, "fill": -100}},
    ]
    cut: list[operators.Step] = [{"Concat": {}}, {"Split": {"length": size, "pieces": pieces, "long": "cut"}}, pad]
    made = chat.operators(
        inputs=operators.tokens(names, {"Concat": {}}, {"Shift": {"by": -by}}),
        labels=operators.tokens(names, *labelled),
        padded=operators.tokens(names, {"Concat": {}}, pad),
        mask=operators.tokens(names, {"Concat": {}}, pad, {"Mask": {}}),
        pieces=operators.tokens(names, {"Concat": {}}, {"Split": {"length": size}}),
        tensor=operators.tokens(names, *cut),
    ).columns(["position", "inputs", "labels", "padded", "mask", "pieces", "tensor"])
    schema = made.schema
    assert schema.field("padded").type == pa.list_(pa.field("item", pa.uint16(), False), size)
    assert schema.field("labels").type.value_type == pa.int64()
    seen = set()
    for rank in range(3):
        with made.shuffle(seed).batches(16, rank=rank, world_size=3) as batches:
            for batch in batches:
                for got in batch.to_pylist():
                    position = got.pop("position")
                    seen.add(position)
                    tokens = joined(rows[position], names)
                    if tokens is None:
                        assert set(got.values()) == {None}
                        continue
                    assert got["inputs"] == tokens[:-by].tolist()
                    assert got["labels"] == [*tokens[by:].tolist(), *[-100] * min(by, len(tokens))]
                    assert (got["padded"], got["mask"]) == filled(tokens, size, 9, side)
                    parts = [tokens[at : at + size] for at in range(0, len(tokens), size)]
                    assert got["pieces"] == [part.tolist() for part in parts]
                    parts = [*parts, *[tokens[:0]] * pieces][:pieces]
                    assert got["tensor"] == [filled(part, size, 9, side)[0] for part in parts]
    assert seen == set(range(ROWS))


def test_torch_gets_tensors(chat: bowstring.Dataset, rows: list[Row]) -> None:
    pad = {"Pad": {"length": 400, "value": 0}}
    both = chat.where("prompt != nil").operators(
        {
            "ids": operators.tokens("prompt", pad),
            "pieces": operators.tokens("prompt", {"Split": {"length": 100, "pieces": 4}}, pad),
        }
    )
    seen = 0
    wanted = ["position", "ids", "pieces"]
    for batch in BowstringDataset(both.columns(wanted), global_batch_size=32):
        ids, pieces = batch["ids"], batch["pieces"]
        assert ids.dtype == torch.uint16
        assert ids.shape == (len(ids), 400)
        assert pieces.shape == (len(ids), 4, 400)
        for position, row in zip(batch["position"].tolist(), ids.tolist(), strict=True):
            tokens = rows[position]["prompt"]
            assert tokens is not None
            assert row == [*tokens, *[0] * (400 - len(tokens))]
            seen += 1
    assert seen == sum(row["prompt"] is not None for row in rows)


def test_rows_that_do_not_fit_follow_on_error(chat: bowstring.Dataset, rows: list[Row]) -> None:
    made = chat.operators(ids=operators.tokens("prompt", {"Pad": {"length": 10, "value": 0}})).columns(
        ["position", "ids"]
    )
    with pytest.raises(bowstring.InvalidRequest, match=r'operators\.ids\.steps\[0\]\.Pad\.length.*or long "cut"'):
        list(made.batches(64))
    for got in pa.Table.from_batches(made.options(on_error="null").batches(64)).to_pylist():
        tokens = rows[got["position"]]["prompt"]
        assert (got["ids"] is None) == (tokens is None or len(tokens) > 10)
    with pytest.raises(bowstring.InvalidRequest, match=r"did you mean .*Concat"):
        chat.operators(ids=operators.tokens("prompt", {"Concatt": {}}))
