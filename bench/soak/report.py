"""The report of a long run: figures, verdicts and plots, as JSON and as a page."""

from __future__ import annotations

import json
import math
import platform
from datetime import datetime, timezone
from os import cpu_count
from pathlib import Path
from typing import Any

import matplotlib as mpl
import plots
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from soak.resources import BOUNDS, MIB, UNITS, UNJUDGED, Series
from soak.trend import CONFIDENCE, WARM_UP, blocks

ZERO = ("wrong", "lost", "doubled", "stuck", "failed", "left", "leaks")
JUDGED = 600.0  # seconds; in a shorter run caches and heaps still grow, so growth has no verdict
POINTS = 400  # of a series in the report
MEANINGS = {
    "wrong": "samples with other bytes than those that were uploaded",
    "lost": "samples that an epoch did not have, and datasets that lack rows",
    "doubled": "samples that an epoch had more than once",
    "stuck": "clients that did not go on or did not end, and nodes that did not find each other",
    "failed": "clients and servers that ended by themselves, or with an unexpected error",
    "left": "sockets that remain after their servers",
    "leaks": "series that grow",
}


def figures(
    found: dict[str, Any],
    series: list[Series],
    events: list[dict[str, Any]],
    clients: dict[str, dict[str, int]],
    *,
    since: float,
    until: float,
    seed: int,
) -> dict[str, Any]:
    """All figures of a run, as JSON has them.

    Series are judged from when all clients had begun until the first was asked to end: both make steps in them.
    """
    seconds = until - since
    lines: list[dict[str, Any]] = []
    for one in series:
        judged = seconds >= JUDGED and one.kind not in UNJUDGED
        trend = one.trend(since, until) if judged else None
        times, values = blocks(one.times, one.values, POINTS)
        lines.append({"name": one.name, "times": times, "values": values, "trend": trend and vars(trend)})
    leaks = [line["name"] for line in lines if line["trend"] and line["trend"]["leaks"]]
    result = {**found, "leaks": len(leaks)}
    return {
        "case": "soak",
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
        "machine": f"{platform.machine()}, {cpu_count()} cores",
        "seconds": round(seconds),
        "seed": seed,
        **result,
        "leaking": leaks,
        "judged": seconds >= JUDGED,
        "passed": not any(result[name] for name in ZERO),
        "clients": clients,
        "events": events,
        "series": lines,
    }


def summary(result: dict[str, Any]) -> str:
    """The figures as one line of JSON."""
    names = ("case", "seconds", "seed", "rows", "epochs", "killed", *ZERO, "leaking", "judged", "passed")
    return json.dumps({name: result[name] for name in names})


def write(result: dict[str, Any], out: Path) -> None:
    """Write soak.json, report.md and the plots into a folder."""
    (out / "soak.json").write_text(json.dumps(result) + "\n")
    sites = list(dict.fromkeys(line["name"].partition(".")[0] for line in result["series"]))
    drawn = {site: draw(result, site, out) for site in sites}
    (out / "report.md").write_text(page(result, drawn))


def page(result: dict[str, Any], drawn: dict[str, list[str]]) -> str:
    """The page."""
    minutes = result["seconds"] / 60
    head = [
        "# A long run",
        "",
        f"{minutes:.0f} minutes on {result['date']}, {result['machine']}, seed {result['seed']}. Clients read "
        f"{result['rows']:,} samples and checked the bytes of each, in {result['epochs']:,} epochs. "
        f"{result['killed']:,} clients were killed, and {len(result['events']):,} faults were caused. "
        f"{'Passed' if result['passed'] else '**Failed**'}.",
        "",
        "| figure | value | what it counts |",
        "|---|---|---|",
        *(f"| {name} | {result[name]} | {MEANINGS[name]} |" for name in ZERO),
        "",
    ]
    if result["notes"]:
        head += ["What was found:", "", "```text", *result["notes"], "```", ""]
    return "\n".join([*head, *_faults(result), *_clients(result), *_plots(drawn), *_trends(result)]) + "\n"


def _faults(result: dict[str, Any]) -> list[str]:
    kinds: dict[tuple[str, str], list[float]] = {}
    for event in result["events"]:
        kinds.setdefault((event["site"], event["what"]), []).append(event["ended"] - event["began"])
    rows = [f"| {s} | {w} | {len(t)} | {max(t):.1f} |" for (s, w), t in sorted(kinds.items())]
    return ["## Faults", "", "| site | fault | times | longest, seconds |", "|---|---|---|---|", *rows, ""]


def _clients(result: dict[str, Any]) -> list[str]:
    names = ("epochs", "rows", "broken", "broken_off", "shared", "collections", "refused")
    rows = [
        f"| {name} | " + " | ".join(f"{counts[n]:,}" if counts.get(n) else "" for n in names) + " |"
        for name, counts in sorted(result["clients"].items())
    ]
    return [
        "## Clients",
        "",
        "`broken` are calls and streams that a fault broke, and that the client repeated or resumed.",
        "",
        f"| client | {' | '.join(n.replace('_', ' ') for n in names)} |",
        f"|---|{'---|' * len(names)}",
        *rows,
        "",
    ]


def _plots(drawn: dict[str, list[str]]) -> list[str]:
    lines = ["## Held by processes", "", "Each line is a process. The marks below are faults.", ""]
    for site, names in drawn.items():
        dark, light = (next(n for n in names if mode in n) for mode in ("dark", "light"))
        source = f'<source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        lines += [
            f"### {site}",
            "",
            f'<picture>{source}<img src="{light}" alt="What processes of {site} hold"></picture>',
            "",
        ]
    return lines


def _trends(result: dict[str, Any]) -> list[str]:
    lines = [
        "## Growth",
        "",
        f"The slope is that of Theil and Sen, after the first {WARM_UP:.0%} of the time, with its interval of "
        f"{CONFIDENCE:.0%}. A series leaks if its interval is above 0, and if its growth and that of its later half "
        "exceed what is allowed.",
        "",
    ]
    if not result["judged"]:
        return [*lines, f"This run is shorter than {JUDGED / 60:.0f} minutes, so there is no verdict.", ""]
    lines += [
        "| series | median | slope an hour | interval | growth | allowed | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    for line in sorted(result["series"], key=_by_growth):
        t = line["trend"]
        if t is None:
            continue
        kind = line["name"].rpartition(".")[2]
        shown = {k: _shown(t[k], kind) for k in ("level", "slope", "low", "high", "growth", "allowed")}
        verdict = "**leaks**" if t["leaks"] else "no growth" if t["low"] <= 0 else "within bounds"
        lines.append(
            f"| {line['name']} | {shown['level']} | {shown['slope']} | {shown['low']} to {shown['high']} | "
            f"{shown['growth']} | {shown['allowed']} | {verdict} |"
        )
    return lines


def _by_growth(line: dict[str, Any]) -> float:
    """Those first that grow by most of what is allowed."""
    t = line["trend"]
    return -t["growth"] / t["allowed"] if t else math.inf


def _shown(value: float, kind: str) -> str:
    unit = UNITS[kind]
    return f"{value / MIB:,.1f} {unit}" if unit else f"{value:,.1f}"


def draw(result: dict[str, Any], site: str, out: Path) -> list[str]:
    """Write the plots of a site, light and dark; the names of the files."""
    lines = [line for line in result["series"] if line["name"].startswith(f"{site}.")]
    panels: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in lines:
        _, side, *_, kind = line["name"].split(".")
        panels.setdefault((kind, side if side == "client" else "server"), []).append(line)
    order = sorted(panels, key=lambda p: (p[1] == "client", list(BOUNDS).index(p[0])))
    columns = 3
    count = math.ceil(len(order) / columns)
    names = []
    for mode, (ink, grid) in plots.MODES.items():
        with mpl.rc_context(plots.style(site, ink, grid)):
            figure, grid_of = plt.subplots(
                count, columns, figsize=(10.8, 2.1 * count), layout="constrained", squeeze=False, sharex=True
            )
            axes = [one for row in grid_of for one in row]
            for panel, one in zip(order, axes, strict=False):
                _panel(one, panel, panels[panel])
                for event in result["events"]:
                    if event["site"] == site:
                        one.axvline(event["began"] / 60, 0, 0.04, color=plots.COLOURS[4], linewidth=0.5)
            for one in axes[len(order) :]:
                one.set_visible(False)
            for one in axes[max(0, len(order) - columns) : len(order)]:
                one.set_xlabel("minutes")
                one.tick_params(labelbottom=True)
            names.append(f"{site}-{mode}.svg")
            metadata = {"Date": None, "Creator": f"bench/soak, matplotlib {mpl.__version__}"}
            figure.savefig(out / names[-1], transparent=True, metadata=metadata)
            plt.close(figure)
    return names


def _panel(axes: Axes, panel: tuple[str, str], lines: list[dict[str, Any]]) -> None:
    kind, side = panel
    factor = MIB if UNITS[kind] else 1
    for i, line in enumerate(lines):
        minutes = [t / 60 for t in line["times"]]
        axes.plot(
            minutes,
            [v / factor for v in line["values"]],
            linewidth=1.2 if side == "server" else 0.7,
            color=plots.COLOURS[i % len(plots.COLOURS)],
            label=line["name"].rpartition(".")[0].partition(".")[2].removeprefix(f"{side}."),
        )
    what = f"{kind}, {UNITS[kind]}" if UNITS[kind] else kind
    axes.set_title(f"{side}s: {what}", fontsize=9, loc="left")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
    axes.tick_params(labelsize=7)
    if len(lines) <= len(plots.COLOURS):
        plots.legend(axes, fontsize=6, ncols=2)
