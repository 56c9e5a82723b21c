"""`bowstring.open`: real folders and buckets, and the servers that the package starts for them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bowstring
import pytest
from bowstring._local import attach, servers
from bowstring.errors import InvalidRequest, NotFound, ServerEnded, ServerError, Unavailable
from node import Node
from server_kills import killed_at_random, processes
from test_attach import Bucket

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def cache(binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of the test's own. When it is over, no server of it may be left."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("BOWSTRING_BINARY", str(binary))
    monkeypatch.setenv("BOWSTRING_CACHE", str(folder))
    yield folder
    for server in servers.known():
        server.stop()
        assert not server.socket.exists()
    end = time.monotonic() + 180
    while processes(folder) and time.monotonic() < end:  # they are about to end
        time.sleep(0.01)
    assert not processes(folder)


@pytest.fixture
def photographs(folder: Path, tmp_path: Path) -> Path:
    """A folder of photographs that the test may change."""
    for n, path in enumerate(sorted(folder.rglob("*.jp*g"))):
        if n % 6 == 0:
            to = tmp_path / "photographs" / path.relative_to(folder)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, to)
    return tmp_path / "photographs"


def contents(dataset: bowstring.Dataset) -> list[bytes]:
    """The images of a dataset, sorted."""
    return sorted(dataset.columns(["image"]).to_arrow()["image"].to_pylist())


def files(root: Path) -> list[bytes]:
    return sorted(path.read_bytes() for path in root.rglob("*.jp*g"))


def server() -> servers.Server:
    (found,) = servers.known()
    return found


def pid() -> int:
    found = server().running()
    assert found is not None
    return found


def killed(process: int) -> None:
    """Kill a server, and wait until its lock is free."""
    os.kill(process, signal.SIGKILL)
    while server()._held():
        time.sleep(0.01)


def test_a_folder(photographs: Path) -> None:
    """Open a folder: it has the files' bytes. The next call finds what has changed in it, and nothing else is new."""
    opened = bowstring.open(photographs, progress=False)
    assert contents(opened) == files(photographs)
    assert opened.client.shares()
    assert bowstring.open(str(photographs), progress=False) == opened, "nothing has changed, and it is another one"
    before = files(photographs)
    paths = sorted(photographs.rglob("*.jp*g"))
    paths[0].unlink()
    paths[1].write_bytes(paths[2].read_bytes())
    shutil.copy(paths[3], paths[3].with_name("added.jpg"))
    assert bowstring.open(photographs, update=False, progress=False) == opened
    again = bowstring.open(photographs, progress=False)
    assert contents(again) == files(photographs) != before
    assert again.name == opened.name
    assert again.snapshot == opened.snapshot + 1
    split = bowstring.open(photographs, split="val", progress=False)
    assert contents(split) == files(photographs / "val")


def test_the_time_of_an_update(photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An opening that waited for another one trusts it only if that began to look after its own call."""
    run = attach._run
    begun = []

    def noted(*args: Any, **more: Any) -> None:
        begun.append(time.time_ns())
        run(*args, **more)

    monkeypatch.setattr(attach, "_run", noted)
    opened = bowstring.open(photographs, progress=False)
    stamp = server().home / f"{opened.name}.attached"
    assert stamp.stat().st_mtime_ns <= begun[0], "what has changed meanwhile would be missed"
    os.utime(stamp, (time.time() + 100,) * 2)
    assert bowstring.open(photographs, progress=False) == opened
    assert len(begun) == 1


def test_a_dropped_dataset(photographs: Path) -> None:
    """A dataset that was dropped is attached again."""
    opened = bowstring.open(photographs, progress=False)
    assert isinstance(opened.client, bowstring.Client)
    opened.client.drop(opened.name)
    assert contents(bowstring.open(photographs, progress=False)) == files(photographs)


def test_above_a_link(photographs: Path, tmp_path: Path) -> None:
    """The parent of a link is the parent of its target."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link").symlink_to(photographs / "val")
    opened = bowstring.open(tmp_path / "elsewhere" / "link" / ".." / "train", progress=False)
    assert contents(opened) == files(photographs / "train")


@pytest.mark.parametrize("name", ["a b", "a#b", "a?b", "a%41b", "ä@3", "a[0]", "a{b,c}", "-a", "a*"])
def test_odd_names(photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A folder and a cache may have any name."""
    monkeypatch.setenv("BOWSTRING_CACHE", str(tmp_path / name / "cache"))
    shutil.copytree(photographs / "val", tmp_path / name / "photos")
    monkeypatch.chdir(tmp_path)
    opened = bowstring.open(f"{name}/photos", progress=False)
    assert contents(opened) == files(photographs / "val")
    assert opened.select([str(one) for one in opened["id"][:2]]).num_rows == 2  # by a connection of pyarrow's
    server().stop()
    if server().socket.parent != server().home:
        shutil.rmtree(server().socket.parent)


def test_an_end_of_the_machine(photographs: Path) -> None:
    """A server that ended with the machine is no crash."""
    opened = bowstring.open(photographs, progress=False)
    killed(pid())
    os.utime(server().home / "ready", (1, 1))
    assert opened.take([0]).num_rows == 1


def test_caches_that_cannot_be(photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("BOWSTRING_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ServerError, match=r"file/cache.*BOWSTRING_CACHE names"):
        bowstring.open(photographs, progress=False)
    monkeypatch.delenv("BOWSTRING_CACHE")
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    with pytest.raises(NotFound, match="user 54321 has no home directory"):
        bowstring.open(photographs, progress=False)
    monkeypatch.setenv("BOWSTRING_CACHE", str(tmp_path / "cache"))


def test_another_users_home(photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server is started as another user's files say."""
    opened = bowstring.open(photographs, progress=False)
    server().stop()
    with monkeypatch.context() as other:
        other.setattr(os, "getuid", lambda: 54321)
        with pytest.raises(Unavailable):
            opened.take([0])
    assert server().running() is None
    assert opened.take([0]).num_rows == 1


def test_a_server_of_another_container(photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process has the id 0, by which a kill is one of this process's whole group."""
    bowstring.open(photographs, progress=False)
    with monkeypatch.context() as other:
        other.setattr(struct, "unpack", lambda *_: (0, 0, 0))
        other.setattr(os, "kill", lambda *_: pytest.fail("it kills its own group"))
        with pytest.raises(Unavailable, match="another container"):
            server().stop()


def test_a_start_during_a_stop(photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that another process has started meanwhile is not waited for."""
    opened = bowstring.open(photographs, progress=False)
    first = pid()
    kill = os.kill
    with monkeypatch.context() as during:

        def replaced(process: int, signal: int) -> None:
            during.setattr(os, "kill", kill)
            kill(process, signal)
            while server().running() == process or server()._held():
                time.sleep(0.01)
            assert opened.take([0]).num_rows == 1
            during.setattr(servers, "_START", 2.0)

        during.setattr(os, "kill", replaced)
        assert server().stop()
    assert pid() != first


def test_a_relative_path(photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photographs.parent)
    one = bowstring.open("photographs", progress=False)
    assert bowstring.open("photographs/", progress=False) == one == bowstring.open(photographs, progress=False)


@pytest.mark.parametrize(
    ("source", "error", "says"),
    [
        ("nowhere", NotFound, "no folder or file 'nowhere'"),
        ("cql://host/keyspace", InvalidRequest, "#NAME"),
        ("ftp://host/x", InvalidRequest, "want a path"),
        ("grpc://host:1", InvalidRequest, "the name of a dataset"),
        ("grpc+unix:///socket", InvalidRequest, "the name of a dataset"),
    ],
)
def test_what_is_no_source(source: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        bowstring.open(source)


def test_a_broken_photograph(photographs: Path) -> None:
    """A sample that cannot be read is named, and left out where the caller says so."""
    broken = sorted(photographs.rglob("*.jp*g"))[0]
    broken.write_bytes(b"no image")
    with pytest.raises(InvalidRequest, match=f"skip_bad=True.*{broken.name}"):
        bowstring.open(photographs, progress=False)
    opened = bowstring.open(photographs, skip_bad=True, progress=False)
    assert contents(opened) == sorted(set(files(photographs)) - {b"no image"})


def test_progress(photographs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bowstring.open(photographs)
    assert f"| {len(files(photographs))}.0/" in capfd.readouterr().err


def test_of_a_server(node: Node) -> None:
    """The address of a server with a name is the dataset there."""
    there = bowstring.connect(node.url).dataset("photos", split="val")
    assert bowstring.open(f"{node.url}/photos", split="val") == there
    assert bowstring.open(f"{node.url}/photos@1", split="val") == there
    assert not servers.known()


def test_of_a_store(bowstring: Command, folder: Path, tmp_path: Path) -> None:
    """A store's address with a name is a dataset in it."""
    import bowstring as package

    store = (tmp_path / "store").as_uri()
    bowstring("store", "init", "--store", store)
    bowstring("import", folder, "photos", "--store", store)
    assert contents(package.open(f"{store}#photos")) == files(folder)
    with pytest.raises(NotFound):
        package.open(f"{store}#phptos")


READER = """
    import sys, bowstring
    opened = bowstring.open(sys.argv[1], progress=False)
    rows = sum(batch.num_rows for batch in opened.shuffle(1).batches(8))
    servers = bowstring._local.servers
    print(opened.name, opened.snapshot, rows, servers.Server(servers.root() / "files").running())
"""


def reader(photographs: Path, program: str = READER) -> subprocess.Popen[str]:
    command: list[str | Path] = [sys.executable, "-c", textwrap.dedent(program), photographs]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes_share_a_server(photographs: Path) -> None:
    """Processes that open one folder at the same time have one server, and one attachment."""
    running = [reader(photographs) for _ in range(3)]
    said = set()
    for process in running:
        out, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors
        said.add(out)
    assert len(said) == 1
    assert said.pop().split()[1:] == ["1", str(len(files(photographs))), str(pid())]
    assert processes(server().home) == [pid()]


def test_a_kill(photographs: Path) -> None:
    """A server that is killed is one error, which names the log; the next call starts it again."""
    opened = bowstring.open(photographs, progress=False)
    first = pid()
    killed(first)
    with pytest.raises(ServerEnded, match=str(server().log)):
        opened.take([0])
    assert opened.take([0]).num_rows == 1
    assert pid() != first
    killed(pid())
    with pytest.raises(ServerEnded, match="the next call starts it again"):
        bowstring.open(photographs, progress=False)
    assert contents(bowstring.open(photographs, progress=False)) == files(photographs)


def test_a_kill_in_a_stream(photographs: Path) -> None:
    opened = bowstring.open(photographs, progress=False)
    batches = opened.shuffle(1).batches(4, epochs=100)
    got = next(batches).num_rows
    killed(pid())
    with pytest.raises(ServerEnded, match=str(server().log)):  # noqa: PT012 - it comes when what was sent is read
        for batch in batches:
            got += batch.num_rows
    rest = opened.resume(batches.ticket)
    assert got + sum(batch.num_rows for batch in rest) == 100 * len(opened)


def test_an_end_when_idle(photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without clients ends, and no process of this package notices."""
    monkeypatch.setenv("BOWSTRING_SERVE_EXIT_WHEN_IDLE", "1s")
    opened = bowstring.open(photographs, progress=False)
    for _ in range(3):
        first = pid()
        opened.client.close()
        while server().running() == first:
            time.sleep(1.5)  # looking is being connected
        assert contents(opened) == files(photographs)
        assert pid() != first
    assert "idle" in server().log.read_text()


def test_a_program_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, photographs: Path) -> None:
    fails = tmp_path / "fails"
    fails.write_text("#!/bin/sh\n[ $1 = store ] || { echo 'something is wrong' >&2; exit 1; }\n")
    fails.chmod(0o755)
    monkeypatch.setenv("BOWSTRING_BINARY", str(fails))
    with pytest.raises(ServerError, match=r"something is wrong; its log is .*server\.log"):
        bowstring.open(photographs, progress=False)
    monkeypatch.setenv("BOWSTRING_BINARY", str(tmp_path / "none"))
    with pytest.raises(NotFound, match="BOWSTRING_BINARY"):
        bowstring.open(photographs, progress=False)


def starting(process: int) -> bool:
    """Whether a process is within Popen: it has a pipe then, by which the child would report that it cannot start."""
    opened = [path for path in Path(f"/proc/{process}/fd").iterdir() if int(path.name) > 2]
    for path in opened:
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            if str(path.readlink()).startswith("pipe:"):
                return True
    return False


def test_an_interrupted_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, photographs: Path) -> None:
    """Ctrl-C while a server starts leaves no process, says so, and does not look like a crash to the next call."""
    starts = tmp_path / "starts"
    pid = f"echo $$ >{tmp_path}/made && mv {tmp_path}/made {tmp_path}/pid"
    starts.write_text(f"#!/bin/sh\n[ $1 = serve ] || exit 0\n{pid}\nexec sleep 1000\n")
    starts.chmod(0o755)
    binary = os.environ["BOWSTRING_BINARY"]
    monkeypatch.setenv("BOWSTRING_BINARY", str(starts))
    text = "import bowstring, sys; bowstring.open(sys.argv[1])"
    program: list[str | Path] = [sys.executable, "-c", text, photographs]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as opening:
        while not (tmp_path / "pid").exists():
            assert opening.poll() is None
            time.sleep(0.01)
        while starting(opening.pid):  # the child runs before Popen has returned in the parent
            time.sleep(0.01)
        time.sleep(0.1)  # between the last step that shows and the return
        opening.send_signal(signal.SIGINT)
        _, said = opening.communicate()
    assert "KeyboardInterrupt: the server of file://" in said
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()
    monkeypatch.setenv("BOWSTRING_BINARY", binary)
    assert len(bowstring.open(photographs, progress=False)) == len(files(photographs))


def test_a_server_of_another_version(photographs: Path) -> None:
    """An old server continues after an upgrade of the package, and the user is warned."""
    bowstring.open(photographs, progress=False)
    (server().home / "version").write_text("0.0.1")
    with pytest.warns(RuntimeWarning, match=r"started by bowstring 0\.0\.1, and this is .*; `bowstring stop` ends"):
        bowstring.open(photographs, progress=False)
    server().stop()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bowstring.open(photographs, progress=False)


def test_long_names(photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache whose name is too long for a socket has its socket elsewhere, in a directory of the user's alone."""
    long = tmp_path / ("x" * 80) / "cache"
    monkeypatch.setenv("BOWSTRING_CACHE", str(long))
    opened = bowstring.open(photographs, progress=False)
    assert contents(opened) == files(photographs)
    folder = server().socket.parent
    assert folder.parent == Path(f"/tmp/bowstring-{os.getuid()}")
    assert {folder.stat().st_mode & 0o777, folder.parent.stat().st_mode & 0o777} == {0o700}
    killed(pid())
    with pytest.raises(ServerEnded):
        opened.take([0])
    assert opened.take([0]).num_rows == 1
    server().stop()
    shutil.rmtree(folder)


def test_the_home_is_private(photographs: Path) -> None:
    bowstring.open(photographs, progress=False)
    assert server().home.stat().st_mode & 0o777 == 0o700
    assert server().socket.stat().st_mode & 0o777 == 0o600


def test_ps_and_stop(photographs: Path, bowstring: Command) -> None:
    import bowstring as package

    program = Path(os.environ["BOWSTRING_BINARY"])
    python = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **{
        name: os.environ[name] for name in ("BOWSTRING_CACHE", "BOWSTRING_BINARY", "HOME") if name in os.environ
    }}  # fmt: skip

    def command(*args: str) -> str:
        done = subprocess.run([program, *args], check=True, capture_output=True, text=True, env=python)
        return done.stdout

    assert command("ps", "--json") == ""
    opened = package.open(photographs, progress=False)
    (listed,) = map(json.loads, command("ps", "--json").splitlines())
    assert listed == {"pid": pid(), "store": server().store, "address": opened.client.uri, "log": str(server().log)}
    assert opened.client.uri in command("ps")
    assert bowstring("ls", "--server", listed["address"]).stdout.count(opened.name) == 2  # splits
    assert command("stop") == f"stopped {listed['store']}\n"
    assert command("ps", "--json") == ""
    assert opened.take([0]).num_rows == 1


@pytest.fixture
def bucket(lab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    (tmp_path / "buckets" / "training").mkdir(parents=True)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    command: list[str | Path] = [lab, "objects", "--root", tmp_path / "buckets"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Bucket(process.stdout.readline().strip(), "training")
        process.terminate()


def test_a_bucket(bucket: Bucket, photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket is attached, and its server has a cache of the size that the user says."""
    monkeypatch.setenv("BOWSTRING_SERVE_SPILL_BYTES", "64MiB")
    url = bucket.fill(photographs, "photographs")
    opened = bowstring.open(url, progress=False)
    assert contents(opened) == files(photographs)
    spill = opened.client.stats()["engine"]["spill"]
    assert spill["budget_bytes"] <= 64 << 20
    first = sorted(photographs.rglob("*.jp*g"))[0]
    bucket.put(f"photographs/{first.relative_to(photographs).parent}/added.jpg", first.read_bytes())
    assert len(bowstring.open(url, progress=False)) == len(opened) + 1
    assert len(servers.known()) == 1


def test_names() -> None:
    """The name of a dataset follows from its source alone."""
    sources = ["/a/photos", "/b/photos", "s3://b/p?endpoint=http://h:1", "/", "/ü"]
    names = [attach.name_of(source) for source in sources]
    assert names == [attach.name_of(source) for source in sources]
    assert len(set(names)) == len(names)
    assert [name.rpartition("-")[0] for name in names] == ["photos", "photos", "p", "source", "source"]


@pytest.mark.parametrize("kills", [20, pytest.param(100, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])])
def test_kills_at_random(photographs: Path, cache: Path, kills: int) -> None:
    """Kill the server again and again while processes open and read: each call ends, and nothing is left."""
    seed = random.randrange(2**32)
    print("seed", seed)
    found = killed_at_random(photographs, cache, len(files(photographs)), kills=kills, seed=seed)
    assert found.kills >= kills
    assert (found.hangs, found.wrong, found.leaked) == (0, [], 0)
