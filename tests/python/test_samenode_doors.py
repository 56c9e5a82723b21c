"""Shared memory beside TLS, tokens and rules: who gets blobs by it gets what the rules let through, and no more."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import bowstring as package  # a fixture has its name
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from bowstring import _samenode
from node import Node
from pki import Authority

Run = Callable[..., subprocess.CompletedProcess[str]]

ROWS, SIZE = 40, 16_000
RULES = """
rules:
  - {principals: [root], datasets: ["*"], rights: [admin]}
  - {principals: [alice], datasets: [seen], rights: [read], where: "label < 5", columns: [id, label, image]}
"""


def image(row: int) -> bytes:
    return f"sample {row:04} ".encode() * (SIZE // 12)


def test_rules_hold(binary: Path, bowstring: Run, tmp_path: Path) -> None:
    authority, tokens, rules = Authority(tmp_path / "pki"), tmp_path / "tokens.json", tmp_path / "rules.yaml"
    cert, key = authority.server()
    rules.write_text(RULES)
    admin, alice = (
        bowstring("token", "create", "--tokens", tokens, "--principal", who).stdout.strip() for who in ("root", "alice")
    )
    flags = ["--tls-cert", cert, "--tls-key", key, "--tokens", tokens, "--rules", rules, "--local", tmp_path / "socket"]
    with Node(binary, tmp_path / "store", *map(str, flags)) as node:
        table = pa.table(
            {
                "name": [f"{i:04}.jpg" for i in range(ROWS)],
                "label": pa.array([i % 10 for i in range(ROWS)], pa.int64()),
                "image": pa.array([image(i) for i in range(ROWS)], pa.large_binary()),
            }
        )
        options = fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {admin}".encode())])
        with fl.connect(node.url, tls_root_certs=authority.root) as client:
            for dataset in ("seen", "hidden"):
                command = f'{{"put": {{"dataset": "{dataset}", "key": "name", "blobs": ["image"]}}}}'
                writer, _ = client.do_put(fl.FlightDescriptor.for_command(command), table.schema, options=options)
                writer.write_table(table)
                writer.close()
        others = set(_samenode._rings)
        with package.connect(node.url, token=alice, tls_root_certs=authority.root) as client:
            with client.dataset("seen").columns(["label", "image"]).batches(ROWS) as batches:
                (batch,) = batches
                assert batches.place is not None
                assert batches.place["transport"] == "shared"
            allowed = [i for i in range(ROWS) if i % 10 < 5]
            assert sorted(batch["image"].to_pylist()) == [image(i) for i in allowed]
            (ring,) = set(_samenode._rings) - others
            for row in range(ROWS):
                assert (ring._memory.find(f"sample {row:04} ".encode()) >= 0) == (row in allowed)
            with pytest.raises(package.NotFound):
                next(iter(client.dataset("hidden").columns(["image"]).batches(ROWS)))
        with (
            package.connect(node.url, token="wrong", tls_root_certs=authority.root) as client,
            pytest.raises(package.Unauthenticated),
        ):
            next(iter(client.dataset("seen").columns(["image"]).batches(ROWS)))
