"""Measure Bowstring beside five published systems, and write docs/headlines.md.

    python bench/headlines.py                     all of them, in at most 90 minutes of two cores
    python bench/headlines.py deli                one; the parts of the others stay
    python bench/headlines.py --render            the page and the plots, from the stored results
    python bench/headlines.py --smoke --out DIR   small sizes, in a minute or two; the page goes into DIR

Results are stored after each system, so that a run that is ended loses one system.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "examples"))  # for node, which starts servers

from harness import Context, emit  # noqa: E402
from systems import SYSTEMS, page  # noqa: E402
from systems.model import measured  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what other systems have published; prints JSON lines.")
    parser.add_argument("system", nargs="?", choices=sorted(s.name for s in SYSTEMS), help="one system; all without it")
    parser.add_argument("--bowstring", type=Path, default=ROOT / "build/bin/bowstring", help="the binary")
    parser.add_argument("--dir", type=Path, help="where data sets and stores go (default: a temporary directory)")
    parser.add_argument("--out", type=Path, help="where headlines.md goes (default: docs)")
    parser.add_argument("--rounds", type=int, help="rounds of interleaved sides (default: each system's own)")
    parser.add_argument(
        "--smoke", action="store_true", help="small sizes: whether it runs, and no figures; needs --out"
    )
    parser.add_argument("--render", action="store_true", help="measure nothing, and write the page of stored results")
    args = parser.parse_args()
    if args.smoke and (args.out is None or args.out.resolve() == (ROOT / "docs").resolve()):
        parser.error("--smoke: its figures are no figures for the documents: --out says which other folder gets them")
    out: Path = args.out or ROOT / "docs"
    results = page.stored(out)
    wanted = [s for s in SYSTEMS if args.system in (None, s.name)]
    began = time.monotonic()
    for system in [] if args.render else wanted:
        with tempfile.TemporaryDirectory(prefix="bowstring-headlines-", dir=args.dir) as folder:
            rounds = args.rounds or (1 if args.smoke else system.rounds)
            context = Context(binary=args.bowstring.resolve(), root=ROOT, folder=Path(folder), rounds=rounds)
            results[system.name] = measured(system, context, args.smoke)
        emit(**results[system.name])
        page.keep(out, SYSTEMS, results)
    page.render(out, SYSTEMS, results)
    reached = all(claim["reached"] for s in wanted for claim in results.get(s.name, {"claims": []})["claims"])
    emit(minutes=round((time.monotonic() - began) / 60, 1), page=str(out / "headlines.md"), reached=reached)
    return 0 if reached or args.smoke or args.render else 1


if __name__ == "__main__":
    sys.exit(main())
