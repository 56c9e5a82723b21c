"""What people see of a dataset: its first rows, what reading it would come to, and lists, as text and in notebooks."""

from __future__ import annotations

import base64
import html
import io
import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bowstring.errors import BowstringError

if TYPE_CHECKING:
    from bowstring.client import Datasets
    from bowstring.dataset import Dataset

_SIDE = 96  # pixels of a thumbnail
_LARGEST = 64 << 20  # bytes of an image that is decoded for one
_TEXT = 40  # characters of a cell
_CELL = "padding:2px 8px;text-align:left;vertical-align:top"


class Preview:
    """The first rows of a dataset, made by [Dataset.head][bowstring.Dataset.head].

    As text, bytes are shown by their size and labels with the names of their classes. A notebook shows images as
    thumbnails, if Pillow is there.

    Attributes:
        table: The rows.
        dataset: What they are of.
    """

    def __init__(self, table: pa.Table, dataset: Dataset) -> None:
        self.table = table
        self.dataset = dataset

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
                    _thumbnail(value) or _escaped(value, self._names(name))
                    for name, value in zip(names, values, strict=True)
                ]
            )
        return _table(names, rows) + f"<small>{html.escape(self._footer())}</small>"

    def _footer(self) -> str:
        return f"the first {len(self)} of {self.dataset.num_rows:,} rows of {_name(self.dataset)}"

    def _value(self, name: str, row: int) -> Any:
        scalar = self.table[name][row]
        value = scalar.as_py()
        if isinstance(value, dict) and set(value) == {"bytes", "path"}:  # the layout of Hugging Face
            return value["bytes"]
        if name == "id" and isinstance(value, bytes) and len(value) == 16:
            return uuid.UUID(bytes=value)
        return value

    def _names(self, column: str) -> list[str] | None:
        found = (self.table.schema.field(column).metadata or {}).get(b"bowstring.classes")
        return None if found is None else list(json.loads(found))


@dataclass(frozen=True)
class Explanation:
    """What reading a dataset would come to, made by [Dataset.explain][bowstring.Dataset.explain].

    Attributes:
        rows: Rows that are served, over all ranks.
        bytes: Bytes of their values.
        steps: Steps of each rank.
        lines: All that is known, as pairs of a heading and a text.
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


def explain(dataset: Dataset, *, batch: int | None = None, world_size: int = 1) -> Explanation:
    """Ask the server what reading a dataset would come to; nothing of it is read."""
    plan = dataset.plan(batch=batch, world_size=world_size)
    lines = [("dataset", _name(dataset))]
    lines += [("rows", text) for text in _narrowing(dataset)]
    blobs = [field.name for field in plan.schema if _is_blob(field)]
    others = [name for name in plan.schema.names if name not in blobs]
    parts = []
    if blobs:
        size = dataset.columns(blobs).nbytes if others else plan.bytes
        parts.append(f"{_size(size)} of bytes in {', '.join(blobs)}")
    if others:
        parts.append(f"metadata in {', '.join(others)}")
    lines.append(("read", f"{plan.rows:,} rows, {_size(plan.bytes)}: {'; '.join(parts)}"))
    request = dataset.request(batch=batch)
    shuffle = request.get("shuffle")
    order = "in order of position" if shuffle is None else f"shuffled by seed {shuffle['seed']}, each epoch in its own"
    lines.append(("order", f"{order}; {request.get('order', 'strict')}"))
    rows = plan.ranks[0].ticket.get("batch") or batch
    each = f" of {rows:,} rows, {-(-rows // world_size):,} for each of {world_size} ranks" if rows else ""
    rest = ""
    if plan.dropped:
        rest = f"; {plan.dropped:,} rows that fill no batch are left out"
    elif plan.padded:
        rest = f"; {plan.padded:,} rows are served again to fill the last batch"
    lines.append(("steps", f"{plan.steps:,}{each if world_size > 1 or not rows else f' of {rows:,} rows'}{rest}"))
    if blobs and (spill := _spill(dataset)):
        lines.append(("spill", spill))
    return Explanation(plan.rows, plan.bytes, plan.steps, tuple(lines))


def _narrowing(dataset: Dataset) -> list[str]:
    """How many rows are left after each condition."""
    plain = dataset._but(_where=(), _selection=None, _split=None, _seed=None, _options={}, _columns=("position",))
    texts = [f"{plain.num_rows:,} in the snapshot"]
    if dataset.split is not None:
        plain = plain._but(_split=dataset.split)
        texts.append(f"{plain.num_rows:,} in split {dataset.split}")
    for n, expression in enumerate(dataset._where):
        plain = plain._but(_where=dataset._where[: n + 1])
        texts.append(f"{plain.num_rows:,} where {expression}")
    if dataset._selection is not None:
        plain = plain._but(_selection=dataset._selection)
        texts.append(f"{plain.num_rows:,} in the selection")
    return texts


def _spill(dataset: Dataset) -> str | None:
    """What the server's spill has of the snapshot, if it has a spill."""
    try:
        spill = dataset.client.stats()["engine"].get("spill")
    except BowstringError:  # a token may allow reading, and not this
        return None
    if spill is None:
        return None
    own = (spill.get("datasets") or {}).get(f"{dataset.name}@{dataset.snapshot}", {})
    there = f"{own.get('entries', 0):,} blobs, {_size(own.get('bytes', 0))}, of the snapshot are there"
    return f"{there}; it takes {_size(spill['held_bytes'])} of the {_size(spill['budget_bytes'])} it may"


def datasets_html(datasets: Datasets) -> str:
    """The datasets of a server, as a table."""
    rows = [
        [
            html.escape(d.name),
            f"{d.rows:,}" if d.rows >= 0 else "?",
            html.escape(", ".join(f"{name} {rows:,}" for name, rows in d.splits.items())),
            str(d.newest),
            html.escape(d.created[:19].replace("T", " ")),
            html.escape(d.source),
        ]
        for d in datasets
    ]
    return _table(("dataset", "rows", "splits", "snapshot", "created", "from"), rows)


def dataset_html(dataset: Dataset) -> str:
    """A dataset: how much it is, and its columns."""
    rows = []
    for field in dataset.schema:
        names = dataset.classes(field.name) if (field.metadata or {}).get(b"bowstring.classes") else None
        about = f"{len(names)} classes: {', '.join(names[:8])}{'…' if len(names) > 8 else ''}" if names else ""
        if media := (field.metadata or {}).get(b"bowstring.media"):
            about = media.decode()
        rows.append([html.escape(field.name), html.escape(str(field.type)), html.escape(about)])
    title = f"{repr(dataset)[1:-1]}: {dataset.num_rows:,} rows, {_size(dataset.nbytes)}"
    return f"<div>{html.escape(title)}</div>{_table(('column', 'type', ''), rows)}"


def _name(dataset: Dataset) -> str:
    return f"{dataset.name}@{dataset.snapshot}" + (f", split {dataset.split}" if dataset.split else "")


def _is_blob(field: pa.Field) -> bool:
    return bool((field.metadata or {}).get(b"bowstring.kind") == b"blob" or pa.types.is_large_binary(field.type))


def _size(count: int) -> str:
    """Bytes, for people."""
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
        return f"<{_size(len(value))}>"
    if isinstance(value, int) and names is not None and 0 <= value < len(names):
        return f"{value} ({names[value]})"
    text = str(value).replace("\n", " ")
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 1]}…"


def _escaped(value: Any, names: list[str] | None = None) -> str:
    return html.escape(_text(value, names))


def _thumbnail(value: Any) -> str | None:
    """An image of HTML for bytes that are one; None for others, and without Pillow."""
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
    title = html.escape(f"{kind}, {width} x {height}, {_size(len(value))}", quote=True)
    return f'<img src="data:{mime};base64,{base64.b64encode(out.getvalue()).decode()}" title="{title}" alt="{title}">'


def _table(header: Iterable[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are HTML already."""
    head = "".join(f'<th style="{_CELL}">{html.escape(name)}</th>' for name in header)
    body = "".join("<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in row) + "</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"
