"""Real nodes that are killed, stopped, cut off, and that leave and join, by a seed, while ranks read from them.

Each rank begins at a node of its own and goes on at another when its stream breaks, as a training job does that
resumes. Whatever happens, each epoch has each sample once, with its bytes.
"""

from __future__ import annotations

import collections
import random
import time
from dataclasses import dataclass, field
from typing import Any

from job import Ranks, job
from nodes import Member, Nodes

EVENTS = ("kill", "freeze", "cut", "hold", "leave")
SETTLED = 2.0  # after which others are as fast as before, seconds
COMPUTE = 0.02  # that a rank trains after each batch: the nodes have more than that to give


@dataclass
class Outcome:
    """The outcome of a job."""

    seed: int
    epochs: int = 0  # that all ranks have read to their ends
    lost: int = 0  # samples of those that no rank has had
    doubled: int = 0  # that came more than once, in any epoch
    wrong: int = 0  # that had other bytes
    broken: int = 0  # streams that ranks had to go on with elsewhere
    events: list[dict[str, Any]] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)  # how long it took after each event until all was whole
    others: list[float] = field(default_factory=list)  # throughput at other nodes, relative to that before


def churn(
    nodes: Nodes, seed: int, samples: int, events: int, longest: float = 4, *, stay_away: bool = False
) -> Outcome:
    """Cause `events` events, one after another, of up to `longest` seconds each.

    The job of an even seed is `assign: local`. With `stay_away` some of those that have gone come back only with the
    next event; until then the others have to find out that they are fewer, which takes the time of a lease.
    """
    rng = random.Random(seed)
    world = len(nodes.members)
    found = Outcome(seed)
    more = {} if seed % 2 else {"assign": "local"}
    with Ranks(nodes, job(seed, 32, world, **more), world, until=True, compute=COMPUTE) as ranks:
        ranks.go()
        time.sleep(1)
        for _ in range(events):
            found.events.append(happen(nodes, rng, longest, stay_away=stay_away))
            found.whole_s.append(round(nodes.whole(), 2))
            time.sleep(1)  # of what the next one is compared with
        for m in nodes.members:
            if not m.running:
                m.start()
        ranks.go()
        said = ranks.rest()
    judge(found, said, samples, world)
    for event in found.events:
        found.others += others(event, said, [m.name for m in nodes.members])
    return found


def happen(nodes: Nodes, rng: random.Random, longest: float, *, stay_away: bool) -> dict[str, Any]:
    """One event, and its end."""
    member: Member = rng.choice(nodes.members)
    what = rng.choice(EVENTS) if member.running else "join"
    if what in ("kill", "leave") and len(nodes.there()) == 1:
        what = "freeze"
    away = stay_away and rng.random() < 0.3
    seconds = rng.uniform(longest / 8, longest)
    event = {"event": what, "node": member.name, "began": time.monotonic(), "away": away}
    if what == "join":
        member.start()
    else:
        nodes.suffer(member, what, seconds, back=not away)
    event["mended"] = time.monotonic()
    return event


def judge(found: Outcome, said: list[dict[str, Any]], samples: int, world: int) -> None:
    """Count what is missing, what came twice, and what is wrong."""
    epochs = collections.defaultdict(list)
    for line in said:
        epochs[line["epoch"]].append(line)
        found.wrong += line["wrong"]
        found.broken += line["broken"]
    for lines in epochs.values():
        times = collections.Counter(p for line in lines for p in line["positions"])
        found.doubled += sum(n - 1 for n in times.values())
        if len(lines) == world:  # the last ones were not read by all
            found.epochs += 1
            found.lost += samples - len(times)


def others(event: dict[str, Any], said: list[dict[str, Any]], names: list[str]) -> list[float]:
    """The throughput of each rank that was at another node while something happened, relative to that before."""
    found = []
    for rank in sorted({line["rank"] for line in said}):
        marks = [m for line in said if line["rank"] == rank for m in line["marks"]]
        before = [m for m in marks if event["began"] - 1 < m[0] <= event["began"]]
        during = [m for m in marks if event["began"] + SETTLED < m[0] <= event["mended"]]
        length = event["mended"] - event["began"] - SETTLED
        at = {names[(rank + m[2]) % len(names)] for m in [*before, *during]}
        if length >= 1 and before and event["node"] not in at:
            found.append(round(sum(m[1] for m in during) / length / sum(m[1] for m in before), 3))
    return found
