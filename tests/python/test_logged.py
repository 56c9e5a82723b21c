"""Actions that a client takes by itself are logged: once each time, and not with every batch."""

from __future__ import annotations

import logging
import multiprocessing
from pathlib import Path

import bowstring
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from conftest import StartNode
from cutter import Cut, Cutter, reset
from local_photos import photos
from node import Node

Logged = pytest.LogCaptureFixture


@pytest.fixture(autouse=True)
def everything(caplog: Logged) -> None:
    caplog.set_level(logging.DEBUG, "bowstring")


def said(caplog: Logged, level: int, text: str) -> int:
    """How many messages have a text. All of them have this level."""
    found = [r for r in caplog.records if r.name.split(".")[0] == "bowstring" and text in r.getMessage()]
    assert {r.levelno for r in found} <= {level}
    return len(found)


def test_a_stream_without_trouble_says_nothing(node: Node, caplog: Logged) -> None:
    for _ in photos(bowstring.connect(node.url)).batches(16):
        pass
    assert [r for r in caplog.records if r.levelno > logging.DEBUG] == []


def test_each_break_is_said_once(node: Node, caplog: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOWSTRING_LOCAL", "off")
    cut = Cut(2 << 20, 3, reset(2))
    with Cutter(node.port, cut) as proxy:
        for _ in photos(bowstring.connect(proxy.url)).batches(8):
            pass
        assert said(caplog, logging.WARNING, f"it broke off at {proxy.url}, and is opened again") == 3
    assert "stream of photos@1, rank 0" in caplog.text
    assert "HTTP/2 error 2" in caplog.text


def test_a_take_that_breaks_is_said_once(start: StartNode, caplog: Logged) -> None:
    own = start()
    with photos(bowstring.connect(own.url)).exchange() as rows:
        rows.take([1])
        own.kill()
        own.start(own.url.removeprefix("grpc://"))
        rows.take([1])
        rows.take([2])
    assert said(caplog, logging.WARNING, "a take broke off at") == 1


def test_memory_that_cannot_be_had_is_said_once(start: StartNode, tmp_path: Path, caplog: Logged) -> None:
    own = start("--local", str(tmp_path / "socket"), "--local-ring=16MiB")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BOWSTRING_LOCAL", str(tmp_path / "elsewhere"))
        client = bowstring.connect(own.url)
        for _ in range(3):
            for _ in photos(client).batches(16):
                pass
    assert said(caplog, logging.INFO, "batches come by TCP, as memory by") == 1


def test_memory_that_is_full_is_said_once(start: StartNode, tmp_path: Path, caplog: Logged) -> None:
    own = start("--local", str(tmp_path / "socket"), "--local-ring=16MiB")
    with photos(bowstring.connect(own.url)).batches(16, epochs=4) as batches:
        kept = list(batches)
    assert len(kept) > 40
    assert said(caplog, logging.INFO, "has no room, and batches come by TCP meanwhile") == 1


def test_small_batches_are_no_matter_of_room(start: StartNode, tmp_path: Path, caplog: Logged) -> None:
    own = start("--local", str(tmp_path / "socket"), "--local-ring=16MiB")
    for _ in photos(bowstring.connect(own.url)).columns(["label"]).batches(16):
        pass
    assert said(caplog, logging.INFO, "has no room") == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_is_said_once(node: Node, caplog: Logged) -> None:
    with photos(bowstring.connect(node.url)).batches(16) as batches:
        next(batches)
        child = multiprocessing.get_context("fork").Process(target=int)
        child.start()
        child.join()
        assert child.exitcode == 0
        for _ in batches:
            pass
    assert said(caplog, logging.DEBUG, "the process forks") == 1
    assert [r for r in caplog.records if r.levelno > logging.DEBUG] == []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_with_another_grpc_is_no_warning(start: StartNode, caplog: Logged) -> None:
    """A program that starts Ray, or another process, has no text on its screen for it."""
    own = start()
    bowstring.connect(own.url).ingest("uploaded", pa.table({"a": [1]}), progress=False)  # by gRPC
    with fl.connect(own.url) as other:
        list(other.list_actions())
        child = multiprocessing.get_context("fork").Process(target=int)
        child.start()
        child.join()
        assert child.exitcode == 0
    assert said(caplog, logging.DEBUG, "threads that are not") == 1
    assert [r for r in caplog.records if r.levelno > logging.DEBUG] == []
