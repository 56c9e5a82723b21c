"""The process that runs operators for this one: `bowstring apply`, and the frames to it and back.

It is the server's own program, so its results equal the server's, byte for byte. It belongs to one stream of one
process; a forked child starts its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import struct
import subprocess
import threading
import weakref
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from bowstring._finalizers import finalizer
from bowstring._local.program import program
from bowstring._rows.integers import to_numpy
from bowstring.errors import (
    BowstringError,
    DataLoss,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    ServerError,
    Unavailable,
    Unsupported,
)

_PIPE = 1 << 20  # size of a pipe, if the kernel allows it
_MOST = 2**31 - 1  # most bytes of a batch for the process
_PATIENCE = 10.0  # seconds that a killed process may take to end
_POLL = 200  # milliseconds between two checks of a process, if the kernel does not report its end
_CODES: dict[str, type[BowstringError]] = {
    e.code: e for e in (InvalidRequest, LimitExceeded, DataLoss, Unsupported, Unavailable, ServerError)
}

Json = dict[str, Any]


def error_of(code: str, text: str) -> BowstringError:
    """The exception that the server would have raised."""
    return _CODES.get(code, ServerError)(text)


class OperatorProcess:
    """A process that makes cells from blobs. `send` and `receive` alternate, at most three batches apart.

    Another thread may call `close`; a running call then fails. After an error only `close` may be called.

    Attributes:
        columns: The columns that have operators.
        forms: What is known of their cells before they are made, by column.
    """

    def __init__(self, operators: Json, seed: int) -> None:
        self.columns = sorted(operators)
        self._pid = os.getpid()
        self._pipes = threading.RLock()  # held while the pipes are written, read or closed
        if fcntl is None:
            raise Unsupported(
                "place: operators at the client need pipes that can be waited for, which Windows does not have; use "
                'place="server"'
            )
        try:
            self._program = str(program())
        except NotFound as error:
            raise Unsupported(
                f'place: operators at the client need the program; {error}; or use place="server"'
            ) from error
        self._end: int | None = None  # readable when the process has ended
        try:
            # In a session of its own, so that an interrupt at the terminal only reaches this process.
            with _starting:
                self._process = subprocess.Popen(
                    [self._program, "apply"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    bufsize=0,
                    start_new_session=True,
                )
        except OSError as error:
            raise self._unfit(str(error)) from error
        for pipe in (self._process.stdin, self._process.stdout):
            os.set_blocking(pipe.fileno(), False)  # type: ignore[union-attr]
            with contextlib.suppress(OSError, AttributeError):  # otherwise it is only slower: macOS has no such call
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE)  # type: ignore[arg-type]
        with contextlib.suppress(OSError, AttributeError):  # an old kernel, or another system
            # The end of a pipe does not show it, because others may hold the pipe
            self._end = os.pidfd_open(self._process.pid)
        _processes.add(self)
        try:
            self.forms: dict[str, Json] = self._welcome(operators, seed)
        except BaseException:
            self.close()
            raise

    def _welcome(self, operators: Json, seed: int) -> dict[str, Json]:
        try:
            self._write_header({"operators": operators, "seed": seed})
            welcome = self._read_header()
        except (ServerError, ValueError) as error:
            raise self._unfit(f"`apply` gave no answer: {error}") from error
        if "error" in welcome:
            raise error_of(welcome["code"], f"operators at the client: {welcome['error']}")
        if "forms" not in welcome:
            raise self._unfit("`apply` gave an answer of another kind")
        forms: dict[str, Json] = welcome["forms"]
        return forms

    def _unfit(self, cause: str) -> Unsupported:
        return Unsupported(
            f"place: the program {self._program!r} does not run operators: {cause}; install a wheel that has "
            'bowstring, set BOWSTRING_BINARY to the path of one that has `apply`, or use place="server"'
        )

    def send(self, batch: pa.RecordBatch, epoch: int) -> None:
        """Send a batch: its positions, and the blobs of the columns that have operators."""
        blobs = [_blobs(batch.column(name)) for name in self.columns]
        header = {
            "epoch": epoch,
            "rows": batch.num_rows,
            "columns": [
                {"name": name, "sizes": sizes.tolist()} for name, (sizes, _) in zip(self.columns, blobs, strict=True)
            ],
        }
        positions = np.ascontiguousarray(to_numpy(batch.column("position")), "<i8")
        size = positions.nbytes + sum(len(content) for _, content in blobs)
        if size > _MOST:
            raise LimitExceeded(
                f"operators at the client: a batch of {batch.num_rows} rows has {size} bytes of blobs, at most {_MOST} "
                "are taken; ask for fewer rows at a time, or for smaller batches by batch or batch_bytes"
            )
        with self._pipes:
            self._write_header(header)
            self._write(positions.view(np.uint8).data)
            for _, content in blobs:
                self._write(content)

    def receive(self) -> tuple[dict[str, tuple[Json, pa.Buffer]], list[Json]]:
        """The results of the oldest batch: by column a description of its cells and their bytes; and faults."""
        with self._pipes:
            header = self._read_header()
            if "error" in header:
                raise error_of(header["code"], f"operators at the client: {header['error']}")
            made = {}
            for column in header["columns"]:
                made[column["name"]] = column, self._read(column["bytes"])
        return made, header.get("faults") or []

    def close(self) -> None:
        """End the process, and wait for it. A thread that waits for the process is woken by its end.

        It returns within some seconds, whatever the process does, and even if others hold the pipes.
        """
        if self._pid != os.getpid():
            return
        self._process.kill()
        # The kernel is still busy with it; subprocess waits for it later
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE)
        # Not earlier: the number of a closed descriptor may be another file's.
        if self._pipes.acquire(timeout=_PATIENCE):
            try:
                self._leave()
            finally:
                self._pipes.release()

    def _leave(self) -> None:
        """Close the pipes. A forked child does too, so that the process sees when the parent closes them."""
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        end, self._end = self._end, None
        if end is not None:
            os.close(end)

    @finalizer
    def __del__(self) -> None:
        if getattr(self, "_process", None) is not None:
            self.close()

    def _write_header(self, header: Json) -> None:
        text = json.dumps(header).encode()
        self._write(memoryview(struct.pack("<I", len(text)) + text))

    def _read_header(self) -> Json:
        (size,) = struct.unpack("<I", self._read(4))
        found: Json = json.loads(self._read(size).to_pybytes())
        return found

    def _write(self, content: memoryview) -> None:
        try:
            while content:
                taken = self._process.stdin.write(content)  # type: ignore[union-attr]
                if taken is not None:
                    content = content[taken:]
                elif self._wait(self._process.stdin, select.POLLOUT):
                    raise self._gone()
        except (BrokenPipeError, ValueError):  # it has ended, or the pipe is closed
            raise self._gone() from None

    def _read(self, size: int) -> pa.Buffer:
        content = np.empty(size, np.uint8)
        left = content.data
        ended = False
        while left:
            try:
                got = self._process.stdout.readinto(left)  # type: ignore[union-attr]
                if got is None and not ended:
                    ended = self._wait(self._process.stdout, select.POLLIN)  # its output so far can still be read
                    continue
            except ValueError:  # the pipe is closed
                got = 0
            if not got:
                raise self._gone()
            left = left[got:]
        return pa.py_buffer(content)

    def _wait(self, pipe: Any, event: int) -> bool:
        """Wait until a pipe is ready, or the process has ended; return whether it has."""
        poll = select.poll()
        poll.register(pipe, event)
        if self._end is not None:
            poll.register(self._end, select.POLLIN)
        while True:
            happened = poll.poll(None if self._end is not None else _POLL)
            if self._process.poll() is not None:
                return True
            if happened:
                return False

    def _gone(self) -> ServerError:
        """The error of a process that has ended, or has closed its pipes."""
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.close()
        status = self._process.poll()
        return ServerError(f"the process that runs operators at the client has ended with status {status}")


_processes: weakref.WeakSet[OperatorProcess] = weakref.WeakSet()
# Held while a process is started, and during a fork: a child forked in between would hold the process's ends of the
# pipes, and its end would go unnoticed.
_starting = threading.RLock()


def _forked() -> None:
    _starting.release()
    for process in list(_processes):
        process._leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_starting.acquire, after_in_parent=_starting.release, after_in_child=_forked)


def _blobs(column: pa.Array) -> tuple[npt.NDArray[np.int64], memoryview]:
    """The sizes of a column's blobs, -1 for a null, and their bytes, concatenated."""
    if not len(column):  # it may have no buffers
        return np.empty(0, np.int64), memoryview(b"")
    wide = pa.types.is_large_binary(column.type)
    width = 8 if wide else 4
    buffers = column.buffers()
    offsets = np.frombuffer(buffers[1], "<i8" if wide else "<i4", len(column) + 1, column.offset * width)
    ends = offsets.astype(np.int64)
    sizes: npt.NDArray[np.int64] = ends[1:] - ends[:-1]
    first, last = int(offsets[0]), int(offsets[-1])
    if column.null_count:
        missing = ~column.is_valid().to_numpy(zero_copy_only=False)
        if sizes[missing].any():
            raise ServerError("the server sent bytes for blobs that are null")
        sizes[missing] = -1
    content = memoryview(b"") if buffers[2] is None else memoryview(buffers[2])[first:last]
    return sizes, content


def validity(valid: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    """Arrow's bitmap; None without nulls."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())


def array_of(field: pa.Field, about: Json, content: pa.Buffer) -> pa.Array:
    """The result for a column, as the server would have sent it."""
    sizes = np.asarray(about["sizes"], np.int64)
    rows = len(sizes)
    valid = sizes >= 0
    bitmap = validity(valid)
    nulls = rows - int(valid.sum())
    ends = np.concatenate([[0], np.cumsum(np.maximum(sizes, 0))])
    if pa.types.is_large_binary(field.type) or pa.types.is_binary(field.type):
        offsets = ends.astype("<i8" if pa.types.is_large_binary(field.type) else "<i4")
        return pa.Array.from_buffers(field.type, rows, [bitmap, pa.py_buffer(offsets), content], nulls)
    storage = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
    if pa.types.is_fixed_size_list(storage):
        values = pa.Array.from_buffers(storage.value_type, rows * storage.list_size, [None, content])
        found = pa.Array.from_buffers(storage, rows, [bitmap], nulls, children=[values])
    else:
        lists, shapes = storage.field("data").type, storage.field("shape").type
        width = lists.value_type.bit_width // 8
        elements = pa.Array.from_buffers(lists.value_type, int(ends[-1]) // width, [None, content])
        bounds = pa.py_buffer((ends // width).astype("<i4"))
        data = pa.Array.from_buffers(lists, rows, [None, bounds], 0, children=[elements])
        none = [0] * shapes.list_size
        flat = np.asarray([s or none for s in about.get("shapes", ())], "<i4").reshape(-1)
        numbers = pa.Array.from_buffers(pa.int32(), len(flat), [None, pa.py_buffer(flat)])
        shape = pa.Array.from_buffers(shapes, rows, [None], 0, children=[numbers])
        found = pa.Array.from_buffers(storage, rows, [bitmap], nulls, children=[data, shape])
    if isinstance(field.type, pa.BaseExtensionType):
        found = pa.ExtensionArray.from_storage(field.type, found)
    return found


def part_of(name: str, field: pa.Field, about: Json, form: Json) -> pa.Array:
    """The column `image.params` or `audio.length`."""
    if name.endswith(".params"):
        return pa.array(about["params"], field.type)
    axis = form["shape"].index(None)
    return pa.array([s and s[axis] for s in about.get("shapes", ())], field.type)


def parts(columns: Sequence[str], made: Collection[str]) -> dict[str, str]:
    """The columns that describe results, and the column that each one describes."""
    found = {}
    for name in columns:
        base, _, part = name.rpartition(".")
        if base in made and part in ("params", "length"):
            found[name] = base
    return found


def raw_columns(wanted: Sequence[str], operators: Json) -> list[str]:
    """The columns to request, with operators at the client, to get the wanted ones."""
    # An expression may have the name of a column that describes results.
    made = [name for name, steps in operators.items() if "expression" not in steps]
    described = parts([name for name in wanted if name not in operators], made)
    columns = [name for name in wanted if name not in described]
    columns += [base for base in dict.fromkeys(described.values()) if base not in columns]
    return columns if "position" in columns else [*columns, "position"]


def process_for(schema: pa.Schema, seed: int) -> OperatorProcess:
    """A process for the operators that the server lists in the schema's metadata."""
    operators = {f.name: (f.metadata or {}).get(b"bowstring.operators") for f in schema}
    return OperatorProcess({name: json.loads(text) for name, text in operators.items() if text is not None}, seed)


def fault_of(fault: Json, snapshot: str) -> BowstringError:
    """The exception of a cell that could not be made."""
    where = f'sample (position {fault["position"]} of {snapshot}), column "{fault["column"]}"'
    return error_of(fault["code"], f"{where}: {fault['cause']}")


def assembled(
    target: pa.Schema, raw: pa.RecordBatch, made: dict[str, tuple[Json, pa.Buffer]], forms: dict[str, Json]
) -> pa.RecordBatch:
    """The batch as the server would have sent it, from the raw batch and the results."""
    described = parts([name for name in target.names if name not in raw.schema.names], made)
    arrays = []
    for field in target:
        if field.name in made:
            arrays.append(array_of(field, *made[field.name]))
        elif field.name in described:
            base = described[field.name]
            arrays.append(part_of(field.name, field, made[base][0], forms[base]))
        else:
            arrays.append(raw.column(field.name))
    return pa.RecordBatch.from_arrays(arrays, schema=target)
