"""objects: a cold first epoch of photographs in a bucket, beside what a user would pick instead, over three links."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import kit
from bucket import attach, linked, served
from harness import Context, Figure, Need, Result, emit, median, needs, shuffled, throughput
from kit import Peer, PeerError
from samples import COUNT, SIZE
from server import Server, spill
from sizes import sized

LINKS: dict[str, float | None] = {"0ms": None, "20ms": 20.0, "150ms": 150.0}  # round trips in milliseconds
# A link without latency: what 150 ms cost by themselves is the difference to it, as carrying bytes takes a processor.
NEAR, FAR = "near", "150ms"
SAMPLES = int(os.environ.get("OBJECTS", COUNT))
BATCH = sized(256, smoke=16)
SERIAL = {"0ms": 4, "20ms": 2, "150ms": 1}  # batches read one sample at a time: one takes 6 s and 45 s
SECONDS, SKIP = sized((8.0, 3.0), smoke=(1.5, 0.5))  # of steady reading
OURS = {"bowstring": "tars", "bowstring-files": "files"}  # what is attached
FORMATS = {"tars": "wds", "files": "files"}  # the kit's names
SERIALLY = Peer("serial", "torch_s3", workers=1)
# With the settings of the kit's own cases; a worker of LitData loads 10 samples ahead.
PEERS = (
    Peer("s3torchconnector", "s3torch", {"threads": 64}, shuffles=True),
    Peer("ConcurrentDataloader", "torch_s3", {"threads": 64}, shuffles=True),
    Peer("LitData raw", "litdata_raw", shuffles=True),
    Peer("Lance take", "lance", {"take": 4}, shuffles=True),
    Peer("MosaicML", "mosaicml", {"dir": "mds8", "workers": 8, "predownload": 100_000}, "mosaic"),
    Peer("LitData", "litdata", {"pre": 10}),
    Peer("WebDataset", "webdataset", {"workers": 8}),
)
NEEDS = {"Lance take": "lance", "MosaicML": "mds", "LitData": "litdata", "WebDataset": "wds"}

Found = dict[str, float]


class Bench:
    """One run of the case: the data, the ways to the bucket, and the store that has what is attached."""

    def __init__(self, context: Context, data: Path, urls: dict[str, str]) -> None:
        self.context, self.data, self.urls = context, data, urls
        self.store = context.folder / "objects-store"
        self.left_out: dict[str, str] = {}
        for link, url in urls.items():
            for name, format_ in FORMATS.items():
                attach(context, self.store, url, f"{kit.BUCKET}/{format_}", f"{name}-{link}")

    def ours(self, name: str, link: str) -> Found:
        """Read an epoch by a server that has just been started, with an empty spill."""
        peer = Peer(name, "bowstring", {"dataset": f"{OURS[name]}-{link}"})
        with (
            spill(self.context.folder, 1.1 * SAMPLES) as flags,
            Server(self.context.binary, self.store, *flags) as server,
        ):
            found = self.read(peer, link, environment={"BOWSTRING_URL": server.url})
            spans = server.fetched()["spans"]
        emit(case="objects", link=link, side=name, **{k: spans[k] for k in ("spans", "singles", "joined")})
        return found

    def peer(self, peer: Peer, link: str) -> Found | None:
        """Read an epoch by a peer; None if it cannot."""
        if peer.name in self.left_out:
            return None
        try:
            return self.read(peer, link, limit=min(SERIAL[link] * BATCH, SAMPLES) if peer is SERIALLY else 0)
        except PeerError as error:
            self.left_out[f"{peer.name}, {link}"] = str(error)
            emit(case="objects", link=link, side=peer.name, left_out=str(error))
            return None

    def read(self, peer: Peer, link: str, limit: int = 0, environment: dict[str, str] | None = None) -> Found:
        """Read an epoch; MB/s and seconds for a batch on average, and until the first one."""
        got = kit.run(peer, self.data, self.urls[link], BATCH, limit, environment)
        found = {
            "mb_per_s": got["bytes"] / 1e6 / got["wall_s"],
            "batch_s": got["wall_s"] / got["batches"],
            "first_batch_s": got["time_to_first_batch_s"],
        }
        emit(case="objects", link=link, side=peer.name, **{k: round(v, 3) for k, v in found.items()})
        return found

    def steady(self, link: str, round_: int) -> float:
        """MB/s of one object after the other, with no spill, when it goes its way."""
        with Server(self.context.binary, self.store) as server:
            ticket = shuffled(seed=7, epoch=1000 * round_, batch=BATCH, dataset=f"files-{link}")
            (rate,) = throughput(server.url, SECONDS, SKIP, ticket)
        emit(case="objects", link=link, side="steady", mb_per_s=round(rate, 1))
        return rate


@needs(Need("the kit of peers", kit.missing))
def run(context: Context) -> Result:
    """Interleave all sides over all links."""
    data = context.folder / "objects"
    data.mkdir()
    missing = kit.make_data(data, SAMPLES, SIZE)
    with (
        served(context.binary, data / "s3root") as url,
        linked(context.binary, url, {**LINKS, NEAR: 0.0}) as urls,
    ):
        bench = Bench(context, data, urls)
        bench.left_out |= {name: missing[step] for name, step in NEEDS.items() if step in missing}
        rounds: list[dict[str, dict[str, Found]]] = []
        ratios: list[float] = []
        for round_ in context.repeat(ratios):
            found: dict[str, dict[str, Found]] = {link: {} for link in (*LINKS, NEAR)}
            jobs: list[tuple[str, Any]] = [(link, side) for link in LINKS for side in (*OURS, SERIALLY, *PEERS)]
            jobs += [(NEAR, side) for side in OURS]
            random.Random(round_).shuffle(jobs)
            for link, side in jobs:
                if got := bench.ours(side, link) if side in OURS else bench.peer(side, link):
                    found[link][side if side in OURS else side.name] = got
            rounds.append(found)
            rates = {link: bench.steady(link, round_) for link in (NEAR, FAR)}
            ratios.append(rates[FAR] / rates[NEAR])
    return result(rounds, ratios, bench.left_out)


def result(rounds: list[dict[str, dict[str, Found]]], ratios: list[float], left_out: dict[str, str]) -> Result:
    """The figures: medians over rounds, of the worst link."""
    shuffling = {p.name for p in PEERS if p.shuffles}
    middle = {
        link: {
            side: {k: median(r[link][side][k] for r in rounds if side in r[link]) for k in found}
            for side, found in {s: f for r in rounds for s, f in r[link].items()}.items()
        }
        for link in LINKS
    }
    details: dict[str, Any] = {}
    best: dict[str, list[float]] = {"shuffled": [], "all": []}
    for link, sides in middle.items():
        ours = sides["bowstring"]["mb_per_s"]
        peers = {name: f["mb_per_s"] for name, f in sides.items() if name not in OURS and name != SERIALLY.name}
        for kind, rates in (("shuffled", {n: r for n, r in peers.items() if n in shuffling}), ("all", peers)):
            if not rates:
                raise RuntimeError(f"no peer that is to be compared could read over {link}: {left_out}")
            name = max(rates, key=lambda n: rates[n])
            best[kind].append(ours / rates[name])
            details[f"vs_{kind}_{link}"] = round(best[kind][-1], 2)
            details[f"best_{kind}_{link}"] = name
        details[f"files_vs_shuffled_{link}"] = round(
            sides["bowstring-files"]["mb_per_s"] / max(r for n, r in peers.items() if n in shuffling), 2
        )
        details[f"vs_serial_{link}"] = round(sides["serial"]["batch_s"] / sides["bowstring"]["batch_s"], 1)
        details[f"mb_per_s_{link}"] = {name: round(f["mb_per_s"], 1) for name, f in sides.items()}
        details[f"first_batch_s_{link}"] = {name: round(f["first_batch_s"], 3) for name, f in sides.items()}
    far = [
        median(r[FAR][side]["first_batch_s"] - r[NEAR][side]["first_batch_s"] for r in rounds) / 0.150 for side in OURS
    ]
    details["first_batch_rtts_tars"], details["first_batch_rtts_files"] = (round(n, 2) for n in far)
    return Result(
        "objects",
        [
            Figure("vs_shuffled", min(best["shuffled"])),
            Figure("vs_all", min(best["all"])),
            Figure("vs_serial", min(details[f"vs_serial_{link}"] for link in LINKS)),
            Figure("ratio_150ms", ratios),
            Figure("first_batch_rtts", max(far)),
        ],
        {**details, "samples": SAMPLES, "left_out": left_out},
    )
