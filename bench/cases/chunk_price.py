"""chunk_price: requests of epochs to a server of S3: with a spill for all, a half and a tenth, and of a free order."""

from __future__ import annotations

from harness import Context, Figure, Result, go_benchmark, median


def run(context: Context) -> Result:
    """With room for all the first epoch by bytes / 8 MiB; else each epoch by what docs/spans.md derives.

    The free order has room for a tenth, and is divided by what is derived for a fixed order.
    """
    figures: list[Figure] = []
    others: dict[str, float] = {}
    differs = 0.0
    for part in ("all", "half", "tenth", "free"):
        found = go_benchmark(
            context,
            "chunk_price",
            "./fetch",
            f"BenchmarkChunkPrice/{part}",
            "-benchtime",
            "1x",
            "-count",
            str(context.rounds),
        )
        differs = max(differs, *found["order_differs"])
        others |= {f"{part}_{unit}": round(median(value), 3) for unit, value in found.items()}
        if part == "all":
            figures.append(Figure("requests_all", found["first/8MiB"]))
            figures.append(Figure("requests_all_later", found["later"]))
        else:
            figures.append(Figure(f"requests_{part}", found["later/bound"]))
            figures.append(Figure(f"requests_{part}_first", found["first/bound"]))
    figures.append(Figure("order_differs", differs))
    return Result("chunk_price", figures, others)
