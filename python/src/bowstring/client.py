"""A server for its users: its datasets, uploads, and administration."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bowstring._progress import progress_bar
from bowstring._requests.request import snapshot_named
from bowstring._rows.upload import AlterResult, IngestResult, upload
from bowstring._transport.tls import Tls
from bowstring.connection import Connection
from bowstring.dataset import Dataset
from bowstring.errors import InvalidRequest, ServerError
from bowstring.forecast import Forecast
from bowstring.lineage import Held, RecordedJob, held, jobs_on_record
from bowstring.plan import Plan
from bowstring.preview import datasets_html
from bowstring.report import Report


@dataclass(frozen=True)
class DatasetInfo:
    """A dataset, as [Client.datasets][bowstring.Client.datasets] lists it."""

    name: str
    rows: int
    splits: dict[str, int]
    snapshots: list[int]
    tags: dict[str, int]
    newest: int
    created: str
    source: str


class Datasets(list[DatasetInfo]):
    """A list of datasets that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        rows = [(d.name, d.rows, d.splits, d.newest, d.created, d.source) for d in self]
        return datasets_html(rows)


@dataclass(frozen=True)
class WarmResult:
    """How much of an epoch is in the server's spill.

    Attributes:
        job: The job whose blobs were fetched.
        rows: Rows of the epoch.
        seen: How many of them were examined.
        there: Blobs that were in the spill already.
        stored: Blobs fetched into it.
        bytes: Their bytes.
        failed: Blobs that could not be fetched.
        full: Whether the spill has no room for more.
    """

    job: str
    rows: int
    seen: int
    there: int
    stored: int
    bytes: int
    failed: int
    full: bool


class Client(Connection):
    """A server, by its address.

    A client may be pickled, copied into another process by `fork`, and used by several threads: each process makes its
    own connection at its first call, because a connection of gRPC does not survive a fork. A pickled client contains
    the token.

    Use [connect][bowstring.connect] to make one; in a `with` block its connection is closed at the end.
    """

    def datasets(self, prefix: str = "") -> Datasets:
        """The datasets of the server whose names begin with `prefix`, by name."""
        found = self.action("list", **({"dataset": f"{prefix}*"} if prefix else {}))
        return Datasets(
            DatasetInfo(
                name=d["dataset"],
                rows=d.get("rows", -1),
                splits={s["name"]: s["rows"] for s in d.get("splits") or ()},
                snapshots=list(d.get("snapshots") or ()),
                tags={t["tag"]: t["snapshot"] for t in d.get("tags") or ()},
                newest=d.get("newest", 0),
                created=d.get("created", ""),
                source=d.get("source", ""),
            )
            for d in found
        )

    def dataset(self, name: str, *, split: str | None = None, snapshot: int | str | None = None) -> Dataset:
        """A dataset, or one split of it, in its current state.

        The snapshot is looked up at once (the newest, if none is named): whatever is imported or tagged later, all
        reads of this object see the same rows.

        Args:
            name: The dataset; `photos@3` for a snapshot by its number, `photos@prod` for the one with a tag.
            split: One split of it.
            snapshot: The number or the tag of the snapshot, if the name has none.
        """
        return Dataset._open(self, name, split, snapshot)

    def ingest(
        self,
        name: str,
        reader: Any,
        *,
        split: str = "train",
        mode: str = "create",
        key: str | None = None,
        blobs: Iterable[str] | None = None,
        media: dict[str, str] | None = None,
        source: str | None = None,
        on: str | None = None,
        missing: str | None = None,
        drop_columns: Iterable[str] | None = None,
        progress: bool = True,
    ) -> IngestResult:
        """Upload rows as a new snapshot of a dataset. If anything fails, the dataset is unchanged.

        With `merge`, rows change existing samples, and their blobs need not be sent again:

        ```python
        scores = pa.table({"file_name": names, "score": scores})
        client.ingest("photos", scores, mode="merge", on="file_name")
        ```

        Columns that the dataset has are changed in the samples with the rows' keys; a null in the frame makes a value
        null. Columns that the dataset does not have are added, and are null in all other samples. Values must fit the
        dataset's types without conversion. New class names get the next free numbers. In blob columns, a null leaves
        the blob unchanged. Samples stay at their positions, and in their splits unless a column `split` names another
        one. Earlier snapshots do not change. The caller needs the rights to read and to write the dataset.

        Args:
            name: The dataset.
            reader: A `pyarrow.Table`, a `RecordBatchReader`, an iterable of record batches or tables, or anything with
                `__arrow_c_stream__`, such as a frame of Polars or pandas, or a query of DuckDB.
            split: The split of the rows, unless they have a column `split`.
            mode: `create` a dataset, `append` to its newest snapshot, or `replace` its rows; `merge` the columns of
                rows into the samples with their keys, or `delete` the samples with the keys of the rows.
            key: The column whose value identifies a row; its id is derived from it.
            blobs: The binary columns that hold samples' bytes; by default, all of them.
            media: The media in them: `{"image": "image"}`, or `"audio"`.
            source: Free text that is kept with the snapshot.
            on: The column by which `merge` and `delete` find samples: `id` (the default), or one of integers, text or
                bytes whose values are unique.
            missing: How to handle rows whose key no sample has: `error` (the default of `merge`), `insert` them as new
                samples behind all others, or `ignore` them (the default of `delete`).
            drop_columns: Columns that `replace` may drop or change the type of; otherwise that is an error. `merge`
                drops them before it adds those of the rows.
            progress: Whether to show a progress bar.
        """
        put: dict[str, Any] = {"dataset": name, "split": split, "mode": mode, "commit": "message"}
        given = {
            "key": key,
            "blobs": None if blobs is None else list(blobs),
            "media": media,
            "source": source,
            "on": on,
            "missing": missing,
            "drop_columns": None if drop_columns is None else list(drop_columns),
        }
        put.update({field: value for field, value in given.items() if value is not None})
        return upload(self, put, reader, progress=progress)

    def alter(
        self,
        name: str,
        *,
        drop_columns: Iterable[str] = (),
        rename_columns: dict[str, str] | None = None,
        delete_where: str | None = None,
        delete_sql: str | None = None,
        source: str | None = None,
    ) -> AlterResult:
        """Change columns and rows of a dataset in a new snapshot. No rows are sent, and blobs stay unchanged.

        [ingest][bowstring.Client.ingest] with `mode="merge"` adds and changes columns by rows that have a key, and with
        `mode="delete"` deletes them. The caller needs the rights to read and to write the dataset.

        Args:
            name: The dataset.
            drop_columns: Columns to drop, those of blobs included.
            rename_columns: New names of columns, by the old ones.
            delete_where: An expression, as `Dataset.where` takes it, over the old columns; rows for which it is true
                are deleted.
            delete_sql: In its place, a condition in SQL, as `Dataset.where(sql=…)` takes it. Rows for which it is null
                stay.
            source: Free text that is kept with the snapshot, instead of the previous snapshot's.
        """
        if delete_sql is not None:
            if delete_where is not None:
                raise InvalidRequest("delete_where, delete_sql: got both, want one")
            from bowstring._filters.sql import expression

            delete_where = expression(delete_sql, self.schema({"dataset": name}))
        body: dict[str, Any] = {"dataset": name, "drop_columns": list(drop_columns)}
        given = {"rename_columns": rename_columns, "delete_where": delete_where, "source": source}
        body.update({field: value for field, value in given.items() if value is not None})
        (made,) = self._results("alter", json.dumps(body).encode(), stream=True)
        return AlterResult(**{field: made[field] for field in ("dataset", "snapshot", "changed", "rows", "deleted")})

    def warm(self, dataset: Dataset, *, epoch: int = 0, progress: bool = True) -> WarmResult:
        """Fetch the blobs of an epoch into the server's spill, in the order of their use.

        [NotFound][bowstring.NotFound] if the server has no spill.
        """
        body = json.dumps(dataset.request(epoch=epoch)).encode()
        last: dict[str, Any] = {}
        with progress_bar(progress, f"warm {dataset.name}", dataset.num_rows, "row") as bar:
            for last in self._results("warm", body, stream=True):
                bar.update(last["seen"] - bar.n)
                bar.set_postfix_str(f"{last['bytes'] / 1e6:,.0f} MB brought")
        if not last.get("done"):
            raise ServerError(f"warm ended before it was done: {last}")
        names = ("job", "rows", "seen", "there", "stored", "bytes", "failed", "full")
        return WarmResult(**{name: last[name] for name in names})

    def explain(
        self,
        dataset: Dataset,
        *,
        batch: int | None = None,
        world_size: int = 1,
        epoch: int = 0,
        epochs: int = 1,
        pace: float = 0,
        nodes: int | None = None,
        cache_bytes: int | None = None,
        window_bytes: int | None = None,
        rates: dict[str, Any] | None = None,
        look: float = 1,
    ) -> Forecast:
        """Forecast a job from measured rates; if a job of the same request runs, also report its progress.

        [NotFound][bowstring.NotFound] if the server was not calibrated, and no stream has kept its store busy for a
        second: `bowstring calibrate` measures its rates. The forecast's `unknown` lists rates that were not measured.

        Args:
            dataset: The samples of the job, and their order.
            batch: Rows of a global batch.
            world_size: Ranks that share it.
            epoch: The first epoch.
            epochs: How many epochs the job has.
            pace: Seconds for which the ranks compute a step, in parallel; 0: no time.
            nodes: Nodes that own the dataset together; by default, the server's cluster.
            cache_bytes: Bytes of each node's spill; by default, the server's.
            window_bytes: Bytes of each node's window memory; by default, the server's.
            rates: Rates to use instead of the server's, in the form that `bowstring calibrate` writes.
            look: Seconds for which a running job is measured.
        """
        body = dataset.request(batch=batch, world_size=world_size, epoch=epoch)
        given = {"nodes": nodes, "cache_bytes": cache_bytes, "window_bytes": window_bytes}
        body.update({field: value for field, value in given.items() if value is not None})
        if rates is not None:
            body["rates"] = {part: rates[part] for part in ("store", "spill", "node", "network") if part in rates}
        body.update(pace_ms=1000 * pace, epochs=epochs, look_ms=round(1000 * look))
        return Forecast._of(self.action("explain", **body)[0])

    def drop(self, name: str, snapshot: int | str | None = None) -> list[int]:
        """Drop a snapshot, or without its number the whole dataset. Returns the numbers of those dropped.

        [InvalidRequest][bowstring.InvalidRequest] if it has a tag.
        """
        dropped: list[int] = self.action("drop", **snapshot_named(name, snapshot))[0]["dropped"]
        return dropped

    def tag(self, name: str, tag: str, snapshot: int | str | None = None) -> int:
        """Name a snapshot (by default the newest). If another snapshot has the name, the name moves.

        Returns the snapshot's number. A snapshot with a tag cannot be dropped.
        """
        number: int = self.action("tag", **snapshot_named(name, snapshot), name=tag)[0]["snapshot"]
        return number

    def untag(self, name: str, tag: str) -> int:
        """Remove a name of a snapshot. Returns the snapshot's number."""
        number: int = self.action("untag", dataset=name, name=tag)[0]["snapshot"]
        return number

    def steer(
        self, dataset: str, run: str, weights: Mapping[str, float], *, over: int = 0, from_step: int | None = None
    ) -> int:
        """Change the weights of a mixture's run while it goes on. Returns the step from which on they hold.

        That is the first step that no stream may have served, counted over all epochs. All ranks obey the change at it.

        Args:
            dataset: The dataset of the mixture's first source.
            run: The name that the mixture was given by `run`.
            weights: New weights by the names of sources. Sources that are left out keep theirs.
            over: In how many steps the weights change to these; by default, at once.
            from_step: A later step at which the change begins.
        """
        change = {"weights": dict(weights), "over": over or None, "from_step": from_step}
        given = {name: value for name, value in change.items() if value is not None}
        step: int = self.action("steer", dataset=dataset, run=run, **given)[0]["step"]
        return step

    def runs(self, dataset: str) -> list[dict[str, Any]]:
        """The runs of mixtures whose first source is a dataset: `run`, `settled`, `sources`, `changes` and more."""
        return self.action("runs", dataset=dataset)

    def lineage(
        self,
        job: str,
        step: int,
        *,
        epoch: int | None = None,
        rank: int | None = None,
        superseded: bool = False,
    ) -> list[Held]:
        """Which samples a step of a job held, by rank and in the order of their delivery.

        Servers that run with `--lineage` keep the record. The other nodes of a cluster are queried, too.
        [NotFound][bowstring.NotFound] if the step is not, or no longer, on record.

        Args:
            job: Its name from `jobs_on_record` or the server's statistics; or a plan's id, which batches carry.
            step: The step, of `epoch`.
            epoch: The epoch; by default, the last one on record, or that of the plan.
            rank: One rank; by default, all.
            superseded: Whether to include rows that a later stream delivered again.
        """
        body: dict[str, Any] = {"job": job, "step": step}
        body.update({name: value for name, value in (("epoch", epoch), ("rank", rank)) if value is not None})
        found = held(self, self._at, body)
        return found if superseded else [piece for piece in found if piece.stands]

    def report(self, dataset: Dataset | str) -> Report:
        """Collect what training learns of samples, such as losses, as columns of their dataset.

        ```python
        report = client.report(photos)
        for batch in photos.batches(64):
            report.add(batch["position"], loss=train(batch))
        report.commit()
        hard = client.dataset("photos").shuffle(1).options(sample={"weights": "loss ?? 1"})
        ```

        Args:
            dataset: The dataset being read, whose snapshot defines the positions; or its name.
        """
        return Report(self, self.dataset(dataset) if isinstance(dataset, str) else dataset)

    def jobs_on_record(self) -> list[RecordedJob]:
        """The jobs that this server has on record, for `lineage`."""
        return jobs_on_record(self)

    def cancel(self, plan: Plan | str) -> int:
        """End the running streams of a plan. Returns their number."""
        cancelled: int = self.action("cancel", plan=plan if isinstance(plan, str) else plan.id)[0]["cancelled"]
        return cancelled


def connect(
    uri: str,
    *,
    token: str | None = None,
    tls: Tls | None = None,
    tls_root_certs: str | os.PathLike[str] | bytes | None = None,
    cert: str | os.PathLike[str] | bytes | None = None,
    key: str | os.PathLike[str] | bytes | None = None,
    timeout: float | None = None,
    retries: int = 5,
    plaintext_token: bool | None = None,
) -> Client:
    """A client of the server at `uri`. The first call connects.

    Args:
        uri: `grpc://HOST:PORT`, `grpc+tls://HOST:PORT`, or `grpc+unix:///PATH`. Without a port it is 8815, the default
            of servers. An IPv6 address has brackets: `grpc://[::1]:8815`.
        token: Sent with every call as `authorization: Bearer TOKEN`; by default, the value of `BOWSTRING_TOKEN` in the
            environment. If the environment has `BOWSTRING_SERVER`, that token is sent only to this server. An empty
            string means no token.
        tls: Certificates; with it, `grpc://` is encrypted too. Without it, `grpc+tls://` uses the files that
            `BOWSTRING_SERVER_CA`, `BOWSTRING_CLIENT_CERT` and `BOWSTRING_CLIENT_KEY` name.
        tls_root_certs: Short for `Tls(root_certs=...)`.
        cert: Short for `Tls(cert=...)`.
        key: Short for `Tls(key=...)`.
        timeout: Seconds that a call may take. Streams have no limit.
        retries: How often in a row a broken stream is resumed before it fails.
        plaintext_token: Whether the token may leave this machine unencrypted; by default, if the environment has
            `BOWSTRING_PLAINTEXT_TOKEN=1`. Otherwise a token with a `grpc://` address of another machine is an error.
    """
    if tls_root_certs is not None or cert is not None or key is not None:
        if tls is not None:
            raise ValueError("tls: give it, or tls_root_certs, cert and key, and not both")
        tls = Tls(root_certs=tls_root_certs, cert=cert, key=key)
    return Client(uri, token=token, tls=tls, timeout=timeout, retries=retries, plaintext_token=plaintext_token)
