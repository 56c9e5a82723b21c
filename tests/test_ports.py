"""No other process gets a port between its choice and the start of the server that listens on it."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from pathlib import Path

import ports
import pytest

BENCH = Path(ports.__file__).parent


def test_no_connection_gets_it_by_chance() -> None:
    """Except on a machine where connections may use any port."""
    first = ports.first_given()
    found = {ports.free_port() for _ in range(20)}
    assert all(port < first for port in found) or first <= ports.LEAST
    assert len(found) > 1


def test_a_system_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ports, "RANGE", tmp_path / "nothing")
    assert ports.LEAST <= ports.free_port() < ports.IANA


def test_no_call_gets_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while no server listens there yet, in this process and in another."""
    taken, other = ports.free_port(), ports.free_port()
    assert taken != other
    monkeypatch.setattr(random, "sample", lambda *_: [taken])
    assert ports.free_port() != taken
    code = f"import random; random.sample = lambda *_: [{taken}]; import ports; print(ports.free_port())"
    done = subprocess.run([sys.executable, "-c", code], cwd=BENCH, check=True, capture_output=True, text=True)
    assert int(done.stdout) != taken


def test_a_server_gets_it_twice() -> None:
    """A server that is killed begins again on the port, and meanwhile no other process gets it."""
    port = ports.free_port()
    for _ in range(2):
        with socket.create_server(("127.0.0.1", port)) as server, socket.create_connection(("127.0.0.1", port)):
            server.accept()[0].close()
        with socket.socket() as s, pytest.raises(OSError, match="in use"):
            s.bind(("127.0.0.1", port))
