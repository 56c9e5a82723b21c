"""Several datasets in one: an epoch is drawn from all of them, by weights."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from bowstring._messages import shown
from bowstring._requests.state import source_of
from bowstring._transport.wire import decoded
from bowstring.dataset import Dataset
from bowstring.errors import InvalidRequest
from bowstring.preview import Explanation, explained
from bowstring.stream import Batches

End = Literal["reshuffle", "stop", "drop"]


@dataclass(frozen=True)
class SourceShare:
    """A source of a mixture, and what of an epoch is of it.

    Attributes:
        name: The source's name.
        dataset: The dataset that it is of, and its snapshot.
        snapshot: The number of the snapshot.
        samples: How many samples the source has, once each.
        rows: How many rows of the epoch are of it.
    """

    name: str
    dataset: str
    snapshot: int
    samples: int
    rows: int


def mixture(
    sources: Mapping[str, Dataset],
    *,
    weights: Mapping[str, float] | None = None,
    repeat: Mapping[str, float] | None = None,
    choose: Mapping[str, int] | None = None,
    ends: Mapping[str, End] | None = None,
    by: str | None = None,
    epoch_size: int | None = None,
    pick: Literal["random", "exact", "one_source"] | None = None,
    schedule: Sequence[Mapping[str, Any]] | None = None,
    run: str | None = None,
) -> Mixture:
    """Mix datasets: each epoch has rows of all of them, as the weights say.

    ```python
    mixed = bowstring.mixture(
        {"web": client.dataset("web"), "code": client.dataset("code").where("stars > 10")},
        weights={"web": 0.7, "code": 0.3},
    ).shuffle(7)
    for batch in mixed.columns(["source", "text"]).batches(256, epoch=0): ...
    ```

    Each source is shuffled by itself. Row k of a source is the k-th of its own epochs, one after the other, whatever
    the weights: nothing is lost or doubled where they change, and a ticket goes on with any number of ranks. Columns
    go by name; one that a source lacks is null in its rows. The column `source` has the name of the source, and
    `position` the row's place in the source's snapshot.

    Args:
        sources: The datasets by name, of one server; narrowed by `split` and `where` as you like. Columns, options and
            the shuffle are those of the mixture. A dataset may have `operators` for columns of bytes: they come before
            those of the mixture. A mixture may be a source of another.
        weights: A number for each source; only their ratios count. 0 leaves a source out.
        repeat: In the place of weights: how often an epoch has all samples of each source.
        choose: In the place of weights: how many samples an epoch has of a source. `repeat` and `choose` may be given
            for different sources.
        ends: What becomes of a source at its end: `reshuffle`, its own next epoch begins (the default); `stop`, no
            epoch is longer than it; `drop`, the others go on without it.
        by: What weights are by: `samples`; or a column of integers, such as the number of tokens, or the size of a
            column of bytes, such as `image.size`, whose sums are as the weights say.
        epoch_size: Rows of an epoch; without it, as many as the sources have together.
        pick: `random`: rows take turns; `exact`: each batch has its part of each source, to a row; `one_source`: each
            batch is of one source.
        schedule: Changes of weights, such as `{"step": 1000, "weights": {"web": 0.5}, "over": 200}`: from step 1000
            on, counted over all epochs, the weight goes to 0.5 within 200 steps.
        run: A name of the training run, so that [Client.steer][bowstring.Client.steer] may change weights while it
            goes on.
    """
    if not isinstance(sources, Mapping) or not sources:
        raise TypeError("sources: want datasets by name, such as {'web': client.dataset('web')}")
    amounts: dict[str, dict[str, Any]] = {name: {} for name in sources}
    for kind, given in {"weight": weights, "repeat": repeat, "choose": choose, "end": ends}.items():
        for name, value in (given or {}).items():
            if name not in amounts:
                raise InvalidRequest(f"{kind}: got source {shown(name)}, want one of {', '.join(sources)}")
            amounts[name][kind] = value
    about: dict[str, Any] = {"sources": [_source(name, d, amounts[name]) for name, d in sources.items()]}
    given_also = {"epoch_size": epoch_size, "by": by, "pick": pick, "run": run}
    about |= {name: value for name, value in given_also.items() if value is not None}
    if schedule is not None:
        about["schedule"] = [{**change, "weights": dict(change["weights"])} for change in schedule]
    clients = {d.client.uri: d.client for d in sources.values()}
    if len(clients) > 1:
        raise InvalidRequest(f"sources: want datasets of one server, got {' and '.join(sorted(clients))}")
    mixed = Mixture(next(iter(clients.values())), "+".join(sources), 0, None, 0)
    mixed._mixture = about
    _ = mixed.schema  # a mistake is found here
    return mixed


def _source(name: str, dataset: Dataset, amount: dict[str, Any]) -> dict[str, Any]:
    """A source of a request, as an object."""
    if not isinstance(dataset, Dataset):
        raise TypeError(f"sources[{name!r}]: got {type(dataset).__name__}, want a Dataset")
    for what, given in {
        "columns": dataset._columns is not None,
        "shuffle": dataset._seed is not None,
        "select": dataset._selection is not None,
        "options": bool(set(dataset._options) - {"operators"}),
    }.items():
        if given:
            where = "want where or a split" if what == "select" else "want it of the mixture"
            raise InvalidRequest(f"sources[{name!r}]: got a dataset with {what}, {where}")
    if isinstance(dataset, Mixture):
        if more := sorted(set(dataset._mixture) - {"sources"}):
            raise InvalidRequest(f"sources[{name!r}]: got a mixture with {more[0]}, want it of the whole mixture")
        return {"name": name, "sources": dataset._mixture["sources"], **amount}
    request = dataset.request()
    return {"name": name, **request, **amount}


class Mixture(Dataset):
    """Several datasets in one, which [mixture][bowstring.mixture] makes. It is read as a dataset is.

    Rows are narrowed in the sources, before they are mixed. There is no `take`: a row is found in its own dataset, by
    the columns `source` and `position`.
    """

    _mixture: dict[str, Any]

    def request(self, *, batch: int | None = None, world_size: int = 1, epoch: int = 0) -> dict[str, Any]:
        """The JSON that a descriptor of Flight takes, for clients in other languages, or by hand."""
        request = super().request(batch=batch, world_size=world_size, epoch=epoch)
        del request["dataset"], request["snapshot"]
        return {"mixture": _short(self._mixture), **request}

    def sources(self, *, batch: int | None = None, epoch: int = 0) -> list[SourceShare]:
        """The sources, and how many rows of an epoch are of each, as the server says it."""
        about = decoded(self._client.info(self.request(batch=batch, epoch=epoch)).app_metadata)
        return [SourceShare(**source) for source in about["sources"]]

    def _sized(self) -> tuple[int, int]:
        if self._size is None:
            plan = self.plan()
            self._size = plan.rows, plan.bytes
        return self._size

    def __repr__(self) -> str:
        return super().__repr__().replace(f"Dataset {self._name}@0", f"Mixture {self._name}", 1)

    def resume(self, ticket: dict[str, Any], *, references: bool = False) -> Batches:
        """Go on from a ticket that [Batches.ticket][bowstring.Batches] gave, here or in another process."""
        if _read(ticket.get("mixture")) != _read(self._mixture):
            raise InvalidRequest("ticket: got one of something else, want one of a mixture of the same snapshots")
        return self._stream(dict(ticket), references=references)

    def _with_options(self, **options: Any) -> Dataset:
        if options.get("place", "server") != "server":
            raise InvalidRequest('place: got a mixture, want "server": what operators draw depends on the source')
        return super()._with_options(**options)

    def where(self, expression: str | None = None, *, sql: str | None = None) -> NoReturn:
        """Rows are narrowed in the sources."""
        given = shown(sql if expression is None else expression)
        raise InvalidRequest(f"where: got {given} for a mixture, want it in its sources, before they are mixed")

    def select(self, rows: Any, *names: str) -> NoReturn:  # noqa: ARG002 - as a Dataset has it
        """Rows are narrowed in the sources."""
        raise InvalidRequest(
            "select: got rows of a mixture, want `where` or a split in its sources, before they are mixed"
        )

    def positions(self) -> NoReturn:
        """A position is one in the snapshot of a source."""
        raise InvalidRequest(
            "positions: a mixture has none; its columns `source` and `position` say where rows come from"
        )

    def exchange(self, *, epoch: int = 0) -> NoReturn:  # noqa: ARG002 - likewise
        """Single rows are taken from the sources."""
        raise InvalidRequest(
            "take: got a mixture, want the dataset of a source, by the columns `source` and `position`"
        )

    def take(self, rows: Any, *, columns: Iterable[str] | None = None) -> NoReturn:  # noqa: ARG002 - likewise
        """Single rows are taken from the sources."""
        self.exchange()

    def explain(self, *, batch: int | None = None, world_size: int = 1) -> Explanation:
        """Describe what would be read, and how much, without reading it."""
        plan = self.plan(batch=batch, world_size=world_size)
        return explained(
            plan,
            self.request(batch=batch),
            title=self._title(),
            narrowing=[
                f"{s.rows:,} of {s.name}, which has {s.samples:,} ({s.dataset}@{s.snapshot})"
                for s in self.sources(batch=batch)
            ],
            blob_bytes=plan.bytes,
            spill=None,
            world_size=world_size,
        )

    def _title(self) -> str:
        return f"mixture of {self._name}"


def _short(mixture: dict[str, Any]) -> dict[str, Any]:
    """The same with each source as text that has one, as each ticket repeats them all."""
    sources = [_short(s) if "sources" in s else _text(s) for s in mixture["sources"]]
    return copy.deepcopy({**mixture, "sources": sources})


def _text(source: dict[str, Any]) -> str | dict[str, Any]:
    """A source as text, or as it is where text does not say all."""
    name, dataset, weight = source["name"], source["dataset"], source.get("weight")
    if not NAME.fullmatch(name) or weight is None or not set(source) <= {"name", "weight", *READ}:
        return source
    split = f"/{source['split']}" if "split" in source else ""
    return f"{'' if name == dataset else name}={dataset}@{source['snapshot']}{split}*{json.dumps(weight)}"


NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
READ = ("dataset", "snapshot", "split")  # what a source's text says it reads


def _read(mixture: Any) -> list[Any]:
    """The sources of a mixture, as text: names, snapshots and filters."""
    if not isinstance(mixture, dict):
        return []
    return [
        _read(source) if "sources" in source else [source.get(name) for name in ("name", *READ, "where")]
        for source in map(source_of, mixture["sources"])
    ]
