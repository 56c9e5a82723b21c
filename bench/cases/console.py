"""console: how soon a change is seen, what the page weighs, how true its figures are, and what ten viewers cost."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pyarrow.flight as fl
from harness import Context, Figure, Load, Result, emit, shuffled
from node import Node
from ports import free_port
from sizes import sized

from .loopback import stored, ticket
from .observe import read

VIEWERS = sized(10, smoke=2)
SECONDS = sized(15.0, smoke=2.0)


def fetch(url: str) -> bytes:
    """The bytes that a browser is sent, compressed."""
    request = urllib.request.Request(url, headers={"Accept-Encoding": "gzip"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=180) as answer:  # noqa: S310
        body: bytes = answer.read()
    return body


def weight(url: str) -> float:
    """KB of the page and all that it names, compressed."""
    page = fetch(url)
    total, seen = len(page), set[str]()
    todo = re.findall(r'(?:src|href)="([^"#]+)"', gzip.decompress(page).decode())
    while todo:
        name = todo.pop().removeprefix("./")
        if name in seen:
            continue
        seen.add(name)
        body = fetch(url + name)
        total += len(body)
        todo += re.findall(r'from "\./([^"]+)"', gzip.decompress(body).decode())
    return total / 1000


def views(url: str, done: threading.Event) -> Iterator[dict[str, Any]]:
    """The events that a viewer is sent, until done is set."""
    with urllib.request.urlopen(url + "api/live", timeout=180) as answer:  # noqa: S310
        event = b""
        for line in answer:
            if done.is_set():
                return
            if line.startswith(b"event: "):
                event = line[7:].strip()
            elif line.startswith(b"data: ") and event == b"view":
                yield json.loads(line[6:])


@contextlib.contextmanager
def watched(url: str, viewers: int) -> Iterator[None]:
    """Have some viewers."""
    done = threading.Event()

    def work() -> None:
        for _ in views(url, done):
            pass

    workers = [threading.Thread(target=work) for _ in range(viewers)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        done.set()
        for worker in workers:
            worker.join()


def visible(node: Node, url: str) -> float:
    """Seconds from a stream's beginning until a viewer is sent it."""
    done = threading.Event()
    viewer = views(url, done)
    next(viewer)
    with fl.connect(node.url) as client:
        began = time.monotonic()
        reader = client.do_get(fl.Ticket(json.dumps({**json.loads(ticket(0)), "epochs": 1000}).encode()))
        for view in viewer:
            if view["streams"]:
                break
        took = time.monotonic() - began
        reader.cancel()
    viewer.close()  # type: ignore[attr-defined]
    return took


def difference(node: Node, url: str) -> float:
    """How far the page's rate of rows is from that of stats over as good as the same time, as a share."""
    done = threading.Event()
    rows, seconds = 0.0, 0.0
    with fl.connect(node.url) as client:

        def stats() -> int:
            (result,) = client.do_action(fl.Action("stats", b""))
            total: int = json.loads(result.body.to_pybytes())["server"]["rows"]
            return total

        viewer = views(url, done)
        while not next(viewer)["rows_per_s"]:
            pass
        before, began = stats(), time.monotonic()
        while seconds < SECONDS:
            view = next(viewer)
            rows += view["rows_per_s"] * view["seconds"]
            seconds += view["seconds"]
        counted = (stats() - before) / (time.monotonic() - began)
        viewer.close()  # type: ignore[attr-defined]
    emit(case="console", reported=round(rows / seconds), counted=round(counted))
    return abs(rows / seconds - counted) / counted


def run(context: Context) -> Result:
    """Interleave reads with and without viewers."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/console/"
    ratios: list[float] = []
    with Node(context.binary, stored(context, "store-console"), f"--admin=127.0.0.1:{port}") as node:
        seen = max(visible(node, url) for _ in range(sized(3, smoke=1)))
        with Load(node.url, 1, [{"ticket": shuffled(seed=7), "reads": True}]):
            off = difference(node, url)
        for turn in context.repeat(ratios):
            rates = {}
            for viewers in (0, VIEWERS) if turn % 2 else (VIEWERS, 0):
                with watched(url, viewers):
                    rates[viewers] = read(node.url)
            ratios.append(rates[VIEWERS] / rates[0])
            emit(case="console", ratio=round(ratios[-1], 3))
        kb = weight(url)
    return Result(
        "console",
        [
            Figure("visible_s", seen),
            Figure("kb_gzipped", kb),
            Figure("difference", off),
            Figure("cost", [1 - ratio for ratio in ratios]),
        ],
        {"viewers": VIEWERS, "ratios": ratios},
    )
