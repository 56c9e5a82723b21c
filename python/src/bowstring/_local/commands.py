"""`bowstring ps` and `bowstring stop`: the servers that this package has started for the user on this machine."""

from __future__ import annotations

import argparse
import json
import sys

from bowstring._local import servers as own


def main(arguments: list[str]) -> int:
    """Run a command by its arguments."""
    parser = argparse.ArgumentParser(prog="bowstring", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    ps = commands.add_parser("ps", help="list the servers that run")
    ps.add_argument("--json", action="store_true", help="print a JSON object for each server, one a line")
    stop = commands.add_parser("stop", help="end them, and what they are sending")
    stop.add_argument("store", nargs="*", help="only those of these stores, as ps lists them")
    given = parser.parse_args(arguments)
    return _list(as_json=given.json) if given.command == "ps" else _stop(given.store)


def _list(*, as_json: bool) -> int:
    found = [(pid, server) for server in own.known() if (pid := server.running()) is not None]
    if as_json:
        for pid, server in found:
            print(json.dumps({"pid": pid, "store": server.store, "address": server.uri, "log": str(server.log)}))
        return 0
    if not found:
        print("no server runs that bowstring.open has started", file=sys.stderr)
        return 0
    rows = [("PID", "STORE", "ADDRESS", "LOG")]
    rows += [(str(pid), server.store, server.uri, str(server.log)) for pid, server in found]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _stop(stores: list[str]) -> int:
    servers = own.known()
    unknown = set(stores) - {server.store for server in servers}
    if unknown:
        print(f"bowstring: no server is of {', '.join(sorted(unknown))}; bowstring ps lists them", file=sys.stderr)
        return 1
    for server in servers:
        if (not stores or server.store in stores) and server.stop():
            print(f"stopped {server.store}")
    return 0
