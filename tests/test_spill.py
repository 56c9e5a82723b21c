"""The spill: what was fetched over a link is kept on the node's disk, shared by jobs, and never wrong."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.flight as fl
import pytest
from conftest import PHOTOGRAPHS
from node import Node
from wire import PATIENCE, UNREAD, Piece, act, command, stats, stream, ticket, until

Bowstring = Callable[..., subprocess.CompletedProcess[str]]
StartFar = Callable[..., Node]
TRAIN = 270
LINK = ("--rtt", "5ms")
LARGE, SMALL = "128MiB", "16MiB"  # all photographs fit in one, and about a third in the other


def sized(budget: str) -> list[str]:
    """Give options of a spill of a size that does not depend on what else is on the machine."""
    return ["--spill-bytes", budget, "--spill-min-bytes", budget, "--spill-keep-free", "1MiB"]


@pytest.fixture
def far(imported: Path, lab: Path, tmp_path: Path) -> Iterator[StartFar]:
    """Start servers of the test's own, over a link to a copy of the store, with the spill in `spill`."""
    started: list[Node] = []
    store = tmp_path / "store"
    shutil.copytree(imported, store)

    def begin(*options: str, budget: str = LARGE) -> Node:
        spill = ("--spill", str(tmp_path / "spill"), *sized(budget))
        own = Node(lab, store, *LINK, *spill, *options, log=tmp_path / f"far{len(started)}.log")
        own.start()
        started.append(own)
        return own

    yield begin
    for own in started:
        own.kill()


@pytest.fixture(scope="module")
def files(folder: Path) -> dict[str, bytes]:
    """The photographs by file name."""
    return {p.name: p.read_bytes() for p in folder.rglob("*.jpg")}


def epoch(client: fl.FlightClient, files: dict[str, bytes], seed: int, number: int, **request: Any) -> None:
    """Read a shuffled epoch and compare it with the files: each of them exactly once."""
    shuffle = {"seed": seed, "epoch": number}
    info = client.get_flight_info(
        command(dataset="photos", columns=["file_name", "image"], batch=16, shuffle=shuffle, **request)
    )
    names: list[str] = []
    for endpoint in info.endpoints:
        names.extend(checked(stream(client, endpoint), files))
    assert len(names) == info.total_records
    assert max(Counter(names).values()) == 1


def checked(served: Iterator[Piece], files: dict[str, bytes]) -> Iterator[str]:
    """Yield the names of samples after comparing each one's bytes."""
    for piece in served:
        for row in piece.data.to_pylist():
            name = Path(row["file_name"]).name
            assert row["image"] == files[name], f"{name} has wrong bytes"
            yield name


def spill(client: fl.FlightClient) -> dict[str, Any]:
    found = stats(client)["engine"]["spill"]
    assert isinstance(found, dict)
    return found


def read_from_store(client: fl.FlightClient) -> int:
    """Blobs that came from the store. Reads made because the disk was slow are not among them: see hedged."""
    reasons: dict[str, int] = stats(client)["engine"]["read_reasons"]
    return sum(reasons.values()) - reasons.get("hedge", 0)


def hedged(client: fl.FlightClient) -> int:
    """Blobs that the store brought as the disk took long."""
    return int(stats(client)["engine"]["read_reasons"].get("hedge", 0))


def fill(client: fl.FlightClient, files: dict[str, bytes]) -> None:
    """Read an epoch, and wait until all of it is kept: it is stored behind the stream's back."""
    epoch(client, files, seed=1, number=0)
    until(lambda: spill(client)["entries"] == PHOTOGRAPHS, "storing what was read")


def test_the_second_epoch_comes_from_the_spill(far: StartFar, files: dict[str, bytes]) -> None:
    with fl.connect(far().url) as client:
        fill(client, files)
        before, reads = spill(client), read_from_store(client)
        assert before["stored"] == before["datasets"]["photos@1"]["entries"] == PHOTOGRAPHS
        assert before["bytes"] == sum(map(len, files.values())) < before["held_bytes"] <= before["budget_bytes"]
        epoch(client, files, seed=1, number=1)
        after = spill(client)
        assert after["hits"] - before["hits"] == PHOTOGRAPHS
        assert after["misses"] == before["misses"]
        assert stats(client)["engine"]["spill_reads"] + hedged(client) >= PHOTOGRAPHS
        assert read_from_store(client) == reads


def test_epochs_of_one_stream(far: StartFar, files: dict[str, bytes]) -> None:
    """Rows prefetched across the end of an epoch are served once, and only the first epoch needs the store."""
    with fl.connect(far().url) as client:
        request: dict[str, Any] = {"dataset": "photos", "split": "train", "columns": ["file_name", "image"],
                                   "shuffle": {"seed": 4}, "order": "free", "epochs": 3}  # fmt: skip
        seen: dict[int, list[str]] = {}
        for piece in stream(client, ticket(**request)):
            seen.setdefault(piece.about["epoch"], []).extend(checked(iter([piece]), files))
        train = Counter(seen[0])
        assert len(train) == TRAIN
        assert all(Counter(seen[number]) == train for number in (0, 1, 2))
        engine = stats(client)["engine"]
        assert engine["spill_reads"] + engine["shared_reads"] > 0  # what a window still holds is not read again


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_another_server_finds_what_is_there(far: StartFar, files: dict[str, bytes], kill: bool) -> None:
    first = far()
    with fl.connect(first.url) as client:
        fill(client, files)
    if kill:
        first.kill()
    else:
        assert first.stop() == 0
    with fl.connect(far().url) as client:
        found = spill(client)
        # Entries that are not in the index when a process is killed are lost, which is allowed for a cache.
        assert (0 < found["entries"] <= PHOTOGRAPHS) if kill else (found["entries"] == PHOTOGRAPHS)
        reads = read_from_store(client)
        epoch(client, files, seed=2, number=0)
        assert spill(client)["hits"] == found["entries"]
        assert spill(client)["damaged"] == 0
        if not kill:
            # The manifest is no blob of the spill's.
            assert read_from_store(client) - reads < 5


def test_a_directory_belongs_to_one_server(
    far: StartFar, bowstring: Bowstring, lab: Path, imported: Path, files: dict[str, bytes], tmp_path: Path
) -> None:
    node = far()
    other = tmp_path / "other"
    shutil.copytree(imported, other)
    options: list[str | Path] = ["--store", other, "--spill", tmp_path / "spill", *sized(LARGE)]
    command = [lab, "serve", *options, "--listen", "127.0.0.1:0"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = (text for text in done.stderr.splitlines() if text.startswith("bowstring-lab: "))
    assert "in use by" in line
    assert str(node.pid) in line
    assert str(tmp_path / "spill") in line
    bowstring("ls", "--store", other)  # and the store was released
    with fl.connect(node.url) as client:  # the first one is none the worse for it
        epoch(client, files, seed=1, number=0)


@pytest.mark.parametrize("part", ["blobs", "index"])
def test_flipped_bits_are_never_served(
    far: StartFar, files: dict[str, bytes], tmp_path: Path, part: str, request: pytest.FixtureRequest
) -> None:
    first = far()
    with fl.connect(first.url) as client:
        fill(client, files)
    assert first.stop() == 0
    seed = random.SystemRandom().getrandbits(32)
    print(f"{request.node.name}: seed {seed}")
    flip(tmp_path / "spill" / part, random.Random(seed), every=2_000 if part == "blobs" else 200)
    node = far()
    with fl.connect(node.url) as client:
        for number in (1, 2):
            epoch(client, files, seed=1, number=number)
        if part == "blobs":
            assert spill(client)["damaged"] > 0
        assert node.stop() == 0


def flip(root: Path, rng: random.Random, every: int) -> None:
    """Flip one bit per this number of bytes, on average, of each file."""
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        data = bytearray(path.read_bytes())
        for _ in range(-(-len(data) // every)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)


def test_jobs_share_it(far: StartFar, bowstring: Bowstring, files: dict[str, bytes]) -> None:
    node = far()
    with fl.connect(node.url) as client:
        fill(client, files)
        reads = read_from_store(client)
        # Other seeds, splits and filters on the same samples.
        with ThreadPoolExecutor(3) as pool:
            jobs = [
                pool.submit(epoch, client, files, 7, 0),
                pool.submit(epoch, client, files, 8, 3, split="train"),
                pool.submit(epoch, client, files, 9, 1, where="label < 5"),
            ]
            for job in jobs:
                job.result()
        assert read_from_store(client) == reads

        # Two that are held half way: each is listed with what it has gained.
        held = []
        for seed in (21, 22):
            request = {"dataset": "photos", "columns": ["file_name", "image"], "batch": 4, "shuffle": {"seed": seed}}
            served = stream(client, ticket(**request, epochs=UNREAD))
            held.append((len(list(checked(islice(served, 3), files))), served))
        # Those that have ended are listed for a while, as they may go on with another epoch.
        running = [job for job in stats(client)["engine"]["jobs"] if job["streams"]]
        assert len({job["job"] for job in running}) == 2
        for job in running:
            assert job["dataset"] == "photos@1"
            assert job["rows"] == PHOTOGRAPHS
            assert job["streams"] == 1
            got = min(rows for rows, _ in held)
            assert job["spill_reads"] + job["window_reads"] + job["store_reads"] >= got > 0
            assert job["store_reads"] <= hedged(client)

        done = json.loads(bowstring("ls", "--cache", "--json", "--server", node.url).stdout)
        (listed,) = done["datasets"]
        assert listed["dataset"] == "photos@1"
        assert listed["entries"] == PHOTOGRAPHS
        assert listed["bytes"] == sum(map(len, files.values()))
        assert listed["misses"] >= PHOTOGRAPHS
        assert 0.5 < listed["hit_rate"] < 1
        assert {job["job"] for job in listed["jobs"]} >= {job["job"] for job in running}
        text = bowstring("ls", "photos", "--cache", "--server", node.url).stdout
        assert "photos@1" in text
        assert all(f"job {job['job']}" in text for job in running)
        assert "of 128 MiB held, policy next-use" in text
        assert "photos" not in bowstring("ls", "other*", "--cache", "--server", node.url).stdout

        for got, served in held:
            assert got + len(list(checked(served, files))) == UNREAD * PHOTOGRAPHS


def test_jobs_that_start_together(far: StartFar, files: dict[str, bytes]) -> None:
    with fl.connect(far().url) as client, ThreadPoolExecutor(2) as pool:
        for job in [pool.submit(epoch, client, files, seed, 0) for seed in (1, 2)]:
            job.result()
        until(lambda: spill(client)["entries"] == PHOTOGRAPHS, "storing what was read")
        before = read_from_store(client)
        epoch(client, files, seed=3, number=0)
        assert read_from_store(client) == before


def test_a_small_budget_is_kept(far: StartFar, files: dict[str, bytes]) -> None:
    with fl.connect(far(budget=SMALL).url) as client:
        for number in range(3):
            epoch(client, files, seed=1, number=number)
            found = spill(client)
            assert found["held_bytes"] <= found["budget_bytes"] == 16 << 20
        assert 0 < found["entries"] < PHOTOGRAPHS


def test_warm_and_then_nothing_is_read_from_the_store(
    far: StartFar, bowstring: Bowstring, files: dict[str, bytes]
) -> None:
    node = far()
    warm = ["warm", "photos/train", "--shuffle-seed", "5", "--epoch", "2", "--server", node.url]
    done = json.loads(bowstring(*warm, "--json").stdout)
    assert done["done"]
    assert done["rows"] == done["seen"] == done["stored"] == TRAIN
    assert done["there"] == done["failed"] == 0
    with fl.connect(node.url) as client:
        assert done["bytes"] == spill(client)["bytes"]
        before, reads = spill(client), read_from_store(client)
        epoch(client, files, seed=5, number=2, split="train")
        assert read_from_store(client) == reads
        after = spill(client)
        assert (after["hits"] - before["hits"], after["misses"] - before["misses"]) == (TRAIN, 0)
        spilled = stats(client)["engine"]["spill_reads"]
        assert spilled <= TRAIN <= spilled + hedged(client)  # both may have brought one

        # Once more fetches what is new.
        *_, last = act(client, "warm", dataset="photos", columns=["image"])
        assert last["done"]
        assert (last["there"], last["stored"]) == (TRAIN, PHOTOGRAPHS - TRAIN)
    done_again = bowstring(*warm)
    assert done_again.stdout == ""
    assert f"{TRAIN} were there already" in done_again.stderr


def test_warm_says_when_it_is_full(far: StartFar) -> None:
    with fl.connect(far(budget=SMALL).url) as client:
        *_, last = act(client, "warm", dataset="photos", shuffle={"seed": 1})
        assert last["done"]
        assert last["full"]
        assert last["failed"] == 0
        assert last["stored"] < PHOTOGRAPHS
        found = spill(client)
        assert 0 < found["entries"] < PHOTOGRAPHS
        assert found["held_bytes"] <= found["budget_bytes"]


def test_warm_ends_with_its_client_or_its_server(far: StartFar) -> None:
    node = far("--bandwidth", "200kB")  # all of it would take longer than anything here waits

    def begin(client: fl.FlightClient) -> Iterator[Any]:
        results: Iterator[Any] = iter(client.do_action(("warm", json.dumps({"dataset": "photos"}).encode())))
        assert not json.loads(next(results).body.to_pybytes())["done"]
        return results

    with fl.connect(node.url) as client:
        results = begin(client)
        del results  # which cancels the call
    with fl.connect(node.url) as client:
        until(lambda: stats(client)["engine"]["reads_in_flight"] == 0, "ending the warm-up")
        results = begin(client)
        node.terminate()
        with pytest.raises(fl.FlightUnavailableError, match="draining"):
            list(results)
    assert node.wait() == 0  # nothing had to be cut off


def test_warm_without_a_spill(bowstring: Bowstring, node: Node) -> None:
    done = bowstring("warm", "photos", "--server", node.url, status=1)
    assert "no spill" in done.stderr
    assert "--spill DIR" in done.stderr
