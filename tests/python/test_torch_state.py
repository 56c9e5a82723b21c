"""States of a job, without a server: what is left of an epoch is the same for any number of ranks and workers."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from bowstring._requests.state import Place, Share, State, check, of_worker, place_for, portable
from bowstring.torch import StateMismatch, portable_state

pytestmark = pytest.mark.slow

REQUEST: dict[str, Any] = {
    "dataset": "d" * 128,
    "snapshot": 2**63 - 1,
    "split": "s" * 128,
    "where": "x" * 16_000,
    "batch": 64,
    "shuffle": {"seed": 2**64 - 1, "epoch": 0},
}


def steps(place: Place, total: int) -> list[int]:
    """The steps that a place leads to."""
    found = []
    while place.next < total or place.single:
        found.append(place.next)
        place = place.after()
    return [step for step in found if step < total]


def in_turns(places: list[Place], total: int) -> list[int]:
    """The order in which a loader gives its workers' steps."""
    lists = [steps(place, total) for place in places]
    return [row[i] for i in range(total) for row in lists if i < len(row)]


def worker_states(places: list[Place], world: int = 1, rank: int = 0) -> list[State]:
    return [of_worker(REQUEST, Share(rank, world, w, len(places)), place) for w, place in enumerate(places)]


def loader_state(workers: list[State], since: int = 0) -> dict[str, Any]:
    """As torchdata's StatefulDataLoader has it."""
    snapshots = {
        f"worker_{w}": {"worker_id": w, "dataset_state": None, "fetcher_state": {"dataset_iter_state": state}}
        for w, state in enumerate(workers)
    }
    return {"_snapshot": {"_worker_snapshots": snapshots}, "_steps_since_snapshot": since}


def test_resumed_again_and_again_with_other_workers() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(300):
        total = rng.randint(1, 40)
        state: State = portable(REQUEST, 5, 0)
        seen: list[int] = []
        while True:
            workers = rng.randint(1, 5)
            places = [place_for(state, Share(0, 1, w, workers)) for w in range(workers)]
            assert in_turns(places, total) == [step for step in range(total) if step not in seen]
            if len(seen) == total:
                break
            # Not in turns: as a loader with in_order=False takes them.
            for _ in range(rng.randint(1, 6)):
                left = [w for w, place in enumerate(places) if place.next < total]
                if not left:
                    break
                w = rng.choice(left)
                seen.append(places[w].next)
                places[w] = places[w].after()
            state = portable_state(loader_state(worker_states(places)))
            assert state == json.loads(json.dumps(state))
        assert sorted(seen) == list(range(total))


def test_in_turns_there_is_nothing_but_a_step() -> None:
    places = [Place(0, 8, 4), Place(0, 9, 4), Place(0, 6, 4), Place(0, 7, 4)]
    state = portable_state(loader_state(worker_states(places)))
    assert state["step"] == 6
    assert "done" not in state
    assert portable_state(loader_state(worker_states(places), since=3))["step"] == 9


def test_states_are_small() -> None:
    state = of_worker(REQUEST, Share(65_535, 65_536, 1023, 1024), Place(2**63 - 1, 2**62, 1024, row=2**31 - 1))
    assert len(json.dumps(state)) <= 1024
    assert len(json.dumps(portable(REQUEST, 2**63 - 1, 2**62))) <= 1024


def test_state_of_another_dataset() -> None:
    state = portable(REQUEST, 0, 3)
    assert check(state, REQUEST) == state
    changes: list[dict[str, Any]] = [
        {"dataset": "other"},
        {"snapshot": 4},
        {"split": "val"},
        {"where": "width > 3"},
        {"selection": {"positions": [1]}},
        {"batch": 32},
        {"remainder": "pad"},
        {"bucket_by_length": {"column": "n"}},
        {"a field of a later server": 1},
        {"shuffle": {"seed": 4, "epoch": 0}},
    ]
    for change in changes:
        with pytest.raises(StateMismatch, match=r"the state is of \(d+@.*this dataset is"):
            check(state, REQUEST | change)
    # The epoch, the columns and the ranks are no part of it.
    check(state, REQUEST | {"shuffle": {"seed": 2**64 - 1, "epoch": 9}, "columns": ["id"], "world": {"size": 4}})
    no_states: list[Any] = [None, {}, {"a": 1}, []]
    for wrong in no_states:
        with pytest.raises(StateMismatch, match="no state of a BowstringDataset"):
            check(wrong, REQUEST)
    with pytest.raises(StateMismatch, match="version 3"):
        check({**state, "bowstring": 3}, REQUEST)


def test_state_of_another_worker() -> None:
    state = of_worker(REQUEST, Share(0, 1, 1, 2), Place(0, 5, 2))
    with pytest.raises(StateMismatch, match=r"worker 1 of 2 on rank 0 of 1, this is worker 1 of 3"):
        place_for(state, Share(0, 1, 1, 3))
    with pytest.raises(StateMismatch, match="1 workers of 2"):
        portable_state(state)


def test_state_of_another_rank() -> None:
    """Ranks are at the same step: of whole ones any rank's state will do, which is what trainers keep."""
    place = Place(3, 5, 2)
    state = of_worker(REQUEST, Share(0, 4, 1, 2), place)
    assert place_for(state, Share(3, 4, 1, 2)) == place
    others = [
        of_worker(REQUEST, Share(0, 4, 1, 2), Place(3, 5, 2, row=7)),
        of_worker(REQUEST | {"order": "free"}, Share(0, 4, 1, 2), place),
        of_worker(REQUEST, Share(0, 2, 1, 2), place),
    ]
    for other in others:
        with pytest.raises(StateMismatch, match=r"on rank 0 of \d, this is worker 1 of 2 on rank 3 of 4"):
            place_for(other, Share(3, 4, 1, 2))


def test_ranks_that_are_not_at_the_same_step() -> None:
    a, b = portable(REQUEST, 2, 7), portable(REQUEST, 2, 9)
    with pytest.raises(StateMismatch, match="steps 7 and 9"):
        portable_state([a, b])
    assert portable_state([a, b], partial="again") == a
    with pytest.raises(StateMismatch, match="epochs 2 and 3"):
        portable_state([a, portable(REQUEST, 3, 7)])


def test_part_of_a_step() -> None:
    workers = worker_states([Place(0, 4, 2, row=3), Place(0, 5, 2)])
    with pytest.raises(StateMismatch, match="worker 0 is within step 4, behind sample 3"):
        portable_state(loader_state(workers))
    assert portable_state(loader_state(workers), partial="again")["step"] == 4


def test_what_is_no_state() -> None:
    wrong: list[Any] = [3, {"x": 1}, {"_snapshot": {}}, {"fetcher_state": None}, []]
    for state in wrong:
        with pytest.raises(ValueError, match="state"):
            portable_state(state)
    with pytest.raises(ValueError, match="partial: got 'no'"):
        portable_state({}, partial="no")
