"""The result of the check for known vulnerabilities, by findings."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
import vulnerabilities

GO_MOD = "module x\n\ngo 1.26.0\n\ntoolchain go1.26.10\n"


def scan(*found: dict[str, Any]) -> str:
    parts: list[dict[str, Any]] = [{"SBOM": {"go_version": "go1.26.8"}}]
    for f in found:
        parts += [{"osv": {"id": f["osv"], "summary": "something bad"}}, {"finding": f}]
    return "\n".join(json.dumps(p, indent=2) for p in parts)


def finding(module: str, fixed: str, function: str | None = "Read") -> dict[str, Any]:
    place = {"module": module, "version": "v1.0.0"} | ({"function": function} if function else {})
    return {"osv": "GO-1", "fixed_version": fixed, "trace": [place]}


@pytest.mark.parametrize(
    ("found", "number", "says"),
    [
        ([], 0, ""),
        ([finding("example.org/m", "v1.2.7")], 1, "go.mod needs v1.2.7 of it"),
        ([finding("example.org/m", "")], 1, "no version without it is known"),
        ([finding("example.org/m", "v1.2.7", None)], 0, ""),
        ([finding("stdlib", "v1.26.9")], 0, "only the Go of this machine"),
        ([finding("stdlib", "v1.26.10")], 0, "only the Go of this machine"),
        ([finding("stdlib", "v1.26.11")], 1, "go.mod needs the toolchain go1.26.11 in place of go1.26.10"),
        ([finding("stdlib", "")], 1, "no version without it is known"),
        ([finding("example.org/m", "v1.2.7")] * 3, 1, "something bad"),
    ],
)
def test_findings(found: list[dict[str, Any]], number: int, says: str) -> None:
    out = io.StringIO()
    assert vulnerabilities.report(scan(*found), GO_MOD, out) == number
    assert says in out.getvalue()
    assert bool(says) == bool(out.getvalue())


def test_no_scan() -> None:
    with pytest.raises(SystemExit, match="no scan of a program"):
        vulnerabilities.report('{"config": {}}', GO_MOD, io.StringIO())


def test_no_toolchain() -> None:
    with pytest.raises(SystemExit, match="names no toolchain"):
        vulnerabilities.report(scan(), "module x\n\ngo 1.26.0\n", io.StringIO())
