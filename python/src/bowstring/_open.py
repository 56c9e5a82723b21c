"""Open a dataset by the path or URL of its data, or by the address of its server."""

from __future__ import annotations

import os
import time
from pathlib import Path
from urllib.parse import urlsplit

from bowstring._cancellation import sleep
from bowstring._local.program import require_linux
from bowstring._transport.origins import SCHEMES
from bowstring._transport.tls import Tls
from bowstring.client import Client, connect
from bowstring.dataset import Dataset
from bowstring.errors import InvalidRequest, NotFound, Unavailable

_BUCKETS = ("s3", "gs", "az", "https", "http")
_AGAIN = 60.0  # seconds for which a server that ends is waited for
_POLL = 0.05


def open(  # noqa: A001 - as the modules of Python name it
    source: str | os.PathLike[str],
    *,
    split: str | None = None,
    snapshot: int | str | None = None,
    update: bool = True,
    skip_bad: bool = False,
    progress: bool = True,
    token: str | None = None,
    tls: Tls | None = None,
) -> Dataset:
    """Open a dataset by the path or URL of its data. The caller does not have to start a server.

    ```python
    photos = bowstring.open("photos/", split="train").shuffle(seed=7)
    for batch in photos.batches(64):
        ...
    ```

    Data of a folder or a bucket stays where it is: it is attached to a server that the package starts, as
    `bowstring attach` does. The next call reads only what has changed. All processes of the user on this machine share
    the server, and it ends ten minutes after its last client. `bowstring ps` lists such servers, `bowstring stop` ends
    them.

    Args:
        source: A folder, a file or a pattern, in any format that `attach` reads; a URL in a bucket, as
            `s3://BUCKET/PREFIX`; `cql://HOST/KEYSPACE#NAME` or `s3://BUCKET/PREFIX#NAME` for a dataset of a store; or
            `grpc://HOST:PORT/NAME`, `grpc+tls://HOST:PORT/NAME` or `grpc+unix:///SOCKET#NAME` for one of a server that
            runs. `NAME` may be `NAME@SNAPSHOT`.
        split: One split of it.
        snapshot: The number or the tag of a snapshot.
        update: Whether to look for what has changed in a folder or a bucket since the last call.
        skip_bad: Whether to leave out samples of a folder or a bucket that cannot be read, such as broken images.
            Otherwise they are an error that names them.
        progress: Whether to show a progress bar.
        token: As of [connect][bowstring.connect], for an address of a server.
        tls: Likewise.
    """
    text = os.fspath(source)
    if not isinstance(text, str):
        raise TypeError(f"source: got {type(source).__name__}, want str or os.PathLike[str]")
    scheme, separator, _ = text.partition("://")
    if separator and scheme in SCHEMES:
        uri, name = _at_server(text)
        return connect(uri, token=token, tls=tls).dataset(name, split=split, snapshot=snapshot)
    if token is not None or tls is not None:
        raise InvalidRequest(
            f"token, tls: got one with {text!r}; they go with the address of a server, as grpc+tls://…"
        )
    require_linux(f"source: {text!r}")
    from bowstring._local import attach, servers  # not at the beginning: Windows has no such locks

    at, _, name = text.partition("#") if separator else (text, "", "")
    if scheme == "cql" and not name:
        raise InvalidRequest(f"source: got {text!r}, want cql://HOST/KEYSPACE#NAME, with the name of a dataset")
    if name:
        client = connect(servers.of_store(at).uri)
        return _patient(client, name, split, snapshot)
    if separator and scheme not in (*_BUCKETS, "file"):
        raise InvalidRequest(
            f"source: got {text!r}, want a path, s3://, gs://, az://, https://, file://, cql://HOST/KEYSPACE#NAME, or "
            "grpc://HOST:PORT/NAME"
        )
    if not separator:
        text = _local(text)
    server = servers.of_sources("buckets" if scheme in _BUCKETS and separator else "files")
    name = attach.name_of(text)
    client = connect(server.uri)

    def there() -> bool:
        try:
            _patient(client, name, None, None)
        except NotFound:
            return False
        return True

    if update or not there():
        attach.attach(server, text, name, there=there, skip_bad=skip_bad, progress=progress)
    return _patient(client, name, split, snapshot)


def _at_server(text: str) -> tuple[str, str]:
    """The address of a server, and the name of a dataset."""
    at, _, name = text.partition("#")
    parts = urlsplit(at)
    if not name and parts.scheme != "grpc+unix":
        name = parts.path.strip("/")
        at = f"{parts.scheme}://{parts.netloc}"
    if not name:
        raise InvalidRequest(
            f"source: got {text!r}, want the name of a dataset, too: grpc://HOST:PORT/NAME or grpc+unix:///SOCKET#NAME"
        )
    return at, name


def _local(path: str) -> str:
    """The whole path of a folder, a file or a pattern."""
    if not Path(path).expanduser().exists() and not any(rune in path for rune in "*?[{"):
        raise NotFound(f"source: there is no folder or file {path!r}")
    return absolute(path)


def absolute(path: str) -> str:
    """A path from the root, in which `~` is the home directory and no part is `..`."""
    found = Path(path).expanduser().absolute()
    if ".." in found.parts:  # the parent of a link is the parent of its target
        above = len(found.parts) - found.parts[::-1].index("..")
        found = Path(os.path.realpath(Path(*found.parts[:above])), *found.parts[above:])
    return os.path.normpath(found)


def _patient(client: Client, name: str, split: str | None, snapshot: int | str | None) -> Dataset:
    """A dataset of a server that this package starts. One that is about to end answers no call: the next one does."""
    end = time.monotonic() + _AGAIN
    while True:
        try:
            return client.dataset(name, split=split, snapshot=snapshot)
        except Unavailable:  # noqa: PERF203 - it is rare
            if time.monotonic() > end:
                raise
            sleep(_POLL)
