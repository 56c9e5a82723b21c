"""Reads what `govulncheck -format json` found in a program, and says what has to be done.

    vulnerabilities.py GO_MOD < findings

A finding counts if the program contains a vulnerable function. The fix for a module is a newer version in GO_MOD. The
fix for Go itself is a newer toolchain. Releases are built with the one that GO_MOD names, so a finding counts if that
is too old. A fix that only the Go on this machine lacks is reported and does not count. The status is 1 if a finding
counts.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO


class Finding(NamedTuple):
    advisory: str
    module: str
    version: str
    fixed: str
    summary: str


def messages(text: str) -> Iterator[dict[str, Any]]:
    """Gives the JSON objects that stand one after the other in a text."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        message, at = decoder.raw_decode(text, at)
        yield message


def findings(text: str) -> list[Finding]:
    """Gives each advisory once, for each module of which the program contains a vulnerable function."""
    summaries: dict[str, str] = {}
    found: dict[tuple[str, str], Finding] = {}
    scanned = False
    for message in messages(text):
        scanned = scanned or "SBOM" in message
        if (osv := message.get("osv")) is not None:
            summaries[osv["id"]] = osv.get("summary", "")
        if (finding := message.get("finding")) is None:
            continue
        place = finding["trace"][0]
        if "function" not in place:
            continue  # the program has the module, and not what is wrong in it
        found[finding["osv"], place["module"]] = Finding(
            finding["osv"], place["module"], place.get("version", ""), finding.get("fixed_version", ""), ""
        )
    if not scanned:
        raise SystemExit("vulnerabilities.py: the input has no scan of a program")
    return [f._replace(summary=summaries.get(f.advisory, "")) for f in found.values()]


def version(text: str) -> tuple[int, ...]:
    """Gives the numbers of a version: go1.26.10 is 1, 26, 10."""
    return tuple(int(n) for n in re.findall(r"\d+", text)[:3])


def counts(finding: Finding, toolchain: str) -> bool:
    """Reports whether a release has the vulnerability."""
    if finding.module != "stdlib":
        return True
    return not finding.fixed or version(finding.fixed) > version(toolchain)


def report(text: str, go_mod: str, out: TextIO) -> int:
    """Writes what was found, and gives how many findings count."""
    named = re.search(r"^toolchain (\S+)", go_mod, re.MULTILINE)
    if named is None:
        raise SystemExit("vulnerabilities.py: go.mod names no toolchain")
    number = 0
    for f in findings(text):
        if counts(f, named[1]):
            number += 1
            fix = f"go.mod needs {f.fixed} of it" if f.fixed else "no version without it is known"
            if f.module == "stdlib" and f.fixed:
                fix = f"go.mod needs the toolchain {f.fixed.replace('v', 'go')} in place of {named[1]}"
            out.write(f"{f.advisory}: {f.module} {f.version}: {f.summary}: {fix}\n")
        else:
            out.write(f"{f.advisory}: only the Go of this machine has it; releases are built with {named[1]}\n")
    return number


if __name__ == "__main__":
    sys.exit(report(sys.stdin.read(), Path(sys.argv[1]).read_text(), sys.stdout) > 0)
