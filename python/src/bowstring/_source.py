"""Sources that the modules for other libraries accept: a dataset, or its address and name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from bowstring._transport.tls import Tls
from bowstring.client import Client, connect
from bowstring.dataset import Dataset


def whole(dataset: Dataset) -> Dataset:
    """All rows of a dataset, in the order of the plan: what is read of them at different times has to fit together.

    `bucket_by_length` is left out, as it says what goes together in a batch, and there are no batches here; so is
    `sample`, which says how often rows come in an epoch, and `pack`, of which there are the documents.
    """
    dataset = dataset._documents()
    options = {name: o for name, o in dataset._options.items() if name not in ("bucket_by_length", "sample")}
    return dataset._but(_options=options, _schema=dataset._schema).options(order="strict", remainder="uneven")


def counted(name: str, given: Any) -> int:
    """An argument that counts something, if it is one."""
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)) or given < 1:
        raise ValueError(f"{name}: got {given!r}, want an integer, 1 or more")
    return int(given)


def opened(
    source: Dataset | Client | str,
    name: str | None,
    *,
    split: str | None = None,
    snapshot: int | str | None = None,
    columns: Iterable[str] | None = None,
    where: str | None = None,
    sql: str | None = None,
    token: str | None = None,
    tls: Tls | None = None,
) -> Dataset:
    """The dataset that is meant, narrowed to rows and columns."""
    if isinstance(source, Dataset):
        given = {"name": name, "split": split, "snapshot": snapshot, "token": token, "tls": tls}
        if wrong := [argument for argument, value in given.items() if value is not None]:
            raise TypeError(f"{wrong[0]}: goes with an address or a client; this is a dataset already: {source!r}")
        dataset = source
    elif isinstance(source, (Client, str)):
        if not isinstance(name, str):
            raise TypeError(f"name: got {name!r}, want the name of a dataset of {source!r}")
        if isinstance(source, str):
            source = connect(source, token=token, tls=tls)
        elif token is not None or tls is not None:
            raise TypeError("token, tls: belong to the client, which is connected already")
        dataset = source.dataset(name, split=split, snapshot=snapshot)
    else:
        raise TypeError(f"source: got {type(source).__name__}, want a Dataset, a Client, or the address of a server")
    if where is not None or sql is not None:
        dataset = dataset.where(where, sql=sql)
    if columns is not None:
        dataset = dataset.columns(columns)
    return dataset
