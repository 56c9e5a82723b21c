"""Pictures of the console with running jobs, for the pages: make screenshots.

    python tests/screenshots.py PROGRAMS INTO

Writes INTO/VIEW-{light,dark}.webp. The server is `bowstring-lab serve` with a round trip to its store, so that the
jobs wait for something.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import chromium
import photos
import pyarrow as pa
import pyarrow.flight as fl
from node import Node
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright
from wire import PATIENCE, put, ticket

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
WIDTH, HEIGHT = 1280, 800
MOST_BYTES = 150_000
FILLED_MS = 80_000  # the graph of the live view has something to show
SETTLE_MS = 2_500  # two events of the live view, and thumbnails
QUALITY = 82


class View(NamedTuple):
    """A view that a picture shows."""

    name: str
    path: str
    shows: list[str]  # names of its regions
    acts: Callable[[Page], object]


def explained(page: Page) -> None:
    page.get_by_label("Epochs", exact=True).fill("3")
    page.get_by_role("button", name="Explain").click()
    expect(page.get_by_role("region", name="Prediction")).to_be_visible()


def wide(page: Page) -> None:
    page.get_by_label("Where").fill("width >= 500 and position % 13 == 0")
    page.keyboard.press("Enter")
    expect(page.locator(".tile img").first).to_be_visible()


VIEWS = [
    View("live", "#/live", ["Figures", "Where time goes", "Jobs", "Streams"], lambda page: page),
    View("samples", "#/dataset/photos/samples", ["Samples"], wide),
    View("values", "#/dataset/photos/values", ["label", "width"], lambda page: page),
    View("explain", "#/dataset/photos/explain", ["Prediction", "Epochs, and more nodes"], explained),
]


def shown(page: Page, url: str, view: View) -> None:
    """Open a view, and wait for what it shows."""
    page.goto(url + view.path)
    view.acts(page)
    for region in view.shows:
        expect(page.get_by_role("region", name=region, exact=True)).to_be_visible()


def admin_of(log: Path) -> str:
    """Find the address of the console in a server's log."""
    line = next(line for line in log.read_text().splitlines() if "the admin listener answers" in line)
    return line.split("address=")[1].split()[0] + "/console/"


@contextmanager
def jobs(url: str) -> Iterator[None]:
    """Two jobs: one on two ranks, whose training is the limit, and one that waits for the store."""
    ended = threading.Event()

    def rank(tenant: bytes, pause: float, **request: object) -> None:
        options = fl.FlightCallOptions(headers=[(b"bowstring-tenant", tenant)])
        with fl.connect(url) as client:
            reader = client.do_get(ticket(epochs=10_000, **request), options)
            while not ended.wait(pause):
                reader.read_chunk()
            reader.cancel()

    train = {"dataset": "photos", "split": "train", "batch": 8, "shuffle": {"seed": 7, "epoch": 0}}
    text = {"dataset": "captions", "batch": 8, "shuffle": {"seed": 1, "epoch": 0}}
    threads = [
        *(
            threading.Thread(target=rank, args=(b"vision", 0.12), kwargs={**train, "world": {"size": 2}, "rank": n})
            for n in (0, 1)
        ),
        threading.Thread(target=rank, args=(b"language", 0.01), kwargs=text),
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def take(browser: Browser, url: str, into: Path) -> None:
    """Write the pictures of all views."""
    for scheme, view in itertools.product(SCHEMES, VIEWS):
        context = browser.new_context(
            viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme, reduced_motion="reduce"
        )
        page = context.new_page()
        shown(page, url, view)
        first = view is VIEWS[0] and scheme == SCHEMES[0]  # the server keeps history while the live view is open
        page.wait_for_timeout(FILLED_MS if first else SETTLE_MS)
        picture = Image.open(io.BytesIO(page.screenshot()))
        picture.save(into / f"{view.name}-{scheme}.webp", quality=QUALITY, method=6)
        context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("programs", type=Path, help="folder of bowstring and bowstring-lab")
    parser.add_argument("into", type=Path, help="folder of the pictures")
    args = parser.parse_args()
    expect.set_options(timeout=1000 * PATIENCE)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for _ in photos.write_all(folder / "photos", 600, workers=2):
            pass
        store, log = folder / "store", folder / "log"
        for words in (["import", folder / "photos", "photos"], ["tag", "photos@1", "prod"]):
            subprocess.run([args.programs / "bowstring", *words, "--store", store], check=True, capture_output=True)
        flags = ["--admin=127.0.0.1:0", f"--spill={folder / 'spill'}", "--spill-bytes=40MiB", "--rtt=10ms"]
        with Node(args.programs / "bowstring-lab", store, *flags, log=log) as node, sync_playwright() as playwright:
            with fl.connect(node.url) as client:
                texts = [f"caption {n} ".encode() * 200 for n in range(5_000)]
                rows = pa.table({"key": range(5_000), "caption": pa.array(texts, pa.large_binary())})
                put(client, rows, dataset="captions", key="key", blobs=["caption"])
                rates = {"store": {"latency_ms": 10, "bytes_per_s": 100_000_000}}
                list(client.do_action(("calibrate", json.dumps({"rates": rates}).encode())))
            browser = playwright.chromium.launch(executable_path=chromium.install(), args=["--no-sandbox"])
            with jobs(node.url):
                take(browser, admin_of(log), args.into)


if __name__ == "__main__":
    main()
