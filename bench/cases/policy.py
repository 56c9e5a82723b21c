"""policy: hit rates of cache policies beside the best that any could have, replayed in virtual time."""

from __future__ import annotations

import json

from harness import Context, Figure, Result, emit
from sizes import sized

JOBS = ("1", "4")
EPOCHS, SAMPLES = sized((10, 2000), smoke=(3, 200))
CACHES = ("10%", "25%", "50%", "75%")


def run(context: Context) -> Result:
    """Replay every policy on every mix and size, with seeds of its own in each round."""
    ratios: list[float] = []
    beaten = True
    four_jobs: dict[str, list[float]] = {}
    for round_ in context.repeat():
        seed = round_ + 1
        out = context.lab(
            *("policy", "--json", "--epochs", str(EPOCHS), "--samples", str(SAMPLES), "--seed", str(seed)),
            *("--jobs", ",".join(JOBS), "--cache", ",".join(CACHES)),
        )
        rates: dict[tuple[int, float], dict[str, float]] = {}
        for line in json.loads(out):
            emit(case="policy", **line)
            at = rates.setdefault((line["jobs"], line["cache"]), {"optimum": line["optimum"]})
            at[line["policy"]] = line["hit_rate"]
        if len(rates) != len(JOBS) * len(CACHES):
            raise RuntimeError(f"mixes or sizes are missing: {sorted(rates)}")
        for (jobs, cache), rate in rates.items():
            ours = rate["next-use"]
            ratios.append(ours / rate["optimum"])
            # With one job the static set is the optimum: equal except for the chance that the sample leaves.
            static = rate["static"] if jobs > 1 else rate["static"] - 1e-9
            beaten &= ours > max(rate["lru"], rate["fifo"], static)
            if jobs > 1:
                for policy, value in rate.items():
                    four_jobs.setdefault(f"{policy}_{cache:.0%}", []).append(value)
    return Result(
        "policy",
        [Figure("belady_ratio_min", min(ratios)), Figure("beats_all", float(beaten))],
        {name: round(sum(values) / len(values), 3) for name, values in four_jobs.items()},
    )
