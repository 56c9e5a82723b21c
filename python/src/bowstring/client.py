"""The connection to a server: one for each process, made when it is first used."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as fl

from bowstring import _fork
from bowstring._wire import decoded, keep_forever, progress_bar
from bowstring.errors import BowstringError, ServerError, translate

if TYPE_CHECKING:
    from bowstring.dataset import Dataset, Plan

_SCHEMES = ("grpc", "grpc+tcp", "grpc+tls", "grpc+unix")
_LOCAL = ("localhost", "127.0.0.1", "::1")
_MESSAGE_BYTES = 8 << 20  # of one batch of an upload
_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # a connection for each client: two clients read twice as fast as one
    ("grpc.initial_reconnect_backoff_ms", 100),  # a server that restarts is found soon
    ("grpc.max_reconnect_backoff_ms", 2000),
]


@dataclass(frozen=True)
class Tls:
    """How a connection is encrypted.

    Certificates and keys are PEM: the bytes, or a path, which is read in each process that connects.

    Attributes:
        root_certs: Whom to trust, where it is not the system's list.
        cert: The client's own certificate, for mutual TLS.
        key: Its private key.
        server_name: The name that the server's certificate is for, if it is not that of the address.
        verify: Whether the server's certificate is checked. Without that anybody can be the server.
    """

    root_certs: str | os.PathLike[str] | bytes | None = None
    cert: str | os.PathLike[str] | bytes | None = None
    key: str | os.PathLike[str] | bytes | None = field(default=None, repr=False)
    server_name: str | None = None
    verify: bool = True

    def _arguments(self) -> dict[str, Any]:
        given = {
            "tls_root_certs": _pem(self.root_certs),
            "cert_chain": _pem(self.cert),
            "private_key": _pem(self.key),
            "override_hostname": self.server_name,
            "disable_server_verification": None if self.verify else True,
        }
        return {name: value for name, value in given.items() if value is not None}


def _pem(given: str | os.PathLike[str] | bytes | None) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    return Path(given).read_bytes()


@dataclass(frozen=True)
class DatasetInfo:
    """A dataset, as [Client.datasets][bowstring.Client.datasets] lists it."""

    name: str
    rows: int
    splits: dict[str, int]
    snapshots: list[int]
    newest: int
    created: str
    source: str


class Datasets(list[DatasetInfo]):
    """A list of datasets that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        from bowstring.preview import datasets_html

        return datasets_html(self)


@dataclass(frozen=True)
class IngestResult:
    """What an upload has made. `changed` is false if the newest snapshot already was exactly this."""

    dataset: str
    snapshot: int
    rows: int
    bytes: int
    changed: bool


@dataclass(frozen=True)
class WarmResult:
    """How much of an epoch is in the server's spill now.

    Attributes:
        job: The job that it was brought for.
        rows: Rows of the epoch.
        seen: How many of them were looked at.
        there: Blobs that were in the spill already.
        stored: Blobs brought into it.
        bytes: Their bytes.
        failed: Blobs that could not be brought.
        full: The spill would not keep more.
    """

    job: str
    rows: int
    seen: int
    there: int
    stored: int
    bytes: int
    failed: int
    full: bool


class Client:
    """A server, by its address.

    A client may be pickled, copied into another process by `fork`, and used by several threads: each process makes a
    connection of its own when it first needs one, as a connection of gRPC does not survive a fork. The token goes
    where a pickled client goes.

    Use [connect][bowstring.connect] to make one; in a `with` block its connection is closed at the end.
    """

    def __init__(
        self,
        uri: str,
        *,
        token: str | None = None,
        tls: Tls | None = None,
        timeout: float | None = None,
        retries: int = 5,
    ) -> None:
        if "://" not in uri:
            uri = f"grpc://{uri}"
        scheme, _, rest = uri.partition("://")
        if scheme not in _SCHEMES or not rest:
            raise ValueError(f"uri: got {uri!r}, want grpc://HOST:PORT, grpc+tls://HOST:PORT or grpc+unix:///PATH")
        if tls is not None and scheme in ("grpc", "grpc+tcp"):
            scheme = "grpc+tls"
        if timeout is not None and timeout <= 0:
            raise ValueError(f"timeout: got {timeout}, want seconds, more than 0")
        if retries < 0:
            raise ValueError(f"retries: got {retries}, want 0 or more")
        self.uri = f"{scheme}://{rest}"
        self.retries = retries
        self._token = token
        self._tls = tls
        self._timeout = timeout
        if token is not None and scheme in ("grpc", "grpc+tcp") and urlsplit(self.uri).hostname not in _LOCAL:
            warnings.warn(f"the token goes to {self.uri} unencrypted; grpc+tls:// protects it", stacklevel=3)
        self._flight: Any = None
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<bowstring.Client {self.uri}>"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_flight", "_pid")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._flight = None
        self._pid = os.getpid()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close this process's connection. The next call makes a new one."""
        if self._pid != os.getpid():
            return  # there is none
        flight, self._flight = self._flight, None
        if flight is not None:
            with translate():
                flight.close()

    def _let_go(self) -> None:
        self._flight = None  # not closed: another thread may be in the middle of a call

    def flight(self) -> fl.FlightClient:
        """The `pyarrow.flight.FlightClient` of the process that asks. Ask each time: it does not survive a fork."""
        flight = self._flight
        if flight is None or self._pid != os.getpid():
            with _fork.connecting():
                if self._pid != os.getpid():  # only if the fork was hidden from Python
                    keep_forever(self._flight)
                    self._flight, self._pid = None, os.getpid()
                if self._flight is None:
                    arguments = self._tls._arguments() if self._tls else {}
                    with translate():
                        self._flight = fl.connect(self.uri, generic_options=_OPTIONS, **arguments)
                    _fork.hold(self)
                flight = self._flight
        return flight

    def options(self, *, stream: bool = False) -> fl.FlightCallOptions:
        """What goes with a call: the token, and the timeout, which a stream has none of as it may run for hours."""
        headers = [] if self._token is None else [(b"authorization", f"Bearer {self._token}".encode())]
        return fl.FlightCallOptions(headers=headers, timeout=None if stream else self._timeout)

    def datasets(self, prefix: str = "") -> Datasets:
        """The datasets of the server whose names begin with `prefix`, by name."""
        found = self.action("list", **({"dataset": f"{prefix}*"} if prefix else {}))
        return Datasets(
            DatasetInfo(
                name=d["dataset"],
                rows=d.get("rows", -1),
                splits={s["name"]: s["rows"] for s in d.get("splits") or ()},
                snapshots=list(d.get("snapshots") or ()),
                newest=d.get("newest", 0),
                created=d.get("created", ""),
                source=d.get("source", ""),
            )
            for d in found
        )

    def dataset(self, name: str, *, split: str | None = None, snapshot: int | None = None) -> Dataset:
        """A dataset, or one split of it, as it is now.

        The snapshot is looked up at once (the newest, if none is named): whatever is imported later, all reads of this
        object see the same rows.
        """
        from bowstring.dataset import Dataset

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
        progress: bool = True,
    ) -> IngestResult:
        """Upload rows as a new snapshot of a dataset: all of them, or, whatever fails, none.

        Args:
            name: The dataset.
            reader: A `pyarrow.Table`, a `RecordBatchReader`, an iterable of record batches or tables, or anything with
                `__arrow_c_stream__`, such as a frame of Polars or pandas, or a query of DuckDB.
            split: The split of the rows, unless they have a column `split`.
            mode: `create` a dataset, `append` to its newest snapshot, or `replace` that.
            key: The column whose value identifies a row; its id is derived from it.
            blobs: The binary columns that hold samples' bytes; without it, all of them.
            media: What is in them: `{"image": "image"}`, or `"audio"`.
            source: Free text that is kept with the snapshot.
            progress: Whether to show a progress bar.
        """
        put: dict[str, Any] = {"dataset": name, "split": split, "mode": mode, "commit": "message"}
        given = {"key": key, "blobs": None if blobs is None else list(blobs), "media": media, "source": source}
        put.update({field: value for field, value in given.items() if value is not None})
        schema, batches, total = _plain(*_batches_of(reader))
        return _Upload(self, put, schema, total, progress).run(batches)

    def warm(self, dataset: Dataset, *, epoch: int = 0, progress: bool = True) -> WarmResult:
        """Bring what an epoch will use into the server's spill, in the order in which it will use it.

        [NotFound][bowstring.NotFound] if the server has none.
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

    def stats(self) -> dict[str, Any]:
        """The server's counters: docs/protocol.md says what they are."""
        return self.action("stats")[0]

    def drop(self, name: str, snapshot: int | None = None) -> list[int]:
        """Drop a snapshot, or without its number the whole dataset. Returns the numbers of those dropped."""
        dropped: list[int] = self.action("drop", dataset=name, **({} if snapshot is None else {"snapshot": snapshot}))[
            0
        ]["dropped"]
        return dropped

    def cancel(self, plan: Plan | str) -> int:
        """End the running streams of a plan. Returns how many there were."""
        cancelled: int = self.action("cancel", plan=plan if isinstance(plan, str) else plan.id)[0]["cancelled"]
        return cancelled

    def action(self, name: str, **body: Any) -> list[dict[str, Any]]:
        """Call an action of the server by its name; its results."""
        return list(self._results(name, json.dumps(body).encode()))

    def _results(self, name: str, body: bytes, *, stream: bool = False) -> Iterator[dict[str, Any]]:
        with translate():
            results = iter(self.flight().do_action((name, body), self.options(stream=stream)))
        while True:
            with translate():
                try:
                    result = next(results)
                except StopIteration:
                    return
            yield decoded(result.body)


def connect(
    uri: str, *, token: str | None = None, tls: Tls | None = None, timeout: float | None = None, retries: int = 5
) -> Client:
    """A client of the server at `uri`. Nothing is sent before it is used.

    Args:
        uri: `grpc://HOST:PORT`, `grpc+tls://HOST:PORT`, or `grpc+unix:///PATH`.
        token: Sent with every call as `authorization: Bearer TOKEN`.
        tls: Certificates; with it, `grpc://` is encrypted too.
        timeout: Seconds that a call may take. Streams have no limit.
        retries: How often in a row a stream that breaks is opened again, where it stood, before it fails.
    """
    return Client(uri, token=token, tls=tls, timeout=timeout, retries=retries)


def _batches_of(reader: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch], int | None]:
    """Schema, batches and, if it is known, number of rows of what is to be uploaded."""
    if isinstance(reader, pa.RecordBatch):
        reader = pa.Table.from_batches([reader])
    if isinstance(reader, pa.Table):
        return reader.schema, iter(reader.to_batches()), reader.num_rows
    if isinstance(reader, pa.RecordBatchReader):
        return reader.schema, iter(reader), None
    if hasattr(reader, "__arrow_c_stream__"):
        total = len(reader) if hasattr(reader, "__len__") else None
        stream = pa.RecordBatchReader.from_stream(reader)
        return stream.schema, iter(stream), total
    if isinstance(reader, (str, bytes, dict)) or not isinstance(reader, Iterable):
        raise TypeError(
            f"reader: got {type(reader).__name__}, want a pyarrow.Table, a RecordBatchReader, an iterable of record "
            "batches, or anything with __arrow_c_stream__"
        )
    pieces = iter(reader)
    first = next(pieces, None)
    if first is None:
        raise ValueError("reader: got no batch, so its schema is not known; an empty pyarrow.Table has one")
    if not isinstance(first, (pa.RecordBatch, pa.Table)):
        raise TypeError(f"reader: got an iterable of {type(first).__name__}, want one of pyarrow.RecordBatch")

    def batches() -> Iterator[pa.RecordBatch]:
        piece: Any = first
        while piece is not None:
            if isinstance(piece, pa.Table):
                yield from piece.to_batches()
            else:
                yield piece
            piece = next(pieces, None)

    return first.schema, batches(), None


def _plain(
    schema: pa.Schema, batches: Iterator[pa.RecordBatch], total: int | None
) -> tuple[pa.Schema, Iterator[pa.RecordBatch], int | None]:
    """The types that a server stores, in place of those that only some libraries have in memory, such as Polars."""
    plain = pa.schema([field.with_type(_plain_type(field.type)) for field in schema], schema.metadata)
    if plain.types == schema.types:
        return schema, batches, total
    return plain, (batch.cast(plain) for batch in batches), total


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.utf8()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    return kind


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch into messages of a size that a connection carries well."""
    rows = batch.num_rows
    step = max(1, rows * _MESSAGE_BYTES // max(1, batch.nbytes))
    for start in range(0, rows, step):
        yield batch.slice(start, step)


class _Upload:
    """An upload under way. The server's acknowledgements are read beside it, so that it need not wait for them."""

    def __init__(self, client: Client, put: dict[str, Any], schema: pa.Schema, total: int | None, progress: bool):
        self._client = client
        self._put = put
        self._schema = schema
        self._bars = (
            progress_bar(progress, f"ingest {put['dataset']}", total, "row"),
            progress_bar(progress, "stored", None, "B"),
        )
        self._stored = 0  # bytes of blobs that the server has acknowledged
        self._results: queue.SimpleQueue[dict[str, Any] | BowstringError | None] = queue.SimpleQueue()

    def run(self, batches: Iterator[pa.RecordBatch]) -> IngestResult:
        descriptor = fl.FlightDescriptor.for_command(json.dumps({"put": self._put}))
        rows, size = self._bars
        with rows, size, _fork.uploading():
            with translate():
                writer, reader = self._client.flight().do_put(
                    descriptor, self._schema, self._client.options(stream=True)
                )
            listener = threading.Thread(target=self._listen, args=(reader,), daemon=True)
            listener.start()
            try:
                sent = self._send(writer, batches)
                with translate():
                    writer.write_metadata(json.dumps({"commit": True, "rows": sent}).encode())
                    writer.done_writing()
            except BaseException as error:
                # Without the last message nothing is committed. What the server said comes first: that it hung up is
                # only what followed.
                said = self._end(writer, listener)
                if said is not None and isinstance(error, BowstringError):
                    raise said from error
                raise
            listener.join()
            last = self._results.get()
            try:
                with translate():
                    writer.close()
            except BowstringError as error:  # where the server refused it, this says why
                if not isinstance(last, dict) or "snapshot" not in last:
                    raise (last if isinstance(last, BowstringError) else error) from None
            if isinstance(last, BowstringError):
                raise last
            if last is None or "snapshot" not in last:
                raise ServerError(f"the upload ended without a result: {last}")
            return IngestResult(last["dataset"], last["snapshot"], last["rows"], self._stored, last["changed"])

    def _send(self, writer: Any, batches: Iterator[pa.RecordBatch]) -> int:
        sent = 0
        for batch in batches:  # what the caller's reader raises is the caller's
            for piece in _cut(batch):
                with translate():
                    writer.write_batch(piece)
                sent += piece.num_rows
        return sent

    def _listen(self, reader: Any) -> None:
        """Read what the server says until it ends the call; the last of it is the result."""
        rows, size = self._bars
        last: dict[str, Any] | BowstringError | None = None
        try:
            while True:
                with translate():
                    message = reader.read()
                if message is None:
                    break
                last = decoded(message)
                if "batch" in last:
                    rows.update(last["rows"] - rows.n)
                    size.update(last["bytes"] - self._stored)
                    self._stored = last["bytes"]
        except BowstringError as error:
            last = error
        except Exception as error:  # noqa: BLE001 - it is raised in the thread that waits
            last = ServerError(f"{type(error).__name__}: {error}")
        self._results.put(last)

    def _end(self, writer: Any, listener: threading.Thread) -> BowstringError | None:
        """End an upload that has failed: what the server says of it, if it was the server."""
        with contextlib.suppress(BowstringError), translate():
            writer.done_writing()
        listener.join()  # before the call is closed, which waits for what the listener would read
        last = self._results.get()
        said = last if isinstance(last, BowstringError) else None
        try:
            with translate():
                writer.close()
        except BowstringError as error:
            said = said or error
        return said
