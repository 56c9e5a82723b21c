"""Measure Bowstring side by side with what it is compared to.

    python bench/run.py                    all cases, then a table
    python bench/run.py loopback           one case
    python bench/run.py loopback --smoke   the same with little of everything, in seconds

Each case prints JSON lines as it goes. Its last line is one object with `case`, every figure by name, the figure's
bound in `bounds`, and `reached`, which is true only if every figure is within its bound. Sides are interleaved within
one run and figures are medians over rounds, because machines are noisy: compare ratios, not absolute figures of
different days.

The last line also says how sure the figures are. `rounds` is their number, and `intervals` has the confidence interval
of each figure that has a value of each round (confidence.py). The case adds rounds until these intervals are no wider
than `--confidence` of their middle. `--rounds` and `--minutes` limit that. `unsure` names the figures whose bound is
within their interval. `quiet` names those whose bound holds only on a machine that does nothing else, and `load` is
the load of the machine before the case and after it.

A smoke run shows whether a case still works: the case ends, and has all figures of bounds.py, each of them a number.
It judges the figures that count mistakes, and no time. A case that needs what is missing is skipped, with the reason.

A case is a module in bench/cases:

    COUNT = sized(4000, smoke=64)            # sizes.py: each size once, for both kinds of runs

    @needs(CASSANDRA, package("ray"))        # harness.py; not for what every case has
    def run(context: Context) -> Result:
        ratios: list[float] = []
        for round_ in context.repeat(ratios):    # until the case is sure of these
            ratios.append(ours / theirs)
        return Result("name", [Figure("ratio", ratios), Figure("wrong", wrong)], {"detail": 1})

Its name and module are in CASES of bench/cases/__init__.py, and the bounds of its figures in BOUNDS of bounds.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import faulthandler
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

import sizes

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "examples"))  # for node, which starts servers

if "--smoke" in sys.argv:  # before cases and harness are imported, which have sizes
    os.environ[sizes.VARIABLE] = "1"
    sizes.SMOKE = True

import bounds  # noqa: E402
from cases import CASES, load  # noqa: E402
from harness import Context, Result, Run, emit, needs_of  # noqa: E402

SMOKE_AT_MOST_S = 600  # for a case that hangs: it says where


def rounds(text: str) -> tuple[int, int]:
    """MIN..MAX, or one number for both."""
    least, _, most = text.partition("..")
    found = int(least), int(most or least)
    if not 0 < found[0] <= found[1]:
        raise argparse.ArgumentTypeError(f"got {text}, want MIN..MAX, such as 6..20, or a number of rounds")
    return found


def parse() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description="Measure Bowstring; prints JSON lines.")
    parser.add_argument("case", nargs="*", help=f"the cases to run; all without one: {', '.join(sorted(CASES))}")
    parser.add_argument("--smoke", action="store_true", help="little of everything: whether cases work, in seconds")
    parser.add_argument("--bowstring", type=Path, default=ROOT / "build/bin/bowstring", help="the binary")
    parser.add_argument("--dir", type=Path, help="where data sets and stores go (default: a temporary directory)")
    parser.add_argument("--rounds", type=rounds, default=(6, 20), metavar="MIN..MAX", help="rounds (default: 6..20)")
    parser.add_argument("--confidence", type=float, default=0.02, metavar="WIDTH", help="of ratios (default: 0.02)")
    parser.add_argument("--minutes", type=float, default=10, help="a case begins no round after these (default: 10)")
    parser.add_argument("--bounds", action="store_true", help="write docs/benchmarks/bounds.md, and run nothing")
    parser.add_argument("--list", action="store_true", help="print cases, what they need, and what is missing")
    args = parser.parse_args()
    if unknown := [name for name in args.case if name not in CASES]:
        parser.error(f"got {', '.join(unknown)}, want some of {', '.join(sorted(CASES))}")
    return args


def missing(run: Run) -> list[str]:
    """Why a case cannot run here."""
    return [f"{need.name}: {why}" for need in needs_of(run) if (why := need.missing())]


def measure(run: Run, context: Context) -> Result:
    """Run a case, and print its last line."""
    before = os.getloadavg()[0]
    begun = time.monotonic()
    result = run(context)
    seconds = round(time.monotonic() - begun, 1)
    result.check()
    line = result.as_json()
    reached = line.pop("reached")
    machine = {"before": round(before, 2), "after": round(os.getloadavg()[0], 2), "processors": os.cpu_count()}
    emit(**line, rounds=max(context.done, 1), load=machine, seconds_in_all=seconds, smoke=sizes.SMOKE, reached=reached)
    return result


def main() -> int:
    """Run the cases; the exit status is 1 if one has failed, or has a figure outside its bound."""
    args = parse()
    if args.bounds:
        (ROOT / "docs/benchmarks/bounds.md").write_text(bounds.page())
        return 0
    if args.list:
        for name in args.case or CASES:
            run = load(name)
            emit(case=name, needs=[need.name for need in needs_of(run)], missing=missing(run))
        return 0
    least, most = (1, 1) if args.smoke else args.rounds
    results, failed = [], []
    with tempfile.TemporaryDirectory(prefix="bowstring-bench-", dir=args.dir) as folder:
        usual = Context(
            binary=args.bowstring.resolve(),
            root=ROOT,
            folder=Path(folder),
            rounds=least,
            most=most,
            width=args.confidence,
            seconds=60 * args.minutes,
        )
        for name in args.case or CASES:
            if args.smoke:
                faulthandler.dump_traceback_later(SMOKE_AT_MOST_S, exit=True)
            try:
                run = load(name)
                if absent := missing(run):
                    emit(case=name, skipped=absent)
                else:
                    results.append(measure(run, dataclasses.replace(usual)))
            except Exception as error:  # noqa: BLE001 (the other cases run without this one)
                traceback.print_exc()
                emit(case=name, failed=f"{type(error).__name__}: {error}")
                failed.append(name)
            faulthandler.cancel_dump_traceback_later()
    if len(args.case) != 1:
        print()
        print(f"| {'case':12} | {'figure':22} | {'measured':>12} | {'bound':>12} | reached |")
        print(f"|{'-' * 14}|{'-' * 24}|{'-' * 14}|{'-' * 14}|---------|")
        for result in results:
            for f in result.figures:
                reached = "yes" if result.reached(f) else "NO"
                print(f"| {result.case:12} | {f.name:22} | {f.value:12.4g} | {result.bound(f)!s:>12} | {reached:7} |")
        for name in failed:
            print(f"| {name:12} | failed")
    return 0 if not failed and all(r.all_reached for r in results) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except json.JSONDecodeError as error:
        sys.exit(f"bench: unexpected answer: {error}")
