"""Grain, as it is, on a server: samples by index, and the server's own batches, with states that go on exactly."""

from __future__ import annotations

import io
import itertools
import json
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import bowstring
import grain
import numpy as np
import pyarrow as pa
import pytest
from bowstring._rows.arrays import batch_of, samples_of
from bowstring.grain import DataSource, IterDataset, StateMismatch
from bowstring.torch import BowstringDataset, portable_state
from conftest import StartNode
from grain_steps import decoded, doubled
from node import Node
from PIL import Image
from torch.utils.data import DataLoader
from torch_photos import TRAIN, positions, small
from wire import PATIENCE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*set_vital.*", "ignore:This DataLoader will create"),
]

BATCH = 32  # so that an epoch has nine steps, the last of 14


@pytest.fixture
def source(photos: bowstring.Dataset) -> DataSource:
    return DataSource(photos, columns=["position", "image", "label"])


def place(sample: dict[str, Any]) -> int:
    return int(sample["position"])


def batches(photos: bowstring.Dataset, **more: Any) -> IterDataset:
    given = {"global_batch_size": BATCH, "rank": 0, "world_size": 1, **more}
    return IterDataset(photos.columns(["position"]), **given)


def steps_of(dataset: Any) -> list[list[int]]:
    return [batch["position"].tolist() for batch in dataset]


def threads(dataset: grain.IterDataset, workers: int) -> Any:
    """Grain's worker threads, which slice a dataset, and take turns, as its worker processes do."""
    return grain.experimental.multithread_prefetch(dataset, num_threads=workers, buffer_size=1)


# --- samples by index ---------------------------------------------------------


def test_samples_are_the_rows(photos: bowstring.Dataset, source: DataSource) -> None:
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    table = photos.columns(["position", "image", "label"]).to_arrow().sort_by("position")
    assert len(source) == TRAIN
    for index in (0, 5, np.int64(269), -1):
        sample = source[index]
        assert place(sample) == table["position"][int(index)].as_py()
        assert sample["image"].tobytes() == table["image"][int(index)].as_py()
        assert sample["label"] == table["label"][int(index)].as_py()
    assert [place(s) for s in source._getitems([7, 7, 3])] == [table["position"][i].as_py() for i in (7, 7, 3)]
    assert source._getitems([]) == []
    for index in (270, -271):
        with pytest.raises(IndexError, match=f"index: got {index}, there are 270"):
            source[index]
    with pytest.raises(TypeError):
        source["0"]


def test_a_batched_read_is_one_request(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Consecutive rows, and others: their positions are read once."""
    asked: list[int] = []
    take = bowstring.Exchange.take

    def counted(self: bowstring.Exchange, rows: Any) -> Any:
        asked.append(len(rows))
        return take(self, rows)

    monkeypatch.setattr(bowstring.Exchange, "take", counted)
    everything = bowstring.connect(node.url).dataset("photos").columns(["position"])
    chosen = everything.where("label == 3")
    for dataset in (everything, chosen):
        data = DataSource(dataset)
        pipeline = grain.MapDataset.source(data).seed(1).shuffle()
        found = pipeline._getitems(range(20))
        assert {place(s) for s in found} < set(dataset.positions().tolist())
    assert asked == [20, 20]


def test_a_pipeline_has_many_reads_in_flight(photos: bowstring.Dataset, source: DataSource) -> None:
    pipeline = grain.MapDataset.source(source).seed(7).shuffle().map(decoded).repeat(2)
    options = grain.ReadOptions(num_threads=8, prefetch_buffer_size=32)
    found = [place(s) for s in pipeline.to_iter_dataset(options)]
    everything = sorted(photos.positions().tolist())
    assert sorted(found[:TRAIN]) == sorted(found[TRAIN:]) == everything
    assert found[:TRAIN] != found[TRAIN:]
    assert 1 <= len(source._idle) <= 4  # calls
    source.close()
    assert source._idle == []
    assert place(source[0]) == everything[0]


def test_threads_share_a_request(source: DataSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests made while all calls are running go into the next call; each thread gets its own rows."""
    wanted = source._getitems(range(40))
    take, asked, held = bowstring.Exchange.take, [], threading.Event()

    def slow(self: bowstring.Exchange, rows: Any) -> Any:
        asked.append(len(rows))
        if len(asked) <= 4:
            assert held.wait(PATIENCE)
        return take(self, rows)

    monkeypatch.setattr(bowstring.Exchange, "take", slow)
    with ThreadPoolExecutor(40) as pool:
        reads = [pool.submit(source.__getitem__, index) for index in range(40)]
        while len(source._waiting) < 36:
            time.sleep(0.001)
        held.set()
        found = [read.result(PATIENCE) for read in reads]
    assert [place(one) for one in found] == [place(one) for one in wanted]
    assert sum(asked) == 40
    assert asked[:5] == [1, 1, 1, 1, 36]


def test_a_bad_sample_fails_its_own_thread(source: DataSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the threads whose reads went with it are read again."""
    bad = place(source[7])
    take, held = bowstring.Exchange.take, threading.Event()

    def broken(self: bowstring.Exchange, rows: Any) -> Any:
        assert held.wait(PATIENCE)
        if bad in list(rows):
            raise bowstring.DataLoss(f"position {bad} is damaged")
        return take(self, rows)

    monkeypatch.setattr(bowstring.Exchange, "take", broken)
    with ThreadPoolExecutor(20) as pool:
        reads = [pool.submit(source.__getitem__, index) for index in range(20)]
        while len(source._waiting) < 16:
            time.sleep(0.001)
        held.set()
        for index, read in enumerate(reads):
            if index == 7:
                with pytest.raises(bowstring.DataLoss, match="is damaged"):
                    read.result(PATIENCE)
            else:
                assert place(read.result(PATIENCE)) is not None
    monkeypatch.undo()
    assert place(source[7]) == bad
    assert (source._busy, source._waiting) == (0, [])


def test_worker_processes_go_on_from_a_state(photos: bowstring.Dataset, source: DataSource) -> None:
    source[0]  # a connection is open when they start
    pipeline = grain.MapDataset.source(source).seed(7).shuffle().map(decoded).batch(30).to_iter_dataset()
    pipeline = pipeline.mp_prefetch(grain.MultiprocessingOptions(num_workers=2))
    iterator = iter(pipeline)
    began = [next(iterator)["position"].tolist() for _ in range(4)]
    state = json.loads(json.dumps(iterator.get_state()))
    left = [batch["position"].tolist() for batch in iterator]
    assert sorted(itertools.chain(*began, *left)) == sorted(photos.positions().tolist())
    other = iter(pipeline)
    other.set_state(state)
    assert [batch["position"].tolist() for batch in other] == left
    for one in (iterator, other):
        one.close()


def test_grains_data_loader(photos: bowstring.Dataset, source: DataSource) -> None:
    """Whose checkpoint has the name of its source: that of another dataset is refused."""

    def loader(data: DataSource) -> grain.DataLoader:
        sampler = grain.samplers.IndexSampler(len(data), shuffle=True, seed=3, num_epochs=1)
        operations = [grain.transforms.Batch(batch_size=30)]
        return grain.DataLoader(
            data_source=DataSource(data.dataset, columns=["position"]),
            sampler=sampler,
            operations=operations,
            worker_count=2,
        )

    iterator = iter(loader(source))
    began = [next(iterator)["position"].tolist() for _ in range(3)]
    state = iterator.get_state()
    left = [batch["position"].tolist() for batch in iterator]
    assert sorted(itertools.chain(*began, *left)) == sorted(photos.positions().tolist())
    again = iter(loader(pickle.loads(pickle.dumps(source))))
    again.set_state(state)
    assert [batch["position"].tolist() for batch in again] == left
    with pytest.raises(ValueError, match="DataSource in checkpoint does not match"):
        iter(loader(DataSource(photos.where("width > 0")))).set_state(state)


def test_grains_elastic_iterator(photos: bowstring.Dataset, source: DataSource) -> None:
    """Two shards, and then three that go on: each sample once."""
    order = grain.MapDataset.source(source).seed(5).shuffle().map(place)

    def shards(count: int, state: Any) -> list[Any]:
        made = []
        for index in range(count):
            options = grain.sharding.ShardOptions(shard_index=index, shard_count=count)
            iterator = iter(grain.experimental.ElasticIterator(order, 30, options))
            if state is not None:
                iterator.set_state(state)
            made.append(iterator)
        return made

    two = shards(2, None)
    began = [next(shard).tolist() for _ in range(4) for shard in two]
    left = [batch.tolist() for shard in shards(3, two[0].get_state()) for batch in shard]
    assert sorted(itertools.chain(*began, *left)) == sorted(photos.positions().tolist())


def test_samples_of_a_server_that_was_started_again(start: StartNode) -> None:
    node = start()
    source = DataSource(bowstring.connect(node.url).dataset("photos", split="train").columns(["position"]))
    before = source._getitems(range(10))
    port = node.port
    node.kill()  # a server that drains waits for calls that are open
    node.start(f"127.0.0.1:{port}")
    assert source._getitems(range(10)) == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_process_reads_too(node: Node) -> None:
    """With the calls of its parent open, and while a thread of its parent asks for positions."""
    script = """
import os, sys, bowstring
from bowstring.grain import DataSource
photos = bowstring.connect(sys.argv[1]).dataset("photos", split="train").where("label == 3").columns(["position"])
source = DataSource(photos)
before = [int(source[i]["position"]) for i in range(3)]
source._lock.acquire(), source._changed.acquire()  # as if by another thread
child = os.fork()
if child:
    source._changed.release()
same = [int(source[i]["position"]) for i in range(3)] == before
if not child:
    os._exit(0 if same else 1)
assert same and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    done = subprocess.run(
        [sys.executable, "-c", script, node.url], check=False, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr


def test_random_operators_give_an_index_one_sample(photos: bowstring.Dataset) -> None:
    crops = photos.columns(["image"]).operators(image=[{"Decode": {}}, {"RandomResizedCrop": {"size": [8, 8]}}])
    source = DataSource(crops)
    first, again = source._getitems([1, 2, 1]), source[1]
    assert first[0]["image"].shape == (8, 8, 3)
    assert first[0]["image"].tolist() == first[2]["image"].tolist() == again["image"].tolist()
    with pytest.raises(ValueError, match="read-only"):
        again["image"][0, 0, 0] = 1


# --- the server's batches -----------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1, 2, 5])
def test_batches_are_those_of_the_plan(photos: bowstring.Dataset, workers: int) -> None:
    """In its order, with any number of workers, over the ends of epochs."""
    dataset = batches(photos, epochs=3)
    wanted = [step for epoch in range(3) for step in positions(photos, epoch, batch=BATCH)]
    assert dataset.steps == 9
    found = steps_of(threads(dataset, workers) if workers else dataset)
    assert found == wanted


def test_what_a_batch_is(photos: bowstring.Dataset) -> None:
    resized = photos.columns(["image", "label", "file_name", "id"])
    resized = resized.operators(image=[{"Decode": {}}, {"Resize": {"size": [8, 8]}}])
    (batch, *_) = list(IterDataset(resized, global_batch_size=270))
    assert batch["image"].shape == (270, 8, 8, 3)
    assert batch["image"].dtype == np.uint8
    assert batch["label"].dtype == np.int64
    assert batch["id"].shape == (270, 16)
    assert isinstance(batch["file_name"], list)
    blobs = next(iter(IterDataset(photos, columns=["image"], global_batch_size=4)))["image"]
    assert [b.dtype for b in blobs] == [np.uint8] * 4
    assert Image.open(io.BytesIO(blobs[0])).size


@pytest.mark.parametrize("workers", [0, 3])
def test_grains_own_check_of_states(photos: bowstring.Dataset, workers: int) -> None:
    """Each state of an epoch and a half is gone on from; and all of them have one shape."""
    dataset = batches(photos, epochs=2, global_batch_size=64)
    grain.experimental.assert_equal_output_after_checkpoint(threads(dataset, workers) if workers else dataset)


def test_worker_processes_of_batches(photos: bowstring.Dataset) -> None:
    """Two of them, stopped within the second epoch; and three that go on."""
    dataset = batches(photos, epochs=2)
    wanted = [step for epoch in range(2) for step in positions(photos, epoch, batch=BATCH)]
    two = iter(dataset.map(doubled).mp_prefetch(grain.MultiprocessingOptions(num_workers=2)))
    began = [next(two)["position"].tolist() for _ in range(11)]
    state = json.loads(json.dumps(two.get_state()))
    two.close()
    three = dataset.resume(state).map(doubled).mp_prefetch(grain.MultiprocessingOptions(num_workers=3))
    assert began + steps_of(three) == [[2 * p for p in step] for step in wanted]
    same = iter(dataset.map(doubled).mp_prefetch(grain.MultiprocessingOptions(num_workers=2)))
    same.set_state(state)
    assert began + steps_of(same) == [[2 * p for p in step] for step in wanted]
    same.close()


def test_any_history_of_worlds_and_workers(photos: bowstring.Dataset) -> None:
    """Nothing is lost and nothing comes twice, wherever a job stops, and however many go on."""
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    for turn in range(12):
        epochs = draw.choice([1, 2, 3])
        world, workers, state = draw.choice([1, 2, 3, 4]), draw.choice([0, 1, 2, 3]), None
        done, history = 0, []
        wanted = [sorted(step) for epoch in range(epochs) for step in positions(photos, epoch, batch=BATCH)]
        while done < len(wanted):
            count = draw.randint(1, len(wanted) - done)
            history.append((world, workers, count))
            found: list[list[int]] = [[] for _ in range(count)]
            states = []
            for rank in range(world):
                dataset = batches(photos, epochs=epochs, rank=rank, world_size=world)
                dataset = dataset if state is None else dataset.resume(state)
                iterator = iter(threads(dataset, workers) if workers else dataset)
                for k in range(count):
                    found[k] += next(iterator)["position"].tolist()
                states.append(json.loads(json.dumps(iterator.get_state())))
                if done + count == len(wanted):
                    assert next(iterator, None) is None
                iterator.close()
            # On several ranks the last step of an epoch is filled up, with the first samples of the epoch's order.
            for k, step in enumerate(found):
                full = wanted[done + k]
                assert len(step) == (BATCH if world > 1 else len(full)), (seed, turn, history)
                assert set(step) >= set(full), (seed, turn, history)
                if len(full) == BATCH:
                    assert sorted(step) == full, (seed, turn, history)
            done += count
            state = draw.choice(states)
            world, workers = draw.choice([1, 2, 3, 4]), draw.choice([0, 1, 2, 3])


def test_ranks_of_which_one_has_no_part_of_the_last_step(photos: bowstring.Dataset) -> None:
    """With `uneven`: 270 samples in steps of 67 leave two for the last step of four ranks."""
    uneven = photos.options(remainder="uneven")
    for workers in (0, 2):
        found: list[int] = []
        for rank in range(4):
            dataset = batches(uneven, epochs=2, rank=rank, world_size=4, global_batch_size=67)
            found += itertools.chain(*steps_of(threads(dataset, workers) if workers else dataset))
        assert sorted(found) == sorted([*photos.positions().tolist()] * 2)


def test_states_of_torch_go_on_here_and_back(photos: bowstring.Dataset) -> None:
    wanted = positions(photos, batch=BATCH)
    loader = DataLoader(small(photos), batch_size=None)
    began = [batch["position"].tolist() for batch in itertools.islice(loader, 4)]
    state = portable_state(small(photos).state_at(4, 0))
    assert began + steps_of(batches(photos).resume(state)) == wanted
    iterator = iter(batches(photos))
    began = [next(iterator)["position"].tolist() for _ in range(5)]
    ours = small(photos)
    ours.load_state_dict(iterator.get_state())
    assert began + [batch["position"].tolist() for batch in DataLoader(ours, batch_size=None)] == wanted


def test_it_goes_on_for_ever(photos: bowstring.Dataset) -> None:
    dataset = batches(photos, epochs=None, global_batch_size=270)
    found = [step for step, _ in zip(steps_of_all(dataset), range(4), strict=False)]
    assert found == [positions(photos, epoch, batch=270)[0] for epoch in range(4)]
    assert len({tuple(step) for step in found}) == 4
    empty = photos.where("width < 0")
    assert list(batches(empty, epochs=None)) == []


def steps_of_all(dataset: IterDataset) -> Any:
    return (batch["position"].tolist() for batch in dataset)


def test_what_a_resume_refuses(photos: bowstring.Dataset) -> None:
    dataset = batches(photos, epochs=2)
    iterator = iter(threads(dataset, 2))
    next(iterator)
    state = iterator.get_state()
    worker = state["iterators_in_use_states"][0]
    iterator.close()
    assert (worker["worker"], worker["workers"]) == (0, 2)
    with pytest.raises(StateMismatch, match=r"batch 32.*this dataset is .*batch 64"):
        batches(photos, global_batch_size=64).resume(state)
    with pytest.raises(StateMismatch, match=r"this dataset is .*where"):
        batches(photos.where("width > 0")).resume(state)
    with pytest.raises(StateMismatch, match="there is no state"):
        dataset.resume({"next_index": 3})
    with pytest.raises(StateMismatch, match="states of 1 of 2 workers"):
        dataset.resume(worker)
    apart = [{**worker, "worker": w, "step": step} for w, step in enumerate((2, 7))]
    with pytest.raises(StateMismatch, match=r"not of one point of the job: their next steps are \[2, 7\]"):
        dataset.resume(apart)
    with pytest.raises(StateMismatch, match="different steps"):
        dataset.resume([{**worker, "workers": 1, "step": step} for step in (1, 2)])
    plain = iter(dataset)
    with pytest.raises(StateMismatch, match=r"worker 0 of 2, this is worker 0 of 1.*resume"):
        plain.set_state(worker)
    with pytest.raises(StateMismatch, match="within step 3"):
        plain.set_state({**worker, "workers": 1, "step": 3, "row": 2})
    with pytest.raises(StateMismatch, match="some steps behind 3 are done"):
        dataset.resume({**BowstringDataset(photos, global_batch_size=32).state_at(3), "done": [5]})
    plain.close()
    with pytest.raises(ValueError, match="closed"):
        next(plain)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"global_batch_size": 0}, "global_batch_size: got 0"),
        ({"global_batch_size": 1, "world_size": 2}, "leaves some of 2 ranks without samples"),
        ({"rank": 2, "world_size": 2}, "rank: got rank 2 of 2"),
        ({"rank": None}, "rank, world_size: want both"),
        ({"epochs": 0}, "epochs: got 0"),
    ],
)
def test_wrong_arguments(photos: bowstring.Dataset, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        batches(photos, **arguments)


def test_what_is_refused(photos: bowstring.Dataset) -> None:
    with pytest.raises(ValueError, match="order: got 'free', want 'strict'"):
        batches(photos.options(order="free"))
    with pytest.raises(ValueError, match="sequential_slice"):
        next(iter(grain.experimental.multithread_prefetch(batches(photos), 2, 1, sequential_slice=True)))


def test_the_launcher_says_the_rank(photos: bowstring.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    given = steps_of(batches(photos, rank=1, world_size=2))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    found = batches(photos, rank=None, world_size=None)
    assert steps_of(found) == given
    # A worker process has the rank of the process that has started it, whatever its environment says.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(with_rank_0, [found]) == given


def with_rank_0(dataset: IterDataset) -> list[list[int]]:
    os.environ["RANK"] = "0"
    return steps_of(dataset)


def test_a_step_that_broke_off_comes_whole(photos: bowstring.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one of several record batches was lost with the error, the step is requested from its beginning."""
    small_batches = photos.options(batch_bytes=1)
    wanted = positions(photos, batch=BATCH)
    iterator = iter(batches(small_batches))
    assert next(iterator)["position"].tolist() == wanted[0]
    read = bowstring.Batches.__next__
    calls = itertools.count()

    def broken(self: bowstring.Batches) -> Any:
        if next(calls) == 3:
            raise bowstring.Unavailable("the network is away")
        return read(self)

    monkeypatch.setattr(bowstring.Batches, "__next__", broken)
    with pytest.raises(bowstring.Unavailable):
        next(iterator)
    assert steps_of(iterator) == wanted[1:]


def test_batches_of_a_server_that_was_started_again(start: StartNode) -> None:
    node = start()
    dataset = batches(bowstring.connect(node.url).dataset("photos", split="train").shuffle(3), epochs=2)
    iterator = iter(dataset)
    found = [next(iterator)["position"].tolist() for _ in range(3)]
    port = node.port
    node.stop()
    node.start(f"127.0.0.1:{port}")
    found += steps_of(iterator)
    assert sorted(itertools.chain(*found)) == sorted([*dataset.dataset.positions().tolist()] * 2)


# --- arrays -------------------------------------------------------------------


def test_arrays_of_each_kind() -> None:
    """Whole columns and samples, of slices too: what Arrow says they are."""
    kinds: dict[str, tuple[pa.DataType, list[Any]]] = {
        "bool": (pa.bool_(), [True, False, None, True]),
        "int8": (pa.int8(), [1, -1, None, 3]),
        "half": (pa.float16(), [np.float16(1.5), np.float16(2), None, np.float16(0)]),
        "double": (pa.float64(), [1.5, float("inf"), None, 0.0]),
        "blob": (pa.large_binary(), [b"a\0", b"", None, b"ccc\0"]),
        "bytes": (pa.binary(), [b"a\0", b"", None, b"ccc\0"]),
        "fixed": (pa.binary(2), [b"aa", b"b\0", None, b"cc"]),
        "text": (pa.string(), ["a", "", None, "c"]),
        "tokens": (pa.list_(pa.uint16()), [[1, 65535], [], None, [2]]),
        "wide": (pa.large_list(pa.uint32()), [[1], [2**32 - 1], None, []]),
        "pair": (pa.list_(pa.float32(), 2), [[1, 2], [3, 4], None, [5, 6]]),
        "holes": (pa.list_(pa.int32()), [[1, None], [], None, [2]]),
        "words": (pa.list_(pa.string()), [["a"], [], None, ["b", "c"]]),
        "when": (pa.timestamp("us"), [1, 2, None, 4]),
        "day": (pa.date32(), [1, 2, None, 4]),
        "class": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", None, "a"]),
        "box": (
            pa.struct([("x", pa.int32()), ("name", pa.string())]),
            [{"x": 1, "name": "a"}, {"x": 2, "name": None}, None, {"x": 3, "name": "b"}],
        ),
    }
    whole = pa.record_batch([pa.array(values, kind) for kind, values in kinds.values()], names=list(kinds))
    for record in (whole, whole.slice(1), whole.slice(3), whole.slice(4)):
        samples = samples_of(record)
        assert len(samples) == record.num_rows
        for name, (kind, values) in kinds.items():
            wanted = values[4 - record.num_rows :]
            assert [plain(sample[name], kind) for sample in samples] == wanted, name
    full = whole.take(pa.array([0, 1, 3])).drop_columns(["box"])
    for record in (full, full.slice(1)):
        made = batch_of(record)
        for name, column in made.items():
            wanted = [v for v in kinds[name][1] if v is not None][3 - record.num_rows :]
            assert [plain(cell, kinds[name][0]) for cell in column] == wanted, name
    for name in ("bool", "int8", "half", "double", "fixed", "pair", "when", "day"):
        assert isinstance(made[name], np.ndarray), name
    with pytest.raises(bowstring.InvalidRequest, match="column int8 has nulls"):
        batch_of(whole.select(["int8"]))
    with pytest.raises(bowstring.InvalidRequest, match="column name has nulls"):
        batch_of(whole.select(["box"]).slice(0, 2))
    assert batch_of(whole.select(["box"]).slice(0, 1))["box"]["x"].tolist() == [1]


def plain(cell: Any, kind: Any) -> Any:
    """A cell as the test has written it."""
    if isinstance(cell, np.ndarray):
        return cell.tobytes() if pa.types.is_fixed_size_binary(kind) or "binary" in str(kind) else cell.tolist()
    return cell
