"""Previews of a dataset, explanations and lists, as text and in notebooks."""

from __future__ import annotations

import base64
import html
import io
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from bowstring.plan import Plan

_SIDE = 96  # pixels of a thumbnail
_LARGEST = 64 << 20  # largest image that is decoded for a thumbnail
_SOUND = 512 << 10  # largest sound, in bytes, that gets a player: the page holds all of it
_TEXT = 40  # characters of a cell
_CELL = "padding:2px 8px;text-align:left;vertical-align:top"


class Preview:
    """The first rows of a dataset, made by [Dataset.head][bowstring.Dataset.head].

    As text, bytes are shown as their size and labels as the names of their classes. A notebook shows images as
    thumbnails if Pillow is installed, and sounds of up to 512 KiB with a player.

    Attributes:
        table: The rows.
        title: A description of the dataset.
        total: The number of rows of the dataset.
    """

    def __init__(self, table: pa.Table, title: str, total: int) -> None:
        self.table = table
        self.title = title
        self.total = total

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __repr__(self) -> str:
        names = self.table.column_names
        rows = [[_text(self._value(name, row), self._names(name)) for name in names] for row in range(len(self))]
        widths = [max(len(cell) for cell in column) for column in zip(names, *rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
                 for line in [names, *rows]]  # fmt: skip
        return "\n".join([*lines, self._footer()])

    def _repr_html_(self) -> str:
        names = self.table.column_names
        rows = []
        for row in range(len(self)):
            values = [self._value(name, row) for name in names]
            rows.append(
                [
                    _thumbnail(value) or _player(value) or _escaped(value, self._names(name))
                    for name, value in zip(names, values, strict=True)
                ]
            )
        return _table(names, rows) + f"<small>{html.escape(self._footer())}</small>"

    def _footer(self) -> str:
        return f"the first {len(self)} of {self.total:,} rows of {self.title}"

    def _value(self, name: str, row: int) -> Any:
        scalar = self.table[name][row]
        value = scalar.as_py()
        if isinstance(value, dict) and set(value) == {"bytes", "path"}:  # the layout of Hugging Face
            return value["bytes"]
        if name == "id" and isinstance(value, bytes) and len(value) == 16:
            return uuid.UUID(bytes=value)
        return value

    def _names(self, column: str) -> list[str] | None:
        return class_names(self.table.schema.field(column))


@dataclass(frozen=True)
class Explanation:
    """The cost of reading a dataset, made by [Dataset.explain][bowstring.Dataset.explain].

    Attributes:
        rows: Rows served, all ranks together.
        bytes: Size of their values.
        steps: Steps per rank.
        lines: All information, as pairs of a heading and a text.
    """

    rows: int
    bytes: int
    steps: int
    lines: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        width = max(len(heading) for heading, _ in self.lines)
        return "\n".join(f"{heading.ljust(width)}  {text}" for heading, text in self.lines)

    def _repr_html_(self) -> str:
        return _table((), [[f"<b>{html.escape(h)}</b>", html.escape(text)] for h, text in self.lines])


def explained(
    plan: Plan,
    request: Mapping[str, Any],
    *,
    title: str,
    narrowing: Sequence[str],
    blob_bytes: int,
    spill: str | None,
    world_size: int,
) -> Explanation:
    """A plan with additional information, for people.

    Args:
        plan: The plan.
        request: The request.
        title: A description of the dataset.
        narrowing: How many rows are left after each condition.
        blob_bytes: Size of the blob columns.
        spill: What the server's spill holds of it.
        world_size: The number of ranks.
    """
    lines = [("dataset", title)]
    lines += [("rows", text) for text in narrowing]
    blobs, others = split_columns(plan.schema)
    parts = []
    if blobs:
        parts.append(f"{size_text(blob_bytes)} of bytes in {', '.join(blobs)}")
    if others:
        parts.append(f"metadata in {', '.join(others)}")
    lines.append(("read", f"{plan.rows:,} rows, {size_text(plan.bytes)}: {'; '.join(parts)}"))
    shuffle = request.get("shuffle")
    order = "in order of position" if shuffle is None else f"shuffled by seed {shuffle['seed']}, each epoch in its own"
    lines.append(("order", f"{order}; {request.get('order', 'strict')}"))
    rows = plan.ranks[0].ticket.get("batch") or request.get("batch")
    each = f" of {rows:,} rows, {-(-rows // world_size):,} for each of {world_size} ranks" if rows else ""
    rest = ""
    if plan.dropped:
        rest = f"; {plan.dropped:,} rows that fill no batch are left out"
    elif plan.padded:
        rest = f"; {plan.padded:,} rows are served again to fill the last batch"
    lines.append(("steps", f"{plan.steps:,}{each if world_size > 1 or not rows else f' of {rows:,} rows'}{rest}"))
    if spill is not None:
        lines.append(("spill", spill))
    return Explanation(plan.rows, plan.bytes, plan.steps, tuple(lines))


def split_columns(schema: pa.Schema) -> tuple[list[str], list[str]]:
    """The blob columns, and the others."""
    blobs = [field.name for field in schema if _is_blob(field)]
    return blobs, [name for name in schema.names if name not in blobs]


def spill_text(spill: Mapping[str, Any], dataset: str) -> str:
    """The part of a dataset that a spill holds, from the server's counters."""
    own = (spill.get("datasets") or {}).get(dataset, {})
    there = f"{own.get('entries', 0):,} blobs, {size_text(own.get('bytes', 0))}, of the snapshot are there"
    return f"{there}; it takes {size_text(spill['held_bytes'])} of the {size_text(spill['budget_bytes'])} it may"


def sound_type(data: bytes) -> str | None:
    """The media type of a sound by its first bytes: of WAV, FLAC, Ogg, and MP3 with tags; None for others."""
    if data.startswith(b"RIFF") and data[8:12] == b"WAVE":
        return "audio/wav"
    types = {b"fLaC": "audio/flac", b"OggS": "audio/ogg", b"ID3": "audio/mpeg"}
    return next((kind for mark, kind in types.items() if data.startswith(mark)), None)


def datasets_html(datasets: Iterable[tuple[str, int, Mapping[str, int], int, str, str]]) -> str:
    """Datasets as a table with name, rows, rows by split, newest snapshot, its time and source."""
    rows = [
        [
            html.escape(name),
            f"{count:,}" if count >= 0 else "?",
            html.escape(", ".join(f"{split} {rows:,}" for split, rows in splits.items())),
            str(newest),
            html.escape(created[:19].replace("T", " ")),
            html.escape(source),
        ]
        for name, count, splits, newest, created, source in datasets
    ]
    return _table(("dataset", "rows", "splits", "snapshot", "created", "from"), rows)


def schema_html(title: str, schema: pa.Schema) -> str:
    """A title, and the columns."""
    rows = []
    for field in schema:
        names = class_names(field)
        about = f"{len(names)} classes: {', '.join(names[:8])}{'…' if len(names) > 8 else ''}" if names else ""
        if media := (field.metadata or {}).get(b"bowstring.media"):
            about = media.decode()
        rows.append([html.escape(field.name), html.escape(str(field.type)), html.escape(about)])
    return f"<div>{html.escape(title)}</div>{_table(('column', 'type', ''), rows)}"


def class_names(field: pa.Field) -> list[str] | None:
    """The names of a column's classes, by number; None if it has none."""
    found = (field.metadata or {}).get(b"bowstring.classes")
    return None if found is None else list(json.loads(found))


def _is_blob(field: pa.Field) -> bool:
    return bool((field.metadata or {}).get(b"bowstring.kind") == b"blob" or pa.types.is_large_binary(field.type))


def size_text(count: int) -> str:
    """A number of bytes, for people."""
    if count < 0:
        return "? B"
    if count < 1000:
        return f"{count} B"
    size, units = count / 1000, ["KB", "MB", "GB", "TB", "PB"]
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:,.0f} {units[0]}" if size >= 100 else f"{size:.3g} {units[0]}"


def _text(value: Any, names: list[str] | None = None) -> str:
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return f"<{size_text(len(value))}>"
    if isinstance(value, int) and names is not None and 0 <= value < len(names):
        return f"{value} ({names[value]})"
    text = str(value).replace("\n", " ")
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 1]}…"


def _escaped(value: Any, names: list[str] | None = None) -> str:
    return html.escape(_text(value, names))


def _thumbnail(value: Any) -> str | None:
    """An HTML image for the bytes of an image; None for other bytes, and without Pillow."""
    if not isinstance(value, bytes) or not 0 < len(value) <= _LARGEST:
        return None
    try:
        from PIL import Image
    except ImportError:
        return None
    try:
        with Image.open(io.BytesIO(value)) as opened:
            width, height = opened.size
            kind = opened.format or ""
            opened.draft("RGB", (_SIDE, _SIDE))  # a JPEG is scaled while it is decoded
            small = opened.convert("RGBA" if "A" in opened.getbands() or "transparency" in opened.info else "RGB")
            small.thumbnail((_SIDE, _SIDE))
            out = io.BytesIO()
            small.save(out, "JPEG" if small.mode == "RGB" else "PNG")
    except Exception:  # noqa: BLE001 - Pillow raises many kinds for bytes that are no image, or a broken one
        return None
    mime = "image/jpeg" if small.mode == "RGB" else "image/png"
    title = html.escape(f"{kind}, {width} x {height}, {size_text(len(value))}", quote=True)
    return f'<img src="data:{mime};base64,{base64.b64encode(out.getvalue()).decode()}" title="{title}" alt="{title}">'


def _player(value: Any) -> str | None:
    """An HTML player for the bytes of a sound; None for other bytes, and for more than a page should hold."""
    if not isinstance(value, bytes) or len(value) > _SOUND:
        return None
    # An MP3 without tags has only the mark of a frame, two bytes: enough for a player, but not for sound_type.
    mime = sound_type(value) or ("audio/mpeg" if value.startswith((b"\xff\xfb", b"\xff\xf3", b"\xff\xf2")) else None)
    if mime is None:
        return None
    title = html.escape(f"{mime}, {size_text(len(value))}", quote=True)
    data = base64.b64encode(value).decode()
    return f'<audio controls preload="none" src="data:{mime};base64,{data}" title="{title}"></audio>'


def _table(header: Iterable[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells in HTML."""
    head = "".join(f'<th style="{_CELL}">{html.escape(name)}</th>' for name in header)
    body = "".join("<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in row) + "</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"
