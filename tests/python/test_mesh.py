"""Meshes of ranks: what torch and Megatron say of them, and that ranks which are to get the same do."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bowstring
import pytest
import torch.distributed as dist
from bowstring import Mesh
from bowstring.torch import BowstringDataset, portable_state
from node import Node
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

ROOT = Path(__file__).parents[2]


@pytest.fixture
def rows(node: Node) -> bowstring.Dataset:
    return bowstring.connect(node.url).dataset("photos", split="train").columns(["position", "image"]).shuffle(2)


@pytest.fixture(params=[0, 5])
def fake(request: pytest.FixtureRequest) -> Iterator[int]:
    """A process group of eight ranks: this process is one of them, and the others are not there."""
    dist.init_process_group("fake", rank=request.param, world_size=8, store=FakeStore())
    yield request.param
    dist.destroy_process_group()


def test_ranks_and_their_shares() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(100):
        names = rng.sample(["dp", "dp_replicate", "dp_shard", "tp", "cp", "pp"], rng.randint(1, 6))
        sizes = {name: rng.randint(1, 3) for name in names}
        for rank, at in enumerate(itertools.product(*(range(n) for n in sizes.values()))):
            mesh = Mesh.of(sizes, rank=rank)
            share = 0
            for (name, size), here in zip(sizes.items(), at, strict=True):
                share = share * size + here if name.startswith("dp") else share
            assert (mesh.rank, mesh.data_rank) == (rank, share)
            # Other names of the dimensions make no other shares.
            other = Mesh.of(
                {f"{name}x": size for name, size in sizes.items()},
                rank=rank,
                data=[f"{name}x" for name in sizes if name.startswith("dp")],
            )
            assert (other.rank, other.size) == (mesh.rank, mesh.size)
            assert (other.data_rank, other.data_ranks) == (mesh.data_rank, mesh.data_ranks)


def test_mistakes_raise_errors(rows: bowstring.Dataset) -> None:
    mistakes: list[tuple[Callable[[], object], str]] = [
        (lambda: Mesh.of({"dp": 2, "ep": 2}, rank=0), "got a dimension 'ep', want some of dp"),
        (lambda: Mesh.of({"dp": 2}, rank=2), "got rank 2 of 2"),
        (lambda: Mesh.of({"dp": 0}, rank=0), "got 0 for dp"),
        (lambda: Mesh((("dp", 2), ("dp", 2)), 0), "got 'dp' twice"),
        (lambda: Mesh.of({"x": 2}, rank=0, data=["y"]), "data: got 'y', want some of x"),
        (lambda: Mesh.of({"dp": 2}), "got 2 ranks, and rank says 1; give rank"),
        (lambda: rows.batches(32, mesh={"dp": 1}, rank=0, world_size=1), "mesh: got it with rank and world_size"),
    ]
    for wrong, text in mistakes:
        with pytest.raises(ValueError, match=text):
            wrong()
    with pytest.raises(TypeError, match="mesh: got int, want a DeviceMesh of torch"):
        Mesh.of(3)


def test_torch_device_mesh(fake: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    found = Mesh.of(mesh)
    assert (str(found), found.rank, found.data_rank) == ("pp=2,dp=2,tp=2", fake, fake // 2 % 2)
    # Its ranks may have any numbers: what counts is where this one stands.
    turned = DeviceMesh("cpu", [[7, 6, 5, 4], [3, 2, 1, 0]], mesh_dim_names=("dp", "tp"))
    assert (Mesh.of(turned).rank, Mesh.of(turned).data_rank) == (7 - fake, int(fake < 4))
    assert Mesh.of(turned, data=["tp"]).data_rank == (7 - fake) % 4
    with pytest.raises(ValueError, match="mesh_dim_names"):
        Mesh.of(DeviceMesh("cpu", [0, 1, 2, 3, 4, 5, 6, 7]))
    with pytest.raises(ValueError, match="got a dimension 'rows'"):
        Mesh.of(DeviceMesh("cpu", [0, 1, 2, 3, 4, 5, 6, 7], mesh_dim_names=("rows",)))


class ParallelState:
    """Megatron's parallel_state of 16 ranks in its default order, tp-cp-ep-dp-pp, tp changing first."""

    def __init__(self, rank: int) -> None:
        for name in ("tensor_model", "context", "data", "pipeline_model"):
            rank, at = divmod(rank, 2)
            setattr(self, f"get_{name}_parallel_world_size", lambda: 2)
            setattr(self, f"get_{name}_parallel_rank", lambda at=at: at)


def test_megatron_parallel_state() -> None:
    for rank in range(16):
        mesh = Mesh.of(ParallelState(rank))
        assert (str(mesh), mesh.rank, mesh.data_rank) == ("pp=2,dp=2,cp=2,tp=2", rank, rank // 4 % 2)


def test_ranks_get_the_same(rows: bowstring.Dataset) -> None:
    """Whatever the cuts into batches and the columns; and each sample goes to one data rank."""
    found: dict[int, list[list[int]]] = {}
    digests: dict[int, dict[int, str]] = {}
    for rank in range(8):
        mesh = Mesh.of({"pp": 2, "dp": 2, "tp": 2}, rank=rank)
        request = rows.options(digest=True, batch_bytes=20_000 + 5_000 * rank)
        if rank >= 4:
            request = request.columns(["position"])  # the second stage reads no image
        steps: dict[int, list[int]] = {}
        said: dict[int, str] = {}
        stream = request.batches(32, mesh=mesh)
        for batch in stream:
            place = stream.place or {}
            assert place["rank"] == rank
            steps.setdefault(place["step"], []).extend(batch["position"].to_pylist())
            if place["last"]:
                said[place["step"]] = place["digest"]
            else:
                assert "digest" not in place
        assert found.setdefault(mesh.data_rank, list(steps.values())) == list(steps.values())
        assert digests.setdefault(mesh.data_rank, said) == said
    every = itertools.chain.from_iterable(itertools.chain.from_iterable(found.values()))
    assert sorted(every) == sorted(rows.positions().tolist())
    assert set(digests[0].values()).isdisjoint(digests[1].values())


def test_plan_counts_samples_once(rows: bowstring.Dataset) -> None:
    request = rows.request(batch=32) | {"world": {"mesh": "dp=2,tp=4"}}
    from bowstring.plan import plan_of

    plan, alone = plan_of(rows.client.info(request)), rows.plan(batch=32)
    assert (plan.rows, plan.bytes, len(plan.ranks)) == (alone.rows, alone.bytes, 8)
    assert [rank.rows for rank in plan.ranks[:4]] == [plan.ranks[0].rows] * 4


def test_torch_dataset_goes_on_on_another_mesh(rows: bowstring.Dataset) -> None:
    def part(mesh: dict[str, int], rank: int, state: Any = None, stop: int = -1) -> tuple[list[list[int]], Any]:
        dataset = BowstringDataset(rows, global_batch_size=30, mesh=Mesh.of(mesh, rank=rank), digest=True)
        if state is not None:
            dataset.load_state_dict(state)
        steps = []
        for batch in dataset:
            assert batch.digest
            steps.append(batch["position"].tolist())
            if len(steps) == stop:
                return steps, portable_state(dataset.state_after(batch))
        return steps, None

    whole = [part({"dp": 1}, 0)[0]]
    begun = [part({"dp": 2, "tp": 2}, rank, stop=3) for rank in range(4)]
    assert begun[0] == begun[1]
    assert begun[2] == begun[3]
    rest = [part({"tp": 2, "dp": 3}, rank, begun[0][1])[0] for rank in range(6)]
    assert rest[:3] == rest[3:]
    steps = [a + b for a, b in zip(begun[0][0], begun[2][0], strict=True)]
    steps += [[*one, *two, *three] for one, two, three in zip(*rest[:3], strict=True)]
    assert [step[: len(one)] for step, one in zip(steps, whole[0], strict=True)] == whole[0]


@pytest.mark.slow
def test_two_processes(node: Node) -> None:
    """The example, as it is: two ranks read an epoch and compare each step."""
    done = run([str(ROOT / "examples" / "parallel.py"), node.url, "photos"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the same as the others: True") == 2


@pytest.mark.slow
def test_verify_step_names_the_rank(tmp_path: Path) -> None:
    program = tmp_path / "differs.py"
    program.write_text(
        """
import torch.distributed as dist
from bowstring.torch import Batch, StepMismatch, verify_step
dist.init_process_group("gloo")
rank = dist.get_rank()
batch = Batch()
batch.epoch, batch.step, batch.digest = 1, 7, "00000000000000ab"
verify_step(batch)
verify_step(batch, mesh={"dp": 1, "tp": 3})
if rank == 2:
    batch.digest = "00000000000000cd"
verify_step(batch, mesh={"dp": 3, "tp": 1})  # these are not to get the same
for wanted in ({}, {"mesh": {"dp": 1, "tp": 3}}):
    try:
        verify_step(batch, **wanted)
    except StepMismatch as error:
        assert "rank 2 got step 7 of epoch 1 with digest 00000000000000cd, and 2 of 3 ranks" in str(error), error
        assert "rank 0 got" not in str(error)
    else:
        raise SystemExit("no error was raised")
print("raised")
dist.destroy_process_group()
"""
    )
    done = run([str(program)], ranks=3)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("raised") == 3


def run(program: list[str], ranks: int = 2) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *program],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
