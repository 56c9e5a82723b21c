"""Ports that servers are told to listen on are those that nobody else gets meanwhile."""

from __future__ import annotations

import random
import socket

import ports
import pytest


def test_no_connection_gets_it_by_chance() -> None:
    """But for a machine on which connections may have any."""
    first = int(ports.RANGE.read_text().split()[0])
    found = {ports.free_port() for _ in range(20)}
    assert all(port < first for port in found) or first <= ports.LEAST
    assert len(found) > 1


def test_nobody_listens_there(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = ports.free_port()
    other = next(port for port in iter(ports.free_port, None) if port != taken)
    with socket.socket() as s:
        s.bind(("127.0.0.1", taken))
        s.listen()
        monkeypatch.setattr(random, "sample", lambda *_: [taken, other])
        assert ports.free_port() == other
        monkeypatch.setattr(random, "sample", lambda *_: [taken])
        assert ports.free_port() != taken
