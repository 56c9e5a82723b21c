"""A bucket as if it were far away: `bowstring-lab objects` serves a directory as S3, and links stand before it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness import Context, lab
from nodes import Links, Wire

# The server of S3 looks at no signatures, but they are made, as everywhere.
KEY = "bench"
os.environ.update(AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=2 * KEY, AWS_EC2_METADATA_DISABLED="true")


@contextlib.contextmanager
def served(binary: Path, root: Path, *options: str | Path) -> Iterator[str]:
    """The URL of a server of S3; each directory in root is a bucket."""
    command = [lab(binary), "objects", "--root", root, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            url = server.stdout.readline().strip() if server.stdout else ""
            if not url:
                raise RuntimeError("the server of S3 did not start")
            yield url
        finally:
            server.terminate()


@contextlib.contextmanager
def linked(binary: Path, url: str, links: Mapping[str, float | Wire | None]) -> Iterator[dict[str, str]]:
    """The server's URL by the name of the link that leads to it, or that of its round trip in ms; None is no link."""
    proxies = Links(binary)
    try:
        found = {}
        for name, link in links.items():
            found[name] = url
            if link is not None:
                proxies.link(name, link if isinstance(link, Wire) else Wire(link))
                found[name] = f"http://{proxies.proxy(name, name, url.removeprefix('http://'))}"
        yield found
    finally:
        proxies.close()


def attach(context: Context, store: Path, url: str, place: str, name: str) -> None:
    """Attach the objects under BUCKET/PREFIX, at a server of S3, as a dataset."""
    context.bowstring("attach", "--store", store, f"s3://{place}?endpoint={url}", name)
