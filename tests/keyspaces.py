"""Keyspaces of a real Cassandra that a test file has to itself, and stores in them."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.policies import RoundRobinPolicy
from wire import PATIENCE

# Limits of a store's address for connecting and for a statement, instead of 5 and 10 s.
PATIENT = "&connect=120s&timeout=60s"
Bowstring = Callable[..., subprocess.CompletedProcess[str]]
NUMBERS = itertools.count()  # no name is used again: what was dropped a moment ago may still be on its way out


class Keyspace(NamedTuple):
    """A keyspace that no other test uses."""

    address: str  # HOST:PORT
    name: str

    def uri(self, parameters: str = "") -> str:
        """The address of a store in it."""
        return f"cql://{self.address}/{self.name}?conns=2{PATIENT}{parameters}"


def driver(cassandra: str) -> Cluster:
    """The driver that other programs use. Its own limits are 2 to 10 s, which a node on a busy machine exceeds."""
    host, _, port = cassandra.rpartition(":")
    return Cluster(
        [host],
        port=int(port),
        protocol_version=4,
        execution_profiles={EXEC_PROFILE_DEFAULT: ExecutionProfile(RoundRobinPolicy(), request_timeout=PATIENCE)},
        connect_timeout=PATIENCE,
        control_connection_timeout=PATIENCE,
        max_schema_agreement_wait=PATIENCE,
        idle_heartbeat_timeout=PATIENCE,
    )


@pytest.fixture(scope="module")
def cql(cassandra: str) -> Iterator[Session]:
    """A session of the driver that other programs use."""
    with driver(cassandra) as cluster:
        yield cluster.connect()


@pytest.fixture(scope="module")
def new_keyspace(cassandra: str, cql: Session) -> Iterator[Callable[[], Keyspace]]:
    """Name keyspaces, and drop them at the end: a server of this size has room for few."""
    names: list[str] = []

    def begin() -> Keyspace:
        names.append(f"py{os.getpid()}_{next(NUMBERS)}")
        return Keyspace(cassandra, names[-1])

    yield begin
    for name in names:
        cql.execute(f"DROP KEYSPACE IF EXISTS {name}")


@pytest.fixture(scope="module")
def new_store(new_keyspace: Callable[[], Keyspace], bowstring: Bowstring) -> Callable[[], Keyspace]:
    """Make stores in keyspaces of their own."""

    def begin() -> Keyspace:
        keyspace = new_keyspace()
        bowstring("store", "init", "--replication", "1", "--store", keyspace.uri())
        return keyspace

    return begin


def rows_of(cql: Session, keyspace: Keyspace, table: str) -> int:
    """Count the rows of a table."""
    return int(cql.execute(f"SELECT count(*) FROM {keyspace.name}.{table}").one()[0])  # noqa: S608
