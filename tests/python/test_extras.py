"""Each extra of the package reads a dataset. `BOWSTRING_EXTRAS` names those that are installed, alone or together."""

from __future__ import annotations

import os

import bowstring
import pyarrow as pa
import pytest

pytestmark = pytest.mark.slow
INSTALLED = os.environ.get("BOWSTRING_EXTRAS", "torch,ray,grain,polars,sql,tokens,notebook").split(",")
RANKS = 2


def needs(extra: str) -> pytest.MarkDecorator:
    """No import is skipped if it fails: an extra that is named has to work."""
    return pytest.mark.skipif(extra not in INSTALLED, reason=f"BOWSTRING_EXTRAS does not name {extra}")


@needs("torch")
def test_torch(photos: bowstring.Dataset) -> None:
    from bowstring.torch import BowstringDataset
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader() -> StatefulDataLoader:
        return StatefulDataLoader(BowstringDataset(photos, global_batch_size=32), batch_size=None)

    first, rows, steps = loader(), 0, 0
    for batch in first:
        rows, steps = rows + len(batch["label"]), steps + 1
        if steps == 2:
            state = first.state_dict()
    assert rows == photos.num_rows
    resumed = loader()
    resumed.load_state_dict(state)
    assert sum(1 for _ in resumed) == steps - 2


@needs("ray")
def test_ray(photos: bowstring.Dataset) -> None:
    from bowstring.ray import BowstringDatasource
    from ray.data.expressions import col

    source = BowstringDatasource(photos.columns(["label", "width"])).apply_predicate(col("width") > 0)
    tasks = source.get_read_tasks(RANKS)
    assert sum(len(block) for task in tasks for block in task()) == photos.num_rows


@needs("grain")
def test_grain(photos: bowstring.Dataset) -> None:
    import grain
    from bowstring.grain import DataSource

    dataset = grain.MapDataset.source(DataSource(photos)).shuffle(seed=3).map(lambda sample: len(sample["image"]))
    assert len(dataset) == photos.num_rows
    assert all(dataset[i] > 0 for i in range(3))


@needs("polars")
def test_polars(photos: bowstring.Dataset) -> None:
    import bowstring.polars
    import polars as pl

    frame = bowstring.polars.scan(photos)
    assert frame.filter(pl.col("width") > 0).select(pl.len()).collect().item() == photos.num_rows


@needs("sql")
def test_sql(photos: bowstring.Dataset) -> None:
    assert photos.where(sql="width BETWEEN 1 AND 100000 AND label IS NOT NULL").num_rows == photos.num_rows


@needs("tokens")
def test_tokens() -> None:
    from bowstring import tokens
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordLevel(unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(["one two three"], trainers.WordLevelTrainer(special_tokens=["?"]))
    rows = tokens.encode([{"key": "a", "text": "one two"}, {"key": "b", "text": "three"}], tokenizer)
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches(list(rows))
    assert table["n_tokens"].to_pylist() == [2, 1]


@needs("notebook")
def test_notebook(photos: bowstring.Dataset) -> None:
    import ipywidgets  # type: ignore[import-untyped]
    from IPython.core.interactiveshell import InteractiveShell

    formatter = InteractiveShell.instance().display_formatter
    assert formatter is not None
    shown, _ = formatter.format(photos.head(2))  # type: ignore[no-untyped-call]
    assert "data:image/" in shown["text/html"]
    assert ipywidgets.IntProgress(max=2).max == 2
