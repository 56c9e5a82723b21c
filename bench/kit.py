"""The kit of peers: what a user would pick instead of Bowstring, each run as a process in an environment of its own.

PEERS names the kit's folder, and PEERS_HOME where its environments are installed (by its `install.sh main mosaic`). A
client of the kit reads an epoch in batches, takes the length, the label and a CRC of both ends of each sample, and says
what came when. Imports and what is set up come before the clock; connections are the epoch's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samples import image_folder

BUCKET = "peers"  # as the kit's clients call it
KEY, SECRET = "peers", "peerspeers"
AT_MOST_S = 120  # that a client may take
CHECKED = 64  # bytes at either end of a sample that a client looks at


class PeerError(RuntimeError):
    """The failure of a peer."""


@dataclass(frozen=True, eq=False)
class Peer:
    """One way to read an epoch: a module of the kit, or of bench/peers, with options."""

    name: str
    module: str
    options: dict[str, Any] = field(default_factory=dict)
    environment: str = "main"
    shuffles: bool = False  # all samples, and not those of a buffer or of some shards
    workers: int = 2


def missing() -> str:
    """Why the kit cannot be used, or nothing."""
    try:
        folder()
    except RuntimeError as error:
        return str(error)
    return ""


def folder() -> Path:
    """Where the kit is."""
    kit = Path(os.environ.get("PEERS", ""))
    if not (kit / "peers/client.py").exists():
        raise RuntimeError(
            f"no peers/client.py in {kit}: PEERS names the folder of the kit of peers, PEERS_HOME where it is installed"
        )
    return kit


def home() -> Path:
    """Where the kit is installed."""
    return Path(os.environ.get("PEERS_HOME") or folder())


def python(environment: str) -> Path:
    """The interpreter of an environment of the kit."""
    found = home() / f".venv-{environment}/bin/python"
    if not found.exists():
        raise PeerError(f"no .venv-{environment} in PEERS_HOME: install.sh {environment} makes it")
    return found


def make_data(data: Path, count: int, size: int) -> dict[str, str]:
    """Write the samples in all formats of the peers, below data/s3root; which formats there are not, and why."""
    files = data / "s3root" / BUCKET / "files"
    with tempfile.TemporaryDirectory(dir=data) as made:
        image_folder(Path(made), count, size)
        files.parent.mkdir(parents=True)
        (Path(made) / "images").rename(files)
    crcs, rows = [], ["id,path,label,bytes,text"]
    for path in sorted(files.rglob("*.jpg"), key=lambda p: p.name):
        content = path.read_bytes()
        crcs.append(zlib.crc32(content[-CHECKED:], zlib.crc32(content[:CHECKED])))
        label = path.parent.name.removeprefix("class")
        rows.append(f"{int(path.stem)},{path.relative_to(files)},{label},{len(content)},")
    (data / "metadata.csv").write_text("\n".join(rows) + "\n")
    (data / "expected.json").write_text(json.dumps({"count": count, "bytes": count * size, "crcs": crcs}))
    missing = {}
    for step, environment in {"wds": "main", "lance": "main", "litdata": "main", "mds": "mosaic"}.items():
        try:
            command: list[str | Path] = [python(environment), folder() / "make_data.py", "--out", data, "--step", step]
            done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=data, env=quiet(data))
        except PeerError as error:
            missing[step] = str(error)
            continue
        if done.returncode:
            missing[step] = f"its data could not be written: {done.stderr[-300:]}"
    shutil.rmtree(files.parent / "mds", ignore_errors=True)  # shards of 8 MiB, which are quicker, are in mds8
    return missing


def quiet(temporary: Path, **more: str) -> dict[str, str]:
    """The environment of a peer's process."""
    kept = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    return {
        **kept,
        "TMPDIR": str(temporary),
        "HF_HOME": str(temporary / "hf"),
        "CUDA_VISIBLE_DEVICES": "",
        "TOKENIZERS_PARALLELISM": "false",
        "AWS_EC2_METADATA_DISABLED": "true",
        "OMP_NUM_THREADS": "2",
        "PYTHONPATH": str(Path(__file__).parent / "peers"),
        "PYTHONDONTWRITEBYTECODE": "1",
        **more,
    }


def run(
    peer: Peer, data: Path, s3: str, batch: int, limit: int = 0, environment: dict[str, str] | None = None
) -> dict[str, Any]:
    """Read an epoch, of the first `limit` samples if given; return the report of the client, which checks it."""
    with tempfile.TemporaryDirectory(prefix="peer-", dir=data) as cache:
        asked, event_pipe = os.pipe()  # from the client to here, one line for each event
        answer, answered = os.pipe()
        config = {
            "module": peer.module,
            "peer": peer.name,
            "batch": batch,
            "epochs": 1,
            "workers": peer.workers,
            "compute": 0,
            "limit": limit,
            "opts": peer.options,
            "data": str(data),
            "cache": cache,
            "s3": s3,
            "key": KEY,
            "secret": SECRET,
            "fd_r": answer,
            "fd_w": event_pipe,
        }
        log = Path(cache) / "log"
        with log.open("w") as out, os.fdopen(asked) as events, os.fdopen(answered, "w") as go:
            client = subprocess.Popen(
                [python(peer.environment), folder() / "peers/client.py"],
                env=quiet(Path(cache), PEER_CFG=json.dumps(config), **(environment or {})),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                pass_fds=(answer, event_pipe),
                start_new_session=True,
            )
            os.close(answer)
            os.close(event_pipe)
            late = threading.Timer(AT_MOST_S, end, [client])
            late.start()
            found: dict[str, Any] = {}
            try:
                for line in events:
                    event = json.loads(line)
                    if event["ev"] != "start":
                        found = event
                    go.write("\n")
                    go.flush()
                    if found:
                        break
            except BrokenPipeError:
                pass
            finally:
                late.cancel()
                end(client)
        if found.get("ev") != "end":
            why = found.get("error") or (f"not done in {AT_MOST_S} s" if client.returncode else "it ended early")
            raise PeerError(f"{why}: {log.read_text(errors='replace')[-300:]}")
    check(found, json.loads((data / "expected.json").read_text()), limit)
    return found


def end(client: subprocess.Popen[bytes]) -> None:
    """End a client and its workers, which are a process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(client.pid, 9)
    client.wait()


def check(found: dict[str, Any], expected: dict[str, Any], limit: int) -> None:
    """Each sample came once, and with the right bytes."""
    count = limit or expected["count"]
    size = expected["bytes"] // expected["count"] * count
    crc = sum(expected["crcs"][:count])
    wanted = {"samples": count, "bytes": size, "crc": crc}
    wrong = {name: f"{found[name]} instead of {value}" for name, value in wanted.items() if found[name] != value}
    if len(set(found["ids"])) != count:
        wrong["ids"] = f"{len(set(found['ids']))} instead of {count}"
    if wrong:
        raise PeerError(f"not each sample once: {wrong}")
