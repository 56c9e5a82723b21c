"""plan: computing the order of an epoch, index by index, forward and back."""

from __future__ import annotations

import re
import subprocess

from harness import GO_SIZES, Context, Figure, Result, emit


def run(context: Context) -> Result:
    """Run the package's benchmarks and take the slowest size."""
    out = subprocess.run(
        [  # noqa: S607
            "go",
            "test",
            "-run",
            "^$",
            "-bench",
            "^(BenchmarkPosition|BenchmarkPlanIndex)$",
            "-benchmem",
            *GO_SIZES,
            "./fetch/plan",
        ],
        cwd=context.root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    worst = {"BenchmarkPosition": 0.0, "BenchmarkPlanIndex": 0.0}
    allocs = 0.0
    for line in out.splitlines():
        m = re.match(r"(Benchmark\w+?)(?:/(\S+?))?(?:-\d+)?\s+\d+\s+([\d.]+) ns/op.*?(\d+) allocs/op", line)
        if m:
            name, size, ns, n = m.group(1), m.group(2), float(m.group(3)), int(m.group(4))
            emit(case="plan", benchmark=name, size=size, ns=ns, allocs=n)
            worst[name] = max(worst[name], ns)
            allocs = max(allocs, n)
    if not all(worst.values()):
        raise RuntimeError(f"benchmarks are missing from the output:\n{out}")
    return Result(
        "plan",
        [Figure("ns_per_index", max(worst.values())), Figure("allocs", allocs)],
        {"ns_forward": worst["BenchmarkPosition"], "ns_back": worst["BenchmarkPlanIndex"]},
    )
