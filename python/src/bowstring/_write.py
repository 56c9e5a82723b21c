"""Write a dataset sample by sample: samples are merged by their keys, so that a repeated write changes nothing."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bowstring._local.program import require_linux
from bowstring._messages import shown
from bowstring._open import absolute
from bowstring._transport.origins import SCHEMES
from bowstring.client import Client, connect
from bowstring.errors import AlreadyExists, InvalidRequest, NotFound, Unavailable
from bowstring.preview import sound_type
from bowstring.stream import retrying

if TYPE_CHECKING:
    from bowstring.dataset import Dataset


def write(
    name: str,
    into: str | os.PathLike[str] | Client,
    *,
    key: str = "key",
    split: str = "train",
    media: Mapping[str, str] | None = None,
    flush_rows: int = 10_000,
    flush_bytes: int = 64 << 20,
) -> Writer:
    """Write samples to a dataset, one by one. The dataset is made if there is none.

    ```python
    with bowstring.write("photos", into="store/") as out:
        for path in Path("photos").glob("*.jpg"):
            out.add(key=path.name, image=path, label=path.parent.name)
    photos = out.dataset()
    ```

    A sample replaces the dataset's sample with the same key. So a program that was killed can run again from its
    beginning, and several processes can write to one dataset at the same time. `key in out` is true if the dataset has
    a sample with that key.

    Args:
        name: The dataset.
        into: A folder for a store, which is made if there is none; a store in a database or a bucket, such as
            `cql://HOST/KEYSPACE`; the address of a server, such as `grpc://HOST:PORT`; or a client.
        key: The column whose value identifies a sample. A sample without one gets a digest of its values.
        split: The split of the samples.
        media: The kind of the bytes in a column, `"image"` or `"audio"`, such as `{"picture": "image"}`. For other new
            columns the first sample decides: PNG, JPEG, WebP and GIF are images; WAV, FLAC, Ogg and MP3 with tags are
            sounds.
        flush_rows: The number of samples in memory at which they are sent.
        flush_bytes: The size in bytes, likewise. Each sending makes a new snapshot of the dataset.
    """
    if flush_rows < 1 or flush_bytes < 1:
        raise InvalidRequest(f"flush_rows, flush_bytes: got {flush_rows} and {flush_bytes}, want 1 or more")
    return Writer(client_of(into), name, key, split, dict(media or {}), flush_rows, flush_bytes)


class Writer:
    """Samples on their way to a dataset; made by [write][bowstring.write]. Threads may share it.

    At the end of a `with` block, the samples that are still in memory are sent. If the block raises an exception, they
    are not; the dataset keeps what was sent before.
    """

    def __init__(
        self, client: Client, name: str, key: str, split: str, media: dict[str, str], rows: int, size: int
    ) -> None:
        self._client = client
        self._name = name
        self._key = key
        self._split = split
        self._media = media
        self._most_rows = rows
        self._most_bytes = size
        self._rows: dict[Any, dict[str, Any]] = {}  # by their keys
        self._bytes = 0
        self._sent: set[Any] | None = None  # keys that the dataset has, once asked for
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"<bowstring.Writer {self._name}; {len(self._rows)} samples to send>"

    def add(self, **columns: Any) -> None:
        """Add a sample.

        Args:
            columns: Its values. Bytes, or a `pathlib.Path` to a file of them, are a blob. An image of Pillow, or an
                array of uint8 with two dimensions or with 1, 3 or 4 channels, becomes a PNG. Other arrays are lists.
        """
        if not columns:
            raise InvalidRequest("add: got no column, want such as image=…, label=…")
        row = {name: _value(value) for name, value in columns.items()}
        if row.get(self._key) is None:
            row[self._key] = _digest(row)
        found = row[self._key]
        if not isinstance(found, (str, int, bytes)):
            raise InvalidRequest(f"{self._key}: got {type(found).__name__}, want text, an integer or bytes as a key")
        with self._lock:
            self._rows[found] = row
            self._bytes += sum(len(value) for value in row.values() if isinstance(value, (bytes, str)))
            if len(self._rows) >= self._most_rows or self._bytes >= self._most_bytes:
                self.flush()

    def __contains__(self, key: object) -> bool:
        """Whether the dataset has a sample with a key, or this writer is about to send one.

        The first call reads the keys of the dataset. It does not see later writes of other processes.
        """
        with self._lock:
            if self._sent is None:
                try:
                    keys = self._client.dataset(self._name).columns([self._key]).to_arrow()
                    self._sent = set(keys[self._key].to_pylist())
                except NotFound:
                    self._sent = set()
            return key in self._rows or key in self._sent

    def flush(self) -> None:
        """Send the samples that are in memory. When it returns, the dataset has them."""
        with self._lock:
            if not self._rows:
                return
            names = list(dict.fromkeys(name for row in self._rows.values() for name in row))
            columns = {name: [row.get(name) for row in self._rows.values()] for name in names}
            table = pa.table({name: _column(name, values) for name, values in columns.items()})
            media = {
                name: kind
                for name, values in columns.items()
                if (kind := self._media.get(name) or _media(next((v for v in values if v is not None), None)))
            }
            try:
                self._merge(table, media)
            except NotFound:
                try:
                    self._client.ingest(
                        self._name, table, split=self._split, key=self._key, media=media or None, progress=False
                    )
                except AlreadyExists:  # another process has made it meanwhile
                    self._merge(table, media)
            if self._sent is not None:
                self._sent.update(self._rows)
            self._rows, self._bytes = {}, 0

    def _merge(self, table: pa.Table, media: dict[str, str]) -> None:
        known = self._client.dataset(self._name).schema.names  # the kinds of their bytes are set
        media = {name: kind for name, kind in media.items() if name not in known}

        merge = partial(
            self._client.ingest, self._name, table, split=self._split, mode="merge", on=self._key, missing="insert",
            media=media or None, progress=False,
        )  # fmt: skip
        try:
            merge()
        except Unavailable as error:  # also where many processes commit at once; a repeated merge changes nothing
            if not self._client.retries:
                raise
            retrying(self._client.retries, error)(merge)

    def dataset(self) -> Dataset:
        """The dataset with all samples that were added."""
        self.flush()
        return self._client.dataset(self._name)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.flush()


def _value(value: Any) -> Any:
    """A value as Arrow stores it."""
    if isinstance(value, Path):
        return value.read_bytes()
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        if value.dtype != np.uint8 or not (value.ndim == 2 or (value.ndim == 3 and value.shape[2] in (1, 3, 4))):
            return value.tolist()
        from PIL import Image

        value = Image.fromarray(value[..., 0] if value.ndim == 3 and value.shape[2] == 1 else value)
    if type(value).__module__.startswith("PIL."):
        out = io.BytesIO()
        value.save(out, "PNG")
        return out.getvalue()
    return value


def _column(name: str, values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InvalidRequest(f"column {shown(name)} has values of different types: {error}") from error


def _media(value: object) -> str | None:
    """The kind of a blob's bytes: an image, a sound, or neither."""
    if not isinstance(value, bytes):
        return None
    if value.startswith((b"\x89PNG", b"\xff\xd8\xff", b"GIF8")) or (value[:4] == b"RIFF" and value[8:12] == b"WEBP"):
        return "image"
    return None if sound_type(value) is None else "audio"


def _digest(row: Mapping[str, Any]) -> str:
    """A key for a sample without one: equal samples have equal keys."""
    digest = hashlib.sha256()
    for name in sorted(row):
        value = row[name] if isinstance(row[name], bytes) else repr(row[name]).encode()
        for part in (name.encode(), value):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:32]


def client_of(into: str | os.PathLike[str] | Client) -> Client:
    """The client of a store's server, which is started if `into` names a store."""
    if isinstance(into, Client):
        return into
    text = os.fspath(into)
    if not isinstance(text, str):
        raise TypeError(f"into: got {type(into).__name__}, want a path, an address or a client")
    scheme, separator, _ = text.partition("://")
    if separator and scheme in SCHEMES:
        return connect(text)
    require_linux(f"into: {text!r}")
    from bowstring._local import servers  # not at the beginning: Windows has no such locks

    if not separator:
        text = Path(absolute(text)).as_uri()
    if text.startswith("file://"):
        servers.make_store(text)
    return connect(servers.of_store(text).uri)
