"""A state goes on in another job only where the steps of that hold the same samples, whatever field differs."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bowstring
import pyarrow as pa
import pytest
from bowstring._requests.state import WITHOUT_PART, Place, Share, check, digest, of_worker, portable
from bowstring.operators import expression
from bowstring.torch import BowstringDataset, StateMismatch
from conftest import ROOT
from node import Node

pytestmark = pytest.mark.slow

ROWS = 160
BASE: dict[str, Any] = {
    "dataset": "steps",
    "snapshot": 1,
    "columns": ["position", "n"],
    "shuffle": {"seed": 3, "epoch": 1},
    "batch": 24,
    "remainder": "uneven",
    "bucket_by_length": {"column": "n", "window": 3},
}
# For each field of a request, others. A field that is not here makes a test fail.
OTHERS: dict[str, list[dict[str, Any]]] = {
    "dataset": [{"dataset": "others"}],
    "snapshot": [{"snapshot": 2}],
    "tag": [{"snapshot": None, "tag": "two"}],
    "split": [{"split": "train"}, {"split": "val"}],
    "where": [{"where": "n > 20"}],
    "selection": [{"selection": {"positions": list(range(0, ROWS, 2))}}],
    "mixture": [],  # in the place of a dataset: tests/python/test_mixtures.py
    "columns": [{"columns": ["position"]}, {"columns": ["n", "position", "blob"]}],
    "layout": [{"layout": "binary", "columns": ["position", "blob"]}],
    "shuffle": [{"shuffle": None}, {"shuffle": {"seed": 4, "epoch": 1}}],
    "batch": [{"batch": 25}, {"batch": None}],
    "batch_bytes": [{"batch_bytes": 1}, {"batch_bytes": 1 << 20}],
    "world": [{"world": {"size": 2}}, {"world": {"size": 5}}],
    "order": [{"order": "window:2", "bucket_by_length": None}, {"order": "free", "bucket_by_length": None}],
    "remainder": [{"remainder": "drop"}, {"remainder": "pad"}],
    "operators": [{"operators": {"twice": expression("n * 2")}, "columns": ["position", "twice"]}],
    "place": [],  # of operators
    "on_error": [{"on_error": "null"}, {"on_error": "skip"}],
    "sample": [
        {"sample": {"weights": "n"}, "bucket_by_length": None},
        {"sample": {"balance": "m"}, "bucket_by_length": None},
        {"sample": {"balance": "m", "epoch_size": 48}, "bucket_by_length": None},
    ],
    "pack": [
        {"pack": {"length": 64, "column": "tokens"}, "bucket_by_length": None},
        {"pack": {"length": 65, "column": "tokens"}, "bucket_by_length": None},
    ],
    "slices": [],  # of sequences, by ranks of a mesh: tests/python/test_slices.py
    "digest": [{"digest": True}],
    # For a cluster; the samples of a step are those of the plan.
    "assign": [],
    "owners": [],
    "ranks": [],
    "bucket_by_length": [
        {"bucket_by_length": None},
        {"bucket_by_length": {"column": "m", "window": 3}},
        {"bucket_by_length": {"column": "n", "window": 4}},
        {"bucket_by_length": {"column": "blob", "window": 3}},
    ],
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, binary: Path) -> Iterator[bowstring.Client]:
    root = tmp_path_factory.mktemp("steps")
    rng = random.Random(5)

    def rows(name: str, count: int = ROWS) -> pa.Table:
        return pa.table(
            {
                "key": [f"{name}-{i}" for i in range(count)],
                "n": [rng.randrange(100) for _ in range(count)],
                "m": [rng.randrange(100) for _ in range(count)],
                "split": ["train" if i % 4 else "val" for i in range(count)],
                "blob": pa.array([rng.randbytes(rng.randrange(99)) for _ in range(count)], pa.large_binary()),
            }
        )

    with Node(binary, root / "store", log=root / "log") as node, bowstring.connect(node.url) as client:
        client.ingest("steps", rows("first"), key="key", progress=False)
        client.ingest("steps", rows("second", ROWS + 9), key="key", progress=False, mode="replace")
        client.ingest("others", rows("others"), key="key", progress=False)
        client.tag("steps", "two", snapshot=2)
        yield client


def changed(request: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """A request with other fields; None takes one away."""
    return {name: value for name, value in {**request, **other}.items() if value is not None}


def steps(client: bowstring.Client, request: dict[str, Any]) -> list[list[int]]:
    """The positions of each step, of all ranks together."""
    dataset = client.dataset(request["dataset"], snapshot=request["snapshot"])
    found: list[list[int]] = []
    while not found or found[-1]:
        step: list[int] = []
        for rank in range(request.get("world", {}).get("size", 1)):
            ticket = {**request, "rank": rank, "step": len(found), "stop": len(found) + 1}
            with dataset.resume(ticket) as batches:
                step += [p for b in batches for p in b["position"].to_pylist()]
        found.append(sorted(step))
    return found[:-1]


def test_every_field_has_others() -> None:
    text = (ROOT / "docs" / "requests.md").read_text()
    table = text[text.index("| `dataset` | string | required") :]
    fields = re.findall(r"^\| `([a-z_]+)` \|", table[: table.index("\n\n")], re.MULTILINE)
    assert len(fields) > 15
    assert set(fields) == set(OTHERS)
    assert set(fields) >= WITHOUT_PART


@pytest.mark.parametrize("field", OTHERS)
def test_steps_are_equal_or_digests_differ(client: bowstring.Client, field: str) -> None:
    bases = [BASE, {**BASE, "shuffle": None}, {**BASE, "bucket_by_length": None}, {**BASE, "remainder": "drop"}]
    for base in bases:
        request = changed(base, {})
        for other in OTHERS[field]:
            theirs = changed(request, other)
            named = {**theirs, "batch": theirs.get("batch", 64), "snapshot": theirs.get("snapshot", 2)}
            if digest(request) == digest(named):
                ordered = {**theirs, "order": "strict"}  # the order of other orders is not that of the plan
                assert steps(client, request) == steps(client, ordered), (request, theirs)
            else:
                with pytest.raises(StateMismatch, match="the state is of"):
                    check(portable(request, 1, 2), named)


def test_a_state_goes_on_in_its_own_batches_alone(client: bowstring.Client) -> None:
    plain = client.dataset("steps", snapshot=1).columns(["position"]).shuffle(3)
    lengths = plain.options(bucket_by_length="n")

    def job(dataset: bowstring.Dataset) -> BowstringDataset:
        return BowstringDataset(dataset, global_batch_size=16)

    state = job(lengths).state_at(4)
    job(lengths).load_state_dict(state)
    for other in (
        plain,
        plain.options(bucket_by_length="m"),
        plain.options(bucket_by_length={"column": "n", "window": 2}),
    ):
        with pytest.raises(StateMismatch, match="the state is of"):
            job(other).load_state_dict(state)


def test_within_a_step_ranks_keep_their_part() -> None:
    state = of_worker(BASE, Share(0, 2), Place(0, 3, row=5))
    assert check(state, BASE) == state
    with pytest.raises(StateMismatch, match="assign 'plan'"):
        check(state, {**BASE, "assign": "local"})
    between = of_worker(BASE, Share(0, 2), Place(0, 3))
    assert check(between, {**BASE, "assign": "local"}) == between
