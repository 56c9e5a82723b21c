"""Measure Bowstring side by side with what it is compared to.

    python bench/run.py            all cases, then a table
    python bench/run.py loopback   one case

Each case prints JSON lines as it goes; its last line is one object with `case`, every figure by
name, the figure's bound in `bounds`, and `reached`, which is true only if every figure is within
its bound. Sides are interleaved within one run and figures are medians over rounds, because
machines are noisy: compare ratios, not absolute figures of different days.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "examples"))  # for node, which starts servers

from cases import CASES  # noqa: E402
from harness import Context, emit  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure Bowstring; prints JSON lines.")
    parser.add_argument("case", nargs="?", choices=sorted(CASES), help="the case to run; all without it")
    parser.add_argument("--bowstring", type=Path, default=ROOT / "build/bin/bowstring", help="the binary")
    parser.add_argument("--dir", type=Path, help="where data sets and stores go (default: a temporary directory)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of interleaved sides")
    args = parser.parse_args()

    results = []
    with tempfile.TemporaryDirectory(prefix="bowstring-bench-", dir=args.dir) as folder:
        context = Context(binary=args.bowstring.resolve(), root=ROOT, folder=Path(folder), rounds=args.rounds)
        for name in [args.case] if args.case else CASES:
            result = CASES[name](context)
            emit(**result.as_json())
            results.append(result)
    if not args.case:
        print()
        print(f"| {'case':12} | {'figure':22} | {'measured':>12} | {'bound':>12} | reached |")
        print(f"|{'-' * 14}|{'-' * 24}|{'-' * 14}|{'-' * 14}|---------|")
        for result in results:
            for f in result.figures:
                reached = "yes" if f.reached else "NO"
                print(f"| {result.case:12} | {f.name:22} | {f.value:12.4g} | {f.bound:>12} | {reached:7} |")
    return 0 if all(r.reached for r in results) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except json.JSONDecodeError as error:
        sys.exit(f"bench: unexpected answer: {error}")
