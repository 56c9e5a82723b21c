"""No other process gets a port between its choice and the start of the server that listens on it."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import ports
import pytest


def test_no_connection_gets_it_by_chance() -> None:
    """Except on a machine where connections may use any port."""
    first = ports.first_given()
    found = {ports.free_port() for _ in range(20)}
    assert all(port < first for port in found) or first <= ports.LEAST
    assert len(found) > 1


def test_a_system_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ports, "RANGE", tmp_path / "nothing")
    assert ports.LEAST <= ports.free_port() < ports.IANA


def test_no_process_listens_there(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = ports.free_port()
    other = next(port for port in iter(ports.free_port, None) if port != taken)
    with socket.socket() as s:
        s.bind(("127.0.0.1", taken))
        s.listen()
        monkeypatch.setattr(random, "sample", lambda *_: [taken, other])
        assert ports.free_port() == other
        monkeypatch.setattr(random, "sample", lambda *_: [taken])
        assert ports.free_port() != taken
