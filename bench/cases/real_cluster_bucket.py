"""real_cluster_bucket: three nodes over a bucket alone, and over data attached there: each chunk is read once."""

from __future__ import annotations

from harness import Context, Figure, Result, emit, median
from nodes import Wire, attach, initialise, objects, stored, within
from sizes import sized

from .real_cluster import Setting, run_setting

SAMPLES, SIZE = sized(6_000, smoke=300), 64_000
NODES = 3
CHUNK = 8 << 20
STORE = Wire(latency_ms=5, bytes_per_s=200_000_000)


def run(context: Context) -> Result:
    """Four epochs of three ranks at three nodes, whose caches hold the dataset together with room to spare."""
    reads: dict[str, list[float]] = {"store": [], "attached": []}
    requests: dict[str, list[float]] = {"store": [], "attached": []}
    with objects(context.binary, context.folder / "bucket-objects") as bucket:
        with stored(context.binary, within(bucket, "store"), SAMPLES, SIZE):
            pass
        initialise(context.binary, within(bucket, "attached"))
        attach(context.binary, within(bucket, "attached"), bucket, SAMPLES, SIZE)
        for number in context.repeat():
            for kind in reads:
                setting = Setting(NODES, 0.8 * SAMPLES, store=STORE, ranks=NODES, samples=SAMPLES, sample_bytes=SIZE)
                folder = context.folder / f"bucket-{number}-{kind}"
                epochs = run_setting(context.binary, within(bucket, kind), folder, setting)
                for e in epochs:
                    emit(case="real_cluster_bucket", kind=kind, **e)
                brought = sum(e["span_bytes"] + e["span_singles"] * SIZE for e in epochs)
                asked = sum(e["span_spans"] + e["span_singles"] for e in epochs)
                reads[kind].append(brought / (SAMPLES * SIZE))
                requests[kind].append(asked / (SAMPLES * SIZE / CHUNK))
    return Result(
        "real_cluster_bucket",
        [
            Figure("store_reads", reads["store"]),
            Figure("attached_reads", reads["attached"]),
        ],
        {f"{kind}_requests_per_chunk": round(median(found), 2) for kind, found in requests.items()},
    )
