"""Run all parts in rounds, and print one JSON document.

    python -m gpu.main --programs DIR --photos DIR --work DIR --out DIR [--minutes 8] [--dry]

A round has each part once, in the same order, so that the sides of a ratio are measured close to each other. The time
limit cuts rounds, and never parts: the first round runs whole. The document in `--out` is written after each round.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu import machine
from gpu.sizes import DRY, FULL, Sizes

if TYPE_CHECKING:
    from gpu.images import Images
    from gpu.language import Language

SHARE_AT_LEAST = 0.97


class Results:
    """The figures of all rounds, and what was left out."""

    def __init__(self, out: Path, dry: bool) -> None:
        self._out, self._dry = out, dry
        self._machine = machine.described()
        self._values: dict[tuple[str, ...], list[float]] = {}
        self.left_out: dict[str, str] = {}
        self.rounds: list[float] = []  # seconds of each

    def add(self, *name: str, value: float) -> None:
        """A figure of this round."""
        self._values.setdefault(name, []).append(value)
        print("/".join(name), round(value, 4), file=sys.stderr, flush=True)

    def attempt(self, name: str, part: Callable[[], None]) -> None:
        """Run a part. If it fails it is left out, and the others run."""
        if name in self.left_out:
            return
        try:
            part()
        except Exception as error:  # noqa: BLE001 (the other parts run without this one)
            self.left_out[name] = f"{type(error).__name__}: {error}"
            print(name, self.left_out[name], file=sys.stderr, flush=True)

    def document(self) -> dict[str, Any]:
        """Medians, each with the values of its rounds."""
        parts: dict[str, Any] = {}
        for name, values in self._values.items():
            place = parts
            for key in name[:-1]:
                place = place.setdefault(key, {})
            found: dict[str, Any] = {"median": statistics.median(values), "rounds": values}
            if name[-1] == "share_of_bound" and not self._dry:
                found["bound"], found["reached"] = f">= {SHARE_AT_LEAST}", found["median"] >= SHARE_AT_LEAST
            place[name[-1]] = found
        seconds = [round(s, 1) for s in self.rounds]
        return {"machine": self._machine, "dry": self._dry, "seconds": seconds, **parts, "left_out": self.left_out}

    def write(self) -> str:
        """Write the document, and return it."""
        text = json.dumps(self.document(), indent=1)
        self._out.mkdir(parents=True, exist_ok=True)
        (self._out / "gpu.json").write_text(text + "\n")
        return text


class Run:
    """The parts of a run. They import torch, which may be missing."""

    def __init__(self, args: argparse.Namespace, sizes: Sizes, results: Results) -> None:
        import torch

        from gpu.served import Data

        if not args.dry and not torch.cuda.is_available():
            raise RuntimeError("there is no GPU; --dry runs little of everything on the CPU")
        self._device = torch.device("cpu" if args.dry else "cuda")
        self._results, self._sizes = results, sizes
        self._data = Data(args.programs, args.photos, args.work, sizes)
        self._images: Images | None = None
        self._language: Language | None = None
        results.attempt("images", self._make_images)
        results.attempt("language", self._make_language)

    def _make_images(self) -> None:
        from gpu.images import Images

        self._images = Images(self._sizes, self._device)

    def _make_language(self) -> None:
        from gpu.language import Language

        self._language = Language(self._sizes, self._device)

    def round(self) -> None:
        """Each part once."""
        from gpu.served import DELAYS, TRANSPORTS

        for delay, transport in itertools.product(DELAYS, TRANSPORTS):
            self._results.attempt(f"{delay}ms/{transport}", functools.partial(self._serve, delay, transport))
            self._results.write()

    def _serve(self, delay: int, transport: str) -> None:
        place = f"{delay}ms", transport
        attempt = self._results.attempt
        with self._data.server(delay, transport) as url:
            if place == ("0ms", "shared"):
                attempt("copies", functools.partial(self._copy, url))
            if self._images:
                attempt("/".join(("images", *place)), functools.partial(self._photographs, self._images, url, *place))
            if self._language:
                attempt("/".join(("language", *place)), functools.partial(self._text, self._language, url, *place))

    def _copy(self, url: str) -> None:
        from gpu.copies import Copies

        copies = Copies(self._sizes, self._device)
        found = copies.plain()

        def add(kind: str, rate: float) -> None:
            self._results.add("copies", kind, "gb_per_s", value=rate)
            self._results.add("copies", kind, "share_of_pinned", value=rate / found["pinned"])

        for kind, rate in found.items():
            add(kind, rate)
        self._results.attempt("copies/ring", lambda: add("ring", copies.ring(url)))

    def _photographs(self, images: Images, url: str, *place: str) -> None:
        from gpu.images import missing

        bound = images.bound()
        self._results.add("images", *place, "bound_per_s", value=bound)
        for decoder in images.DECODERS:
            if why := missing(decoder, self._device):
                self._results.left_out[f"images/{decoder}"] = why
            else:
                fed = functools.partial(self._fed, images, bound, url, decoder, *place)
                self._results.attempt("/".join(("images", *place, decoder)), fed)

    def _fed(self, images: Images, bound: float, url: str, decoder: str, *place: str) -> None:
        rate = images.fed(url, decoder)
        self._results.add("images", *place, decoder, "per_s", value=rate)
        self._results.add("images", *place, decoder, "share_of_bound", value=rate / bound)

    def _text(self, language: Language, url: str, *place: str) -> None:
        bound, fed = language.rates(url)
        self._results.add("language", *place, "bound_tokens_per_s", value=bound)
        self._results.add("language", *place, "tokens_per_s", value=fed)
        self._results.add("language", *place, "share_of_bound", value=fed / bound)


def parse() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder for gpu.json")
    parser.add_argument("--minutes", type=float, default=8, help="all in all; cuts rounds (8)")
    parser.add_argument("--dry", action="store_true", help="little of everything on the CPU: whether the run works")
    parser.add_argument("--programs", type=Path, required=True, help="the folder of bowstring and bowstring-lab")
    parser.add_argument("--photos", type=Path, required=True, help="the folder of photographs")
    parser.add_argument("--work", type=Path, required=True, help="an empty folder for the store")
    parser.add_argument("--spent", type=float, default=0, help="seconds that are over already")
    return parser.parse_args()


def main() -> int:
    args = parse()
    ends = time.monotonic() + 60 * args.minutes - args.spent
    results = Results(args.out, args.dry)
    runs: list[Run] = []
    results.attempt("all", lambda: runs.append(Run(args, DRY if args.dry else FULL, results)))
    for run in runs:
        while not results.rounds or (not args.dry and time.monotonic() + max(results.rounds) < ends):
            began = time.monotonic()
            run.round()
            results.rounds.append(time.monotonic() - began)
            results.write()
    print(results.write())
    return 0 if runs else 1


if __name__ == "__main__":
    sys.exit(main())
