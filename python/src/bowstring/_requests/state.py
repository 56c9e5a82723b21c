"""Where a job is in its epoch, as a small dictionary, and what may be done with it elsewhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

VERSION = 2
# Fields of a request that do not decide which samples a step holds: how they are served, and to which reader. Any other
# field does, also one of a later server.
WITHOUT_PART = frozenset(
    [
        "columns",
        "layout",
        "operators",
        "place",
        "batch_bytes",
        "world",
        "order",
        "on_error",
        "digest",
        "slices",
        "assign",
        "owners",
        "ranks",
    ]
)
State = dict[str, Any]


class StateMismatch(ValueError):  # noqa: N818 - as the exceptions of the core are called
    """A state was made by another dataset, snapshot, selection, seed or batch size, or by another share of the job."""


def digest(request: Mapping[str, Any]) -> str:
    """A name of what determines which samples a step holds."""
    known = {name: value for name, value in request.items() if name not in WITHOUT_PART}
    if "mixture" in known:
        known["mixture"] = _bare(known["mixture"])
    if "shuffle" in known:
        known["shuffle"] = {name: value for name, value in known["shuffle"].items() if name != "epoch"}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]


def _bare(mixture: Mapping[str, Any]) -> dict[str, Any]:
    """A mixture, or a source of it, without what has no part in which samples a step holds."""
    bare = {name: value for name, value in mixture.items() if name != "operators"}
    if "sources" in bare:
        bare["sources"] = [_bare(s) if isinstance(s, dict) else s for s in bare["sources"]]
    return bare


def snapshots(request: Mapping[str, Any]) -> str:
    """The snapshots that a request or a recorded job reads: one, or those of a mixture."""
    if "mixture" in request:
        return snapshots(request["mixture"])
    if "sources" in request:
        return "+".join(snapshots(source_of(source)) for source in request["sources"])
    return f"{request['dataset']}@{request['snapshot']}"


def source_of(source: str | dict[str, Any]) -> dict[str, Any]:
    """A source of a mixture as an object, which may be text: `name=dataset@3/split*0.7`."""
    if not isinstance(source, str):
        return source
    text, _, weight = source.partition("*")
    text, _, split = text.partition("/")
    name, named, text = text.rpartition("=")
    dataset, _, snapshot = text.partition("@")
    found: dict[str, Any] = {"name": name or dataset} if named else {}
    found |= {"dataset": dataset, "snapshot": int(snapshot) if snapshot.isdigit() else snapshot}
    return found | ({"split": split} if split else {}) | {"weight": json.loads(weight)}


def title(request: Mapping[str, Any]) -> str:
    """A short description of a request, for people."""
    parts = [snapshots(request)[:200]]
    parts += [request["split"][:100]] if "split" in request else []
    parts += ["where …"] if "where" in request else []
    parts += ["selection"] if "selection" in request else []
    if "shuffle" in request:
        parts.append(f"seed {request['shuffle']['seed']}")
    parts.append(f"batch {request['batch']}")
    if "bucket_by_length" in request:
        parts.append(f"of like {request['bucket_by_length'].get('column', 'cost')}"[:100])
    if "sample" in request:
        by = "weights" if "weights" in request["sample"] else "balance"
        parts.append(f"by {by} {request['sample'][by]}"[:100])
    if "pack" in request:
        parts.append(f"packed to {request['pack']['length']}")
    if "remainder" in request:
        parts.append(f"remainder {request['remainder']}")
    return ", ".join(parts)


@dataclass(frozen=True)
class Share:
    """Which part of each global batch, and which steps, a process serves; `idle` says none, as others serve them."""

    rank: int = 0
    world: int = 1
    worker: int = 0
    workers: int = 1
    idle: bool = False


@dataclass(frozen=True)
class Place:
    """The steps of an epoch that one share of it has still to read.

    First the steps of `single`, one by one; then `step` and every `stride`-th after it. `row` samples of the first of
    these steps were served. `served` is what the server needs to know where the order is not strict.
    """

    epoch: int
    step: int
    stride: int = 1
    row: int = 0
    single: tuple[int, ...] = ()
    served: str | None = None

    @property
    def next(self) -> int:
        """The step that comes next."""
        return self.single[0] if self.single else self.step

    def after(self) -> Place:
        """The place when the next step is done."""
        if self.single:
            return replace(self, row=0, single=self.single[1:])
        return replace(self, row=0, step=self.step + self.stride)


def portable(request: Mapping[str, Any], epoch: int, step: int, done: Iterable[int] = ()) -> State:
    """The state of a job that has done all steps before `step`, and those in `done`."""
    state: State = {
        "bowstring": VERSION,
        "of": title(request),
        "digest": digest(request),
        "epoch": epoch,
        "step": step,
    }
    if done:
        state["done"] = sorted(done)
    return state


def of_worker(request: Mapping[str, Any], share: Share, place: Place) -> State:
    """The state of one worker of one rank."""
    state = portable(request, place.epoch, place.step)
    state.update(row=place.row, rank=share.rank, world=share.world, worker=share.worker, workers=share.workers)
    if place.single:
        state["single"] = list(place.single)
    if place.served is not None:
        state["served"] = place.served
    if (order := request.get("order", "strict")) != "strict":
        state["order"] = order
    if (assign := request.get("assign", "plan")) != "plan":
        state["assign"] = assign
    return state


def of_idle(request: Mapping[str, Any], share: Share, epoch: int) -> State:
    """The state of a worker that has nothing to serve."""
    return of_worker(request, share, Place(epoch, 0)) | {"idle": True}


def check(state: Any, request: Mapping[str, Any]) -> State:
    """The state, if it is one of this request."""
    if not isinstance(state, Mapping) or "bowstring" not in state:
        raise StateMismatch(f"this is no state of a BowstringDataset: {str(state)[:200]}")
    if state["bowstring"] != VERSION:
        raise StateMismatch(f"the state is of version {state['bowstring']}, this package reads version {VERSION}")
    if state["digest"] != digest(request):
        raise StateMismatch(f"the state is of ({state['of']}), this dataset is ({title(request)})")
    theirs, ours = state.get("assign", "plan"), request.get("assign", "plan")
    if state.get("row", 0) and theirs != ours:
        raise StateMismatch(
            f"the state is of assign {theirs!r}, within a step; with {ours!r} this rank has other samples of that step"
        )
    if state.get("served") is not None and request.get("order", "strict") == "strict":
        raise StateMismatch(
            f"the state is of order {state.get('order', 'free')!r}, in which samples of later steps are done already; "
            "this dataset is in strict order, which cannot leave them out"
        )
    return dict(state)


def place_for(state: State, share: Share) -> Place:
    """Where a share of the job goes on."""
    if "worker" in state:
        theirs = Share(state["rank"], state["world"], state["worker"], state["workers"], state.get("idle", False))
        # All ranks are at the same step: of whole steps one rank's state, which is what most trainers keep, is enough.
        whole = not state["row"] and "order" not in state
        if (replace(theirs, rank=share.rank) if whole else theirs) != share:
            raise StateMismatch(
                f"the state is of {_who(theirs)}, this is {_who(share)}; "
                "give the state of the whole loader to load_state_dict of the dataset, not of the loader"
            )
        return Place(
            state["epoch"],
            state["step"],
            share.workers,
            state["row"],
            tuple(state.get("single", ())),
            state.get("served"),
        )
    done = set(state.get("done", ()))
    if not done:
        return Place(state["epoch"], state["step"] + share.worker, share.workers)
    # The steps up to the last of those done are dealt out one by one, the others as always.
    end = max(done) + 1
    left = [step for step in range(state["step"], end) if step not in done]
    own = tuple(left[share.worker :: share.workers])
    # The worker whose turn was next takes the first of the others, so that the workers' turns give the plan's order.
    first = (share.worker - len(left)) % share.workers
    return Place(state["epoch"], end + first, share.workers, single=own)


def _who(share: Share) -> str:
    idle = ", which serves nothing," if share.idle else ""
    return f"worker {share.worker} of {share.workers}{idle} on rank {share.rank} of {share.world}"


def portable_state(states: Any, *, partial: str = "error") -> State:
    """One small state of the whole job, from what its loaders say, for any number of ranks and workers.

    ```python
    state = portable_state(loader.state_dict())            # of one rank: the others are at the same step
    state = portable_state(states_of_all_ranks)            # checks that they are
    dataset.load_state_dict(state)                         # on each of the new ranks, before the loader is made
    ```

    A step is the same samples everywhere; so what a job has done is counted in steps. With whole batches
    (`output="batches"`) and one step of training for each, ranks are always at the same step.

    Args:
        states: What `state_dict` of a StatefulDataLoader, of its dataset, or of the dataset's iterator gave; or a list
            of these, of some ranks or all.
        partial: What becomes of a step of which only some ranks, or only some samples, are done: `error`, or `again`
            to serve it from its beginning, so that those samples come twice and none is left out.
    """
    if partial not in ("error", "again"):
        raise ValueError(f"partial: got {partial!r}, want 'error' or 'again'")
    given = list(states) if isinstance(states, (list, tuple)) else [states]
    if not given:
        raise ValueError("states: got none")
    found = [_of_loader(state, partial) for state in given]
    for other in found[1:]:
        if other["digest"] != found[0]["digest"]:
            raise StateMismatch(f"the states are of ({found[0]['of']}) and of ({other['of']})")
        if other["epoch"] != found[0]["epoch"]:
            raise StateMismatch(f"the ranks are in epochs {found[0]['epoch']} and {other['epoch']}")
        if partial == "error" and other != found[0]:
            raise StateMismatch(
                f"the ranks are at steps {found[0]['step']} and {other['step']}; take their states after the same "
                "step, or say partial='again' to repeat what only some of them have done"
            )
    # A step is done if it is for all of them.
    least = min(state["step"] for state in found)
    ends = [max([state["step"], *(n + 1 for n in state.get("done", ()))]) for state in found]
    done = [
        step
        for step in range(least, max(ends))
        if all(step < state["step"] or step in state.get("done", ()) for state in found)
    ]
    while done and done[0] == least:
        least += 1
        del done[0]
    return _with(found[0], least, done)


def _with(state: State, step: int, done: Iterable[int] = ()) -> State:
    made = {name: state[name] for name in ("bowstring", "of", "digest", "epoch")} | {"step": step}
    done = list(done)
    return {**made, "done": done} if done else made


def _of_loader(state: Any, partial: str) -> State:
    """The portable state of what one loader, dataset or iterator gave."""
    if not isinstance(state, Mapping):
        raise StateMismatch(f"got {type(state).__name__}, want the state of a loader or a dataset")
    if "bowstring" in state:
        return _of_workers([dict(state)], partial) if "worker" in state else dict(state)
    if "_snapshot" in state:  # a StatefulDataLoader with workers
        snapshot = state["_snapshot"]
        workers = [_inner(worker) for worker in snapshot.get("_worker_snapshots", {}).values()]
        if not workers:
            raise StateMismatch("the loader's state says nothing of its workers")
        more = state.get("_steps_since_snapshot", 0)
        found = _of_workers(workers, partial)
        if more and (found.get("done") or any("order" in worker for worker in workers)):
            raise StateMismatch(
                "the loader's state does not say what its last batches were; take it with snapshot_every_n_steps=1"
            )
        return _with(found, found["step"] + more, found.get("done", ()))
    if "fetcher_state" in state:  # a StatefulDataLoader without workers
        return _of_workers([_inner(state)], partial)
    raise StateMismatch(f"this is no state of a StatefulDataLoader, or of a BowstringDataset: {str(state)[:200]}")


def _inner(state: Mapping[str, Any]) -> State:
    """The state of the dataset's iterator, from a worker's part of a loader's state."""
    fetcher = state.get("fetcher_state") or {}
    found = fetcher.get("dataset_iter_state")
    if not isinstance(found, Mapping) or "bowstring" not in found:
        raise StateMismatch("the loader's state is not of a BowstringDataset")
    return dict(found)


def _of_workers(states: list[State], partial: str) -> State:
    states = [state for state in states if not state.get("idle")]
    if not states:
        raise StateMismatch("the state is of a worker that serves nothing; want those of all workers")
    first = states[0]
    if len(states) != first["workers"]:
        raise StateMismatch(f"got the states of {len(states)} workers of {first['workers']}, want all of them")
    if any("served" in state for state in states):
        raise StateMismatch(
            f"with order {states[0].get('order', 'free')!r} a job goes on only with the same ranks and workers: give "
            "the state to load_state_dict of a StatefulDataLoader; to change them, use order='strict', or stop at the "
            "end of an epoch"
        )
    if partial == "error" and (cut := next((s for s in states if s["row"]), None)):
        raise StateMismatch(
            f"worker {cut['worker']} is within step {(cut.get('single') or [cut['step']])[0]}, behind sample "
            f"{cut['row']}; only whole steps are the same with other ranks and workers. Say partial='again' to repeat "
            "that step"
        )
    end = max(state["step"] for state in states)
    left = {step for state in states for step in _left(state, end)}
    least = min(left, default=end)
    return _with(first, least, [step for step in range(least, end) if step not in left])


def _left(state: State, end: int) -> Iterator[int]:
    yield from state.get("single", ())
    yield from range(state["step"], end, state["workers"])
