"""The request of a dataset, the tickets that follow from it, and the server's answers to both."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bowstring._requests.mesh import Mesh
from bowstring.connection import Connection
from bowstring.errors import InvalidRequest, NotFound
from bowstring.operators import runs_on_blobs
from bowstring.plan import Plan, plan_of

if TYPE_CHECKING:
    from typing import Self


def snapshot_named(name: str, snapshot: int | str | None) -> dict[str, Any]:
    """A snapshot as an action takes it: `photos`, `photos@3` or `photos@prod`, or name and version apart."""
    if not isinstance(name, str):
        raise TypeError(f"name: got {type(name).__name__}, want str")
    dataset, at, version = name.partition("@")
    if at and snapshot is not None:
        raise InvalidRequest(f"snapshot: got {snapshot!r}, and the name says {name!r}: give one of them")
    if at:
        snapshot = int(version) if version.isascii() and version.isdigit() else version
    return {"dataset": dataset} if snapshot is None else {"dataset": dataset, "snapshot": snapshot}


_PACKED = ("position_ids", "segment_ids", "cu_seqlens")  # columns that packing makes


class Request:
    """Which rows and columns of a snapshot, and in which order. It never changes, and it may be pickled.

    [Dataset][bowstring.Dataset] adds how it is narrowed and read.
    """

    def __init__(self, client: Connection, name: str, snapshot: int, split: str | None, total: int) -> None:
        self._client = client
        self._name = name
        self._snapshot = snapshot
        self._split = split
        self._total = total  # rows of the snapshot, all splits together
        self._where: tuple[str, ...] = ()
        self._selection: dict[str, Any] | None = None
        self._columns: tuple[str, ...] | None = None
        self._seed: int | None = None
        self._options: dict[str, Any] = {}
        self._schema: pa.Schema | None = None
        self._size: tuple[int, int] | None = None  # rows and bytes, once asked for
        self._places: Any = None  # positions by index, once asked for
        self._format = "python"

    @classmethod
    def _open(cls, client: Connection, name: str, split: str | None, snapshot: int | str | None) -> Self:
        about = client.action("describe", **snapshot_named(name, snapshot))[0]
        name = about["dataset"]
        splits = {s["name"]: s["rows"] for s in about["splits"]}
        if split is not None and split not in splits:
            raise NotFound(f"dataset {name}@{about['snapshot']} has no split {split!r}; it has {', '.join(splits)}")
        return cls(client, name, about["snapshot"], split, about["rows"])

    # --- what it is -------------------------------------------------------

    @property
    def client(self) -> Connection:
        """The client that it is read with."""
        return self._client

    @property
    def name(self) -> str:
        """The dataset's name."""
        return self._name

    @property
    def snapshot(self) -> int:
        """The number of its snapshot."""
        return self._snapshot

    @property
    def split(self) -> str | None:
        """The split, or None for all rows."""
        return self._split

    @property
    def schema(self) -> pa.Schema:
        """The schema of its batches."""
        if self._schema is None:
            self._schema = self._client.schema(self.request())
        return self._schema

    @property
    def num_rows(self) -> int:
        """How many rows an epoch has, `where`, `select` and `sample` applied; with `pack` of sequences, of epoch 0."""
        return self._sized()[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the values of all rows in the columns asked for.

        -1 where operators make cells whose sizes are not known before, and where rows are drawn by `sample`, or
        documents are packed.
        """
        return self._sized()[1]

    def __len__(self) -> int:
        return self.num_rows

    def __bool__(self) -> bool:
        return True  # without it, `if dataset:` would ask the server

    def _sized(self) -> tuple[int, int]:
        if self._size is None:
            counted = ("layout", "operators", "sample", "pack")
            plain = self._but(
                _options={k: v for k, v in self._options.items() if k in counted},
                _seed=self._seed if {"sample", "pack"} & set(self._options) else None,
            )
            plan = plain.plan()
            self._size = plan.rows, plan.bytes
        return self._size

    def __getstate__(self) -> dict[str, Any]:
        # Asked for again where they are needed: there may be thousands of names.
        return {**self.__dict__, "_schema": None, "_places": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Request):
            return NotImplemented
        return self._client.uri == other._client.uri and self.request() == other.request()

    def __hash__(self) -> int:
        return hash((self._client.uri, json.dumps(self.request())))

    def _but(self, **changed: Any) -> Self:
        """A copy in which some fields are different. It does not inherit the server's answers about this one."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy.__dict__.update({"_schema": None, "_size": None, "_places": None, **changed})
        return copy

    def _documents(self) -> Self:
        """The rows without `pack`: documents, and their own columns, whole."""
        if not {"pack", "slices"} & set(self._options):
            return self
        columns = self._columns and tuple(name for name in self._columns if name not in _PACKED)
        options = {name: o for name, o in self._options.items() if name not in ("pack", "slices")}
        return self._but(_options=options, _columns=columns or None)

    # --- what is asked of the server --------------------------------------

    def request(self, *, batch: int | None = None, world_size: int = 1, epoch: int = 0) -> dict[str, Any]:
        """The JSON that a descriptor of Flight takes, for clients in other languages, or by hand."""
        request: dict[str, Any] = {"dataset": self._name, "snapshot": self._snapshot}
        if self._split is not None:
            request["split"] = self._split
        if self._where:
            request["where"] = _joined(self._where)
        if self._selection is not None:
            request["selection"] = self._selection
        if self._columns is not None:
            request["columns"] = list(self._columns)
        if self._seed is not None:
            request["shuffle"] = {"seed": self._seed, "epoch": epoch}
        if batch is not None:
            request["batch"] = batch
        if world_size != 1:
            request["world"] = {"size": world_size}
        request.update({name: value for name, value in self._options.items() if name != "place"})
        if "operators" in request and self._columns is not None:
            shown = {part for name in self._columns for part in (name, name.rpartition(".")[0])}
            made = request["operators"]
            led = {o["follows"] for name, o in made.items() if name in shown and "follows" in o}
            if led - shown:
                raise InvalidRequest(f"columns: want {min(led - shown)} among them, which another one follows")
            request["operators"] = {name: o for name, o in made.items() if name in shown}
            if not request["operators"]:
                del request["operators"]
        return request

    def ticket(
        self,
        *,
        batch: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        epoch: int = 0,
        epochs: int = 1,
        step: int = 0,
        row: int = 0,
        stride: int = 1,
        stop: int | None = None,
        mesh: Mesh | None = None,
    ) -> dict[str, Any]:
        """A ticket, made here: what one stream of an epoch serves. The protocol says what each field means.

        A mesh takes the place of `rank` and `world_size`.
        """
        ticket = self.request(batch=batch, world_size=world_size, epoch=epoch) | {"rank": rank, "step": step}
        if mesh is not None:
            ticket |= {"world": {"mesh": str(mesh)}, "rank": mesh.rank}
        ticket = self.placed(ticket)
        if row:
            ticket["row"] = row
        if stride != 1:
            ticket["stride"] = stride
        if stop is not None:
            ticket["stop"] = stop
        elif epochs != 1:
            ticket["epochs"] = epochs
        return ticket

    def placed(self, ticket: dict[str, Any]) -> dict[str, Any]:
        """A ticket with where its operators run, as `options` says."""
        if "place" in self._options and runs_on_blobs(ticket.get("operators", {})):
            return {**ticket, "place": self._options["place"]}
        return dict(ticket)

    def plan(self, *, batch: int | None = None, world_size: int = 1, epoch: int = 0) -> Plan:
        """Ask the server what an epoch comes to: rows, bytes, steps, and a ticket for each rank."""
        return plan_of(self._client.info(self.request(batch=batch, world_size=world_size, epoch=epoch)))


def _joined(expressions: tuple[str, ...]) -> str:
    """One expression of several that all have to hold."""
    if len(expressions) == 1:
        return expressions[0]
    # On a line of its own, the parenthesis is no part of a comment that the expression ends with.
    return " and ".join(f"({e}\n)" if "//" in e else f"({e})" for e in expressions)
