"""spill: what hits cost beside the same from a local store, what filling costs a stream, and how long opening takes."""

from __future__ import annotations

from cassandra_node import stored as in_cassandra
from cassandra_node import warm
from harness import (
    CASSANDRA,
    Context,
    Figure,
    Readers,
    Result,
    Stream,
    TimedReaders,
    cpu_seconds,
    emit,
    go_benchmark,
    median,
    needs,
    shuffled,
)
from node import Node
from samples import COUNT, SIZE
from server import Server, spill
from sizes import sized

from .loopback import read, stored, ticket

RTT = "20ms"  # to the store from which the spill has all; nothing is read from it then
FILLED = sized(16_000, smoke=320)  # photographs that a spill is filled with: an epoch of some seconds
SETTLED = 0.2  # part of the epoch after which its throughput is taken
AT_MOST_S = 300  # for an epoch
# Epochs of a stream whose hits are measured: before each stream its catalog is asked, 20 ms away.
AT_ONCE = sized(3, smoke=1)
EPOCHS = 10  # in which a spill with room for all has all
HEDGED = sized(0.001, smoke=1.0)  # part of the hits at most that are not back in time, so that the store is asked, too


def fill(server: Server) -> None:
    """Read epochs until the spill has all."""
    for epoch in range(EPOCHS):
        Readers(server.url, [ticket(epoch)]).run()
        if server.fetched()["spill"]["entries"] == COUNT:
            return
    raise RuntimeError(f"after {EPOCHS} epochs the spill has not all {COUNT} photographs: {server.fetched()['spill']}")


def hits(context: Context) -> tuple[list[dict[str, dict[str, float]]], list[list[float]], list[float]]:
    """The time to read from a full spill and from a local store, by pair of servers, with one connection and two.

    And the ratios of their throughput by connections, and of both with one where each epoch is a stream of its own.

    Each round has a spill of its own: where its pages happen to be accounts for as much as a tenth.
    """
    found: list[dict[str, dict[str, float]]] = []
    ratios: dict[int, list[float]] = {1: [], 2: []}
    opening: list[float] = []
    order = ["local", "spill"]
    for _ in context.repeat(*ratios.values()):
        order.reverse()  # neither is always the second
        with (
            spill(context.folder, 1.5 * COUNT) as flags,
            Server(context.binary, stored(context, "store-far"), *flags, rtt=RTT) as far,
            Node(context.binary, stored(context)) as local,
        ):
            fill(far)
            sides = {"local": local, "spill": far}
            for node in sides.values():  # warms
                read(node.url, 2, node.pid)
            before = far.fetched()
            for connections in (1, 2):
                got = {name: read(sides[name].url, connections, sides[name].pid, AT_ONCE) for name in order}
                for name, figures in got.items():
                    emit(case="spill", side=name, connections=connections, **figures)
                found.append(got)
                ratios[connections].append(got["spill"]["gb_per_s"] / got["local"]["gb_per_s"])
            alone = {name: read(sides[name].url, 1, sides[name].pid) for name in order}
            for name, figures in alone.items():
                emit(case="spill", side=name, connections=1, epochs_of_a_stream=1, **figures)
            opening.append(alone["spill"]["gb_per_s"] / alone["local"]["gb_per_s"])
            after = far.fetched()
        reads = after["reads"] - before["reads"]
        if reads > HEDGED * (after["spill"]["hits"] - before["spill"]["hits"]):
            raise RuntimeError(f"{reads} reads were no hits: {after['spill']}")
    return found, list(ratios.values()), opening


def settled(stream: Stream) -> float:
    """MB/s of an epoch after its beginning."""
    first = int(len(stream.marks) * SETTLED)
    begin, end = stream.marks[first][0], stream.marks[-1][0]
    return sum(size for _, _, size in stream.marks[first + 1 :]) / 1e6 / (end - begin)


def epoch(context: Context, uri: str, number: int, flags: list[str]) -> float:
    """MB/s of an epoch from Cassandra with a new server."""
    with Server(context.binary, uri, *flags, rtt="0ms") as server:
        one = {"ticket": shuffled(seed=7, epoch=number, epochs=1, dataset="fill")}
        readers = TimedReaders(server.url, AT_MOST_S, [one])
        before = cpu_seconds(server.pid)
        (stream,) = readers.run()
        if stream.rows != FILLED:
            raise RuntimeError(f"{stream.rows} rows instead of {FILLED}")
        cpu = (cpu_seconds(server.pid) - before) / (FILLED * SIZE / 1e9)
        there = server.fetched()["spill"]["entries"] if flags else 0  # except those that are being written
        emit(
            case="spill", filling=bool(flags), mb_per_s=settled(stream), server_cpu_s_per_gb=cpu, stored=there / FILLED
        )
        return settled(stream)


def fill_cost(context: Context) -> list[float]:
    """The part of a stream's throughput from Cassandra that filling a new spill takes."""
    costs = []
    with in_cassandra(context, fill=FILLED) as node:
        emit(case="spill", warm_mb_per_s=[round(r) for r in warm(context.binary, node.uri())])
        epoch(context, node.uri(), 0, [])  # these tables have not been read yet
        for round_ in context.repeat():
            rates = {}
            for filling in (False, True) if round_ % 2 else (True, False):
                with spill(context.folder, 1.5 * FILLED) as flags:
                    rates[filling] = epoch(context, node.uri(), round_, flags if filling else [])
            costs.append(1 - rates[True] / rates[False])
    return costs


@needs(CASSANDRA)
def run(context: Context) -> Result:
    """Hits from memory far away, filling from Cassandra, opening by the package's own benchmark."""
    found, ratios, opening = hits(context)
    cpu = {name: median(got[name]["server_cpu_s_per_gb"] for got in found) for name in ("spill", "local")}
    cost = fill_cost(context)
    metrics = go_benchmark(context, "spill", "./spill", "BenchmarkOpenMillion", "-benchtime", "2x", "-count", "3")
    return Result(
        "spill",
        [
            Figure("ratio_to_local", min(ratios, key=median)),
            Figure("server_cpu_s_per_gb", cpu["spill"]),
            Figure("fill_cost", cost),
            Figure("open_s", [ns / 1e9 for ns in metrics["ns/op"]]),
        ],
        {
            "ratio_1conn": round(median(ratios[0]), 3),
            "ratio_2conn": round(median(ratios[1]), 3),
            "ratio_by_epoch": round(median(opening), 3),
            "local_cpu_s_per_gb": round(cpu["local"], 3),
        },
    )
