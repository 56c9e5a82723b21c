"""Draw the figures of docs/benchmarks/results.json as docs/benchmarks/*.svg, each light and dark.

    python bench/plots.py                      from the stored figures
    python bench/run.py objects >lines; python bench/plots.py --from lines

With --from, the last line of each case in a file that bench/run.py has written replaces the stored one first.
Text stays text, so the files are small and their words can be searched.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.container import BarContainer

PAGES = Path(__file__).parent.parent / "docs" / "benchmarks"
RESULTS = PAGES / "results.json"
LINKS = {"0ms": "0 ms", "20ms": "20 ms", "150ms": "150 ms"}
NAMES = {"bowstring": "Bowstring, tars", "bowstring-files": "Bowstring, files", "serial": "one at a time"}
MODES = {"light": ("#1f2328", "#d0d7de"), "dark": ("#e6edf3", "#3d444d")}
# Colour-blind readers can distinguish these, on white and on black.
COLOURS = ("#1f83c9", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7", "#999999", "#8c6bb1", "#66a61e")
POLICIES = {"optimum": 6, "next-use": 0, "static": 3, "fifo": 4, "lru": 5}  # with their colours
CACHE_SIZES = (10, 25, 50, 75)
FIGURES_WANTED = {
    "objects": [f"{kind}_{link}" for kind in ("mb_per_s", "first_batch_s") for link in LINKS],
    "objects_cost": ["http_s_per_gb", "tls_s_per_gb"],
    "cql_cpu": ["server_s_per_gb"],
    "spill": ["server_cpu_s_per_gb", "local_cpu_s_per_gb"],
    "policy": [f"{name}_{size}%" for name in POLICIES for size in CACHE_SIZES],
}

Cases = dict[str, dict[str, Any]]


def legend(axes: Axes, **options: Any) -> None:
    """The names of the lines or bars, each in its colour."""
    axes.legend(frameon=False, labelcolor="linecolor", **options)


def grouped(axes: Axes, sides: Mapping[str, Sequence[float]], groups: Sequence[str], unit: str) -> list[BarContainer]:
    """Bars side by side: one of each side in each group, which are round trips to a bucket."""
    width = 0.8 / len(sides)
    bars = []
    for n, (side, heights) in enumerate(sides.items()):
        places = [place + (n - (len(sides) - 1) / 2) * width for place in range(len(groups))]
        bars.append(axes.bar(places, heights, width * 0.92, label=side, color=COLOURS[n % len(COLOURS)]))
    axes.set_xticks(range(len(groups)), groups)
    axes.set_xlabel("round trip to the bucket")
    axes.set_ylabel(unit)
    axes.grid(axis="y")
    legend(axes, ncols=2, fontsize=8)
    return bars


def by_link(axes: Axes, case: dict[str, Any], kind: str, unit: str) -> None:
    sides = {NAMES.get(side, side): [case[f"{kind}_{link}"][side] for link in LINKS] for side in case[f"{kind}_0ms"]}
    grouped(axes, sides, list(LINKS.values()), unit)


def throughput(axes: Axes, cases: Cases) -> None:
    by_link(axes, cases["objects"], "mb_per_s", "MB/s of a cold epoch")


def first_batch(axes: Axes, cases: Cases) -> None:
    by_link(axes, cases["objects"], "first_batch_s", "seconds to the first batch of 256")
    axes.set_yscale("log")
    axes.set_yticks([0.1, 1, 10], ["0.1", "1", "10"])


def cpu(axes: Axes, cases: Cases) -> None:
    spill, objects = cases["spill"], cases["objects_cost"]
    horizontal(
        axes,
        {
            "local store": spill["local_cpu_s_per_gb"],
            "spill cache": spill["server_cpu_s_per_gb"],
            "Cassandra": cases["cql_cpu"]["server_s_per_gb"],
            "bucket, HTTP": objects["http_s_per_gb"],
            "bucket, TLS": objects["tls_s_per_gb"],
        },
        "CPU seconds of the server for a GB",
        "{:.2f}",
    )


def price(axes: Axes, cases: Cases) -> None:
    requests, dollars = cases["cost"]["requests_an_epoch"], cases["cost"]["dollars_90_epochs"]
    rows = {f"{name}\n{requests[name]:,} requests": dollars[name] for name in requests}
    horizontal(axes, rows, "dollars for 90 epochs; requests of each later epoch", "${:.2f}")


def cache(axes: Axes, cases: Cases) -> None:
    for name, colour in POLICIES.items():
        rates = [cases["policy"][f"{name}_{size}%"] for size in CACHE_SIZES]
        label = {"next-use": "next use (Bowstring)", "optimum": "Belady's optimum"}.get(name, name)
        axes.plot(CACHE_SIZES, rates, "--" if name == "optimum" else "o-", label=label, color=COLOURS[colour])
    axes.set_xticks(CACHE_SIZES, [f"{size} %" for size in CACHE_SIZES])
    axes.set_xlabel("cache, of the dataset; four jobs")
    axes.set_ylabel("hit rate")
    axes.set_ylim(0, 1)
    axes.grid()
    legend(axes)


def nodes(axes: Axes, cases: Cases) -> None:
    case = cases["simulate"]
    published = {int(n): value for n, value in case["mummi_published"].items()}
    simulated = {int(n): value for n, value in case["mummi_simulated"].items()}
    axes.plot(
        list(published), list(published.values()), "s--", label="published (Yang and Cong 2019)", color=COLOURS[3]
    )
    axes.plot(list(simulated), list(simulated.values()), "o-", label="Bowstring, simulated", color=COLOURS[0])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(list(published), [str(n) for n in published])
    axes.set_yticks([16, 32, 64, 128], ["16", "32", "64", "128"])
    axes.set_xlabel("nodes")
    axes.set_ylabel("loading from the nodes' caches,\ntimes as fast as from the store")
    axes.grid()
    legend(axes)


def horizontal(axes: Axes, rows: dict[str, float], unit: str, form: str) -> None:
    bars = axes.barh(list(rows), list(rows.values()), color=COLOURS[0], height=0.6)
    axes.bar_label(bars, [form.format(value) for value in rows.values()], padding=3)
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    axes.margins(x=0.12)
    axes.grid(axis="x")


PLOTS: dict[str, tuple[str, Callable[[Axes, Cases], None]]] = {
    "throughput": ("objects", throughput),
    "first-batch": ("objects", first_batch),
    "cpu": ("objects_cost", cpu),
    "price": ("cost", price),
    "cache": ("policy", cache),
    "nodes": ("simulate", nodes),
}


def style(salt: str, ink: str, grid: str) -> Any:
    """The settings of matplotlib for a plot of these colours. The same salt gives the same names within an SVG."""
    colours = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")
    return {
        **dict.fromkeys(colours, ink),
        "svg.fonttype": "none",
        "svg.hashsalt": salt,
        "axes.edgecolor": grid,
        "grid.color": grid,
        "grid.linewidth": 0.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.family": "sans-serif",
    }


def draw(cases: Cases, folder: Path) -> None:
    """Write two SVGs for each plot."""
    for name, (case, plot) in PLOTS.items():
        source = "" if case == "cost" else f"make bench CASE={case}, "  # prices are not measured
        title = f"{source}{cases[case]['date']}, {cases[case]['machine']}"
        drawn(folder, name, title, plot, cases)


def drawn(folder: Path, name: str, title: str, plot: Callable[[Axes, Any], None], figures: Any) -> None:
    """Write a plot of figures, light and dark. The same figures and the same matplotlib give the same bytes."""
    for mode, (ink, grid) in MODES.items():
        with mpl.rc_context(style(name, ink, grid)):
            figure, axes = plt.subplots(figsize=(7.2, 3.8), layout="constrained")
            plot(axes, figures)
            axes.set_axisbelow(True)
            axes.set_title(title, fontsize=8, loc="right")
            metadata = {"Date": None, "Creator": f"bench/plots.py, matplotlib {mpl.__version__}"}
            figure.savefig(folder / f"{name}-{mode}.svg", transparent=True, metadata=metadata)
            plt.close(figure)


def stored(path: Path = RESULTS) -> Cases:
    return {case["case"]: case for case in json.loads(path.read_text())}


def taken(cases: Cases, lines: str) -> Cases:
    """The cases, with the figures of the last lines of cases that bench/run.py has printed."""
    new = dict(cases)
    for text in lines.splitlines():
        line = json.loads(text) if text.startswith("{") else {}
        wanted = FIGURES_WANTED.get(line.get("case", ""))
        if wanted and "reached" in line and all(name in line for name in wanted):
            new[line["case"]] = {
                "case": line["case"],
                "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
                "machine": f"{platform.machine()}, {os.cpu_count()} cores",
                **{name: line[name] for name in wanted},
            }
    return new


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the plots of docs/benchmarks.")
    parser.add_argument("--from", dest="lines", type=Path, help="what bench/run.py has printed")
    given = parser.parse_args()
    cases = stored()
    if given.lines:
        cases = taken(cases, given.lines.read_text())
        rows = ",\n".join(json.dumps(case) for case in cases.values())
        RESULTS.write_text(f"[\n{rows}\n]\n")
    draw(cases, PAGES)


if __name__ == "__main__":
    main()
