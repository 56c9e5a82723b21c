"""The page of the headlines and its plots, made of the stored results alone."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from plots import drawn

from .model import Json, System

HEAD = """# Headlines

Bowstring answers to five published systems. This page has what each of them published, how it was measured there, what
`make headlines` measured on the machine named below, and what cannot be compared. `make headlines` takes at most 90
minutes of two cores and writes this page. `make headlines CASE=deli` measures one system and replaces its part alone.

Sides of a comparison are interleaved within a run, and figures are medians over its rounds. Client, server, store and
links share the cores of one machine. So ratios hold, and absolute figures hold on the machine and the day. The figures
are also in [results.json](headlines/results.json), and the page and its plots are made from that file.
"""


def bound(claim: Json) -> str:
    """The bound in words."""
    return f"≥ {claim['at_least']:g}" if claim["at_least"] is not None else f"≤ {claim['at_most']:g}"


def number(value: Any) -> str:
    """A cell of a table."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def verdict(claim: Json) -> str:
    """Whether the bound was reached; if not, what limits it."""
    if claim["reached"]:
        return "yes"
    why = f"; {claim['limit']}" if claim["limit"] else ""
    wanted = claim["at_least"] if claim["at_least"] is not None else claim["at_most"]
    return f"not reached: {number(claim['value'])} of {wanted:g}{why}"


def rows(lines: Iterable[Iterable[Any]]) -> str:
    """Lines of a table."""
    return "\n".join(f"| {' | '.join(number(cell) for cell in line)} |" for line in lines)


def table(title: str, columns: list[str], lines: Iterable[Iterable[Any]]) -> str:
    """A table with what it is of."""
    return f"{title}:\n\n{rows([columns])}\n|{'---|' * len(columns)}\n{rows(lines)}\n"


def overview(systems: list[System], results: dict[str, Json]) -> str:
    """All claims in one table."""
    lines = [
        [
            f"[{system.title}](#{anchor(system.title)})",
            f"`{claim['name']}`: {claim['says']}",
            claim["value"],
            bound(claim),
            verdict(claim),
        ]
        for system in systems
        for claim in results.get(system.name, {"claims": []})["claims"]
    ]
    if not lines:
        return ""
    return table("All figures", ["system", "figure", "measured", "bound", "reached"], lines)


def anchor(title: str) -> str:
    """The anchor of a heading."""
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c == "-")


def section(system: System, result: Json | None) -> str:
    """The part of one system."""
    parts = [
        f"## {system.title}",
        f"**Published.** {system.published} Source: {system.source}.",
        f"**Measured there.** {system.there}",
        f"**Measured here.** {system.here}",
    ]
    if result is None:
        parts.append(f"**Figures.** None are stored yet: `make headlines CASE={system.name}` measures them.")
    else:
        picture = f"headlines/{system.name}"
        parts.append(
            f'<picture><source media="(prefers-color-scheme: dark)" srcset="{picture}-dark.svg">'
            f'<img src="{picture}-light.svg" alt="{system.title}: published and measured" width="640"></picture>'
        )
        parts += [table(t["title"], t["columns"], t["rows"]).rstrip() for t in result["tables"]]
        claims = [[f"`{c['name']}`: {c['says']}", c["value"], bound(c), verdict(c)] for c in result["claims"]]
        parts.append(table("Bounds", ["figure", "measured", "bound", "reached"], claims).rstrip())
        parts += [f"Left out: {name}. {why}" for name, why in result["left_out"].items()]
        named = ", ".join(f"{name} {value}" for name, value in result["versions"].items())
        rounds = f"{result['rounds']} round" + ("s" if result["rounds"] != 1 else "")
        parts.append(
            f"Machine: {result['machine']}. Date: {result['date']} UTC, {rounds}, {result['minutes']:g} minutes; the "
            f"load before was {result['load_before']:g}. Versions: {named}."
        )
    return "\n\n".join([*parts, f"**Not comparable.** {system.apart}"]) + "\n"


def stored(folder: Path) -> dict[str, Json]:
    """The stored results, by system."""
    path = folder / "headlines" / "results.json"
    return {one["system"]: one for one in json.loads(path.read_text())} if path.exists() else {}


def keep(folder: Path, systems: list[System], results: dict[str, Json]) -> None:
    """Store the results, in the order of the systems."""
    (folder / "headlines").mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(results[s.name], ensure_ascii=False) for s in systems if s.name in results)
    (folder / "headlines" / "results.json").write_text(f"[\n{lines}\n]\n")


def render(folder: Path, systems: list[System], results: dict[str, Json]) -> None:
    """Write headlines.md and two plots of each measured system below a folder."""
    (folder / "headlines").mkdir(parents=True, exist_ok=True)
    parts = [HEAD, overview(systems, results), *(section(s, results.get(s.name)) for s in systems)]
    (folder / "headlines.md").write_text("\n".join(part for part in parts if part))
    for system in systems:
        if system.name in results:
            kept = results[system.name]
            title = f"make headlines CASE={system.name}, {kept['date'][:10]}, {kept['machine'].split(',')[0]}"
            drawn(folder / "headlines", system.name, title, system.plot, kept["series"])
