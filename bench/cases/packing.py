"""packing: documents in sequences, beside Grain's packers at each rank on the same lengths; samples by their cost."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import numpy as np
from corpus import document_lengths
from harness import Context, Figure, Result, emit, go_benchmark, median, needs, package
from sizes import sized

LENGTH, RANKS, ROWS = 4096, 8, 8  # tokens of a sequence; ranks; sequences of each in a step: as BenchmarkPackCorpus
BINS = RANKS * ROWS  # that Grain fills at a time, at each rank: as many as a step has at all


@needs(package("grain"))
def run(context: Context) -> Result:
    """Pack the sources of Python's standard library, by plans and by Grain."""
    import grain  # with all that it brings

    lengths = document_lengths()[:: sized(1, smoke=10)]
    file = context.folder / "lengths"
    file.write_text("\n".join(map(str, lengths)))
    os.environ["PACK_LENGTHS"] = str(file)
    found = go_benchmark(context, "packing", "./fetch/plan", "BenchmarkPackCorpus", "-benchtime", "1x")
    cost = go_benchmark(context, "packing", "./fetch/plan", "BenchmarkPack/best_fit/2048", "-benchtime", "5x")
    buckets = {
        kind: go_benchmark(
            context, "packing", "./fetch/plan", f"BenchmarkBalancedBuckets/{kind}", "-benchtime", "100000x"
        )
        for kind in ("photographs", "sound")
    }
    grains = {}
    for name, packer in (
        ("first_fit", grain.experimental.FirstFitPackIterDataset),
        ("best_fit", grain.experimental.BestFitPackIterDataset),
    ):
        grains[name] = alone(lengths, packer)
        emit(case="packing", grain=name, **grains[name])
    return Result(
        "packing",
        [
            Figure("padding", found["padding"]),
            Figure("imbalance", found["imbalance"]),
            Figure("imbalance_alone", min(g["imbalance"] for g in grains.values())),
            *(Figure(f"imbalance_{kind}", figures["imbalance_balanced"]) for kind, figures in buckets.items()),
            Figure("lost", found["lost"]),
            Figure("doubled", found["doubled"]),
            Figure("ns_per_document", cost["ns/document"]),
        ],
        {
            "documents": len(lengths),
            "tokens": sum(lengths),
            "imbalance_worst_step": median(found["imbalance_worst"]),
            **{f"imbalance_{kind}_shuffled": median(one["imbalance_shuffled"]) for kind, one in buckets.items()},
            **{f"imbalance_{kind}_by_length": median(one["imbalance_by_length"]) for kind, one in buckets.items()},
            **{f"padding_grain_{name}": round(g["padding"], 5) for name, g in grains.items()},
        },
    )


def alone(lengths: list[int], packer: type) -> dict[str, float]:
    """Each rank packs its part of the shuffled documents, of which long ones are cut as BenchmarkPackCorpus does."""
    order = list(lengths)
    random.Random(7).shuffle(order)
    costs: list[list[int]] = []
    tokens = rows = 0
    for rank in range(RANKS):
        own = []
        for row in packed(order[rank::RANKS], packer):
            segments = np.bincount(row)[1:].astype(np.int64)  # 0 is padding
            tokens += int(segments.sum())
            rows += 1
            own.append(int((segments**2).sum()))
        costs.append(own)
    if tokens != sum(lengths):
        raise RuntimeError(f"Grain's sequences have {tokens} of {sum(lengths)} tokens")
    steps = min(map(len, costs)) // ROWS
    by_step = np.array([own[: steps * ROWS] for own in costs]).reshape(RANKS, steps, ROWS).sum(axis=2)
    return {
        "imbalance": float(by_step.max(axis=0).sum() / by_step.mean(axis=0).sum()),
        "padding": 1 - tokens / (rows * LENGTH),
        "steps": steps,
    }


def packed(lengths: list[int], packer: type) -> Iterator[np.ndarray]:
    """The segment ids of one rank's sequences."""
    import grain

    parts = [min(LENGTH, n - start) for n in lengths for start in range(0, n, LENGTH)]
    documents = grain.MapDataset.source(parts).map(lambda n: {"tokens": np.ones(n, np.uint8)}).to_iter_dataset()
    for row in packer(documents, length_struct={"tokens": LENGTH}, num_packing_bins=BINS, seed=7):
        yield row["tokens_segment_ids"]
