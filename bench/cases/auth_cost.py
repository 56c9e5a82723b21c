"""auth_cost: the cost of tokens and rules, compared with a server that has neither."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pyarrow.flight as fl
from harness import Context, Figure, Readers, Result, emit, median
from node import Node
from samples import COUNT, SIZE
from sizes import sized

from .loopback import stored, ticket

PASSES = sized(3, smoke=1)  # epochs that a round reads
INFO_S = sized(1.0, smoke=0.1)  # how long a round asks for infos
OTHERS = 100  # rules that are for others, and looked at before the one that is for the caller


def rules(path: Path) -> Path:
    """Rules whose last one is for the caller, and has a where and columns; the where is true of all rows."""
    lines = [f"  - {{principals: [someone-{i}], datasets: ['team-{i}-*'], rights: [read]}}" for i in range(OTHERS)]
    sees = "where: 'label >= 0', columns: [id, label, image]"
    lines.append(f"  - {{principals: [bench], datasets: ['ben*'], rights: [read], {sees}}}")
    path.write_text("\n".join(["rules:", *lines, ""]))
    return path


def first_batch(url: str, epoch: int, environment: dict[str, str]) -> float:
    """Milliseconds from DoGet to the first batch of an epoch that was not requested before."""
    return 1000 * Readers(url, [ticket(1000 + epoch)], 0, **environment).run()["first_batch_s"]


def infos(url: str, options: fl.FlightCallOptions) -> float:
    """GetFlightInfo calls a second, one after another."""
    descriptor = fl.FlightDescriptor.for_command(json.dumps({"dataset": "bench", "batch": 64}))
    with fl.connect(url) as client:
        client.get_flight_info(descriptor, options)
        start, calls = time.perf_counter(), 0
        while time.perf_counter() - start < INFO_S:
            client.get_flight_info(descriptor, options)
            calls += 1
        return calls / (time.perf_counter() - start)


def run(context: Context) -> Result:
    """Interleave a server that knows its callers with one that does not."""
    tokens = context.folder / "auth-tokens.json"
    token = context.bowstring("token", "create", "--tokens", tokens, "--principal", "bench").strip()
    flags = [f"--tokens={tokens}", f"--rules={rules(context.folder / 'auth-rules.yaml')}"]
    rates: dict[str, list[float]] = {"open": [], "known": []}
    firsts: dict[str, list[float]] = {"open": [], "known": []}
    asked: dict[str, list[float]] = {"open": [], "known": []}
    shares: list[float] = []
    infos_shares: list[float] = []
    with (
        Node(context.binary, stored(context)) as anybody,
        Node(context.binary, stored(context, "store-known"), *flags) as known,
    ):
        header = [(b"authorization", f"Bearer {token}".encode())]
        sides = {
            "open": (anybody.url, {}, fl.FlightCallOptions()),
            "known": (known.url, {"BOWSTRING_TOKEN": token}, fl.FlightCallOptions(headers=header)),
        }
        for url, environment, _ in sides.values():  # warm
            Readers(url, [ticket(0)], 1, **environment).run()
        for turn in context.repeat(shares, infos_shares):
            for side in ["open", "known"] if turn % 2 else ["known", "open"]:
                url, environment, options = sides[side]
                got = Readers(url, [ticket(turn)], PASSES, **environment).run()
                rates[side].append(COUNT * PASSES * SIZE / 1e9 / got["seconds"])
                firsts[side].append(first_batch(url, turn, environment))
                asked[side].append(infos(url, options))
                emit(
                    case="auth_cost",
                    side=side,
                    gb_per_s=round(rates[side][-1], 3),
                    first_batch_ms=round(firsts[side][-1], 2),
                    info_per_s=round(asked[side][-1], 1),
                )
            shares.append(rates["known"][-1] / rates["open"][-1])
            infos_shares.append(asked["known"][-1] / asked["open"][-1])
    return Result(
        "auth_cost",
        [
            Figure("share", shares),
            Figure("first_batch_ms", median(firsts["known"]) - median(firsts["open"])),
            Figure("info_per_s", infos_shares),
        ],
        {"first_batch_open_ms": round(median(firsts["open"]), 2), "infos_open": round(median(asked["open"]), 1)},
    )
