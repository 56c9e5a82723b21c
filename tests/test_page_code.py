"""The code of all pages runs against real servers, or says for which reason it does not.

A block runs in one of two ways. RUN_BY names the test that runs the Python of a page. All other blocks run here: those
of a page one after another, Python in one namespace and shell in one directory. Only a mark before a block excepts it:
`<!-- not run: REASON -->`, with a reason of REASONS.
"""

from __future__ import annotations

import collections
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import bowstring
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import site_pages
from bowstring._local import servers
from conftest import ROOT
from node import Node
from pki import Authority
from ports import free_port
from words import MARKDOWN

REASONS = {
    "checkout": "calls make or pip in a checkout, to do what other tests do",
    "cluster": "needs the nodes of a Cassandra cluster",
    "GPU": "needs GPUs",
    "Kubernetes": "needs Kubernetes",
    "cloud": "needs an account of a cloud",
    "other program": "needs a program that the tests do not install",
}
# Languages of blocks that nothing executes. Other tests compare some of these blocks with the program.
DATA = {"", "json", "sql", "yaml"}
# Pages whose Python other tests run, and how many blocks that is.
RUN_BY = {
    "README.md": ("test_docs.py", 2),
    "docs/frameworks.md": ("python/test_frameworks_page.py", 11),
    "docs/protocol.md": ("test_docs.py", 14),  # one of them in test_auth.py, one in test_cluster_nodes.py
    "docs/python/coming-from.md": ("python/test_coming_from.py", 7),
    "docs/python/first-hour.md": ("python/test_first_hour.py", 2),
    "docs/python/index.md": ("python/test_package.py", 6),
    "docs/requests.md": ("test_docs.py", 6),
    "python/README.md": ("python/test_package.py", 9),
}
SERVER = "grpc://127.0.0.1:8815"
LISTEN = "127.0.0.1:8815"
MARK = re.compile(r"<!-- not run: (.*) -->\n?")


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    reason: str  # why it is not run; empty for a block that is


@functools.cache
def blocks() -> list[Block]:
    """All blocks of all pages."""
    found = []
    for page in site_pages.tracked(ROOT, "*.md"):
        reason = ""
        for token in MARKDOWN.parse((ROOT / page).read_text()):
            if token.type == "fence":
                assert token.map
                found.append(Block(page, token.map[0] + 1, token.info.strip(), token.content, reason))
            marked = MARK.fullmatch(token.content) if token.type == "html_block" else None
            reason = marked[1] if marked else ""
    return found


@dataclass(frozen=True)
class Page:
    """The preparations that a page supposes, so that its blocks run."""

    before: str = ""  # Python that has run
    after: str = ""  # Python that says whether the page did what it says
    instead: dict[str, str] = field(default_factory=dict)  # words that only hold at a reader's site
    photos: bool = False  # the folder photos/ is there
    prepare: Callable[[Path], None] = lambda _: None
    commands: str = ""  # commands that have run


def cards(folder: Path) -> None:
    """Images as rows of Parquet, as a page reads them with Polars."""
    (folder / "cards").mkdir()
    rows = {"file_name": ["a.png", "b.png"], "width": [300, 500], "image": [b"small", b"large"]}
    pq.write_table(pa.table(rows), folder / "cards" / "rows.parquet")


CONNECTED = f"""
import bowstring
client = bowstring.connect("{SERVER}")
photos = client.dataset("photos", split="train")
seen = []
def train(batch):
    seen.append(len(batch))
    return 0.5
"""
# The pages that describe requests write them as dict(...). Each that names a dataset is sent.
SENT = f"""
import builtins, json
import pyarrow.flight as fl
plain, sent = fl.connect("{SERVER}"), []
def dict(*args, **more):
    request = builtins.dict(*args, **more)
    info = plain.get_flight_info(fl.FlightDescriptor.for_command(json.dumps(request)))
    sent.append(plain.do_get(info.endpoints[0].ticket).read_chunk().data.num_rows)
    return request
"""
# The server has a record of this job.
SERVED = """
with photos.shuffle(7).batches(64) as batches:
    for batch in batches:
        job = batches.place["plan"]
"""
STEERED = """
import json
import pyarrow.flight as fl
plain = fl.connect("SERVER")
def act(name, **body):
    (answer,) = plain.do_action((name, json.dumps(body).encode()))
    return json.loads(answer.body.to_pybytes())
sources = {"web": client.dataset("web"), "code": client.dataset("code")}
run = bowstring.mixture(sources, weights={"web": 0.7, "code": 0.3}, run="llama-7").shuffle(7).batches(16)
next(run)
""".replace("SERVER", SERVER)
TRAINERS = """
import torch
from accelerate import Accelerator
from bowstring.torch import BowstringDataset
from lightning import LightningDataModule
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments
photos = photos.columns(["label"])
dataset = BowstringDataset(photos, shuffle=7, global_batch_size=64)
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
TRAINED = """
class Fitted:
    global_step = 1
module = Photos()
module.trainer = Fitted()
assert len(list(module.train_dataloader())) == 1     # two steps of 256 are an epoch, and one is done
assert batch.step == 4
FromHere().on_train_begin(TrainingArguments(output_dir=".", use_cpu=True), TrainerState(global_step=3), None)
assert [b.step for b in PhotoTrainer.get_train_dataloader(type("T", (), {"train_dataset": dataset}))] == [3, 4]
"""


def corpus(folder: Path) -> None:
    """Texts, and a tokenizer that has learned them."""
    import gzip
    import json

    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    texts = ["one line of text", "another line"]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=300, special_tokens=["</s>"]))
    made.save(str(folder / "tokenizer.json"))
    with gzip.open(folder / "wiki.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "notes.txt").write_text("one line of text")


def certificates(folder: Path) -> None:
    """A server's certificate, in the names of the pages."""
    authority = Authority(folder)
    authority.server()
    shutil.copy(folder / "server.pem", folder / "tls.crt")
    shutil.copy(folder / "server.key", folder / "tls.key")
    (folder / "admin-token").write_text("0123456789abcdef0123456789abcdef")


HERE = {
    "README.md": Page(photos=True, instead={"s3://bucket/photos": "photos/"}),
    "docs/cli.md": Page(photos=True),
    "docs/mixtures.md": Page(CONNECTED + STEERED, "assert sum(seen) and next(mixed.batches(4)).num_rows == 4"),
    "docs/operating.md": Page(
        commands="bowstring store init --store data",
        instead={"cql://node1,node2/photos": "data", "/data/bowstring": "data"},
    ),
    "docs/operating/secure.md": Page(
        prepare=certificates,
        instead={"/etc/bowstring/": "", "0.0.0.0:8815": LISTEN, "gpu7:8815": LISTEN},
    ),
    "docs/operating/watch.md": Page(
        prepare=certificates,
        instead={
            "/etc/bowstring/": "",
            "0.0.0.0:9815": "127.0.0.1:9815",
            "node7:9815": "127.0.0.1:9815",
            "top --server grpc://node7:8815": f"top --once --server {SERVER}",
        },
    ),
    "docs/operators.md": Page(f"{CONNECTED}dataset = photos", "assert images.shape[1:] == (224, 224, 3)"),
    "docs/packing.md": Page(CONNECTED + SENT, "assert sent == [1] and next(text.batches(1)).num_rows == 1"),
    "docs/parallel.md": Page(
        f"{CONNECTED}address = '{SERVER}'",
        "import torch.distributed as dist\ndist.destroy_process_group()\nassert len(seen) >= 3",
        instead={'"cuda", (2, 4)': '"cpu", (1, 1)', '"dp": 2, "cp": 4, "tp": 2': '"dp": 1, "cp": 1, "tp": 1'},
    ),
    "docs/python/open.md": Page(
        "from pathlib import Path",
        "assert len(flowers) == len(set(p.name for p in Path('photos').rglob('*.jpg')))",
        photos=True,
        prepare=cards,
        instead={"bowstring top ": "bowstring top --once "},
    ),
    "docs/python/torch.md": Page(
        f"{CONNECTED}import torch\nsteps, model = 0, torch.nn.Linear(2, 2)",
        "assert steps == 50 and state['epoch'] and len(next(iter(loader))['label']) == 64",
        instead={"step=1200": "step=2"},
    ),
    "docs/python/trainers.md": Page(CONNECTED + TRAINERS, TRAINED),
    "docs/sampling.md": Page(
        f"{CONNECTED}{SENT}{SERVED}rank = 0",
        "assert sent == [64] * 6 and learned.where('loss == 0.5').num_rows",
        instead={"job, 340": "job, 1", '"2": 0': ", ".join(f'"{n}": 0' for n in range(2, 10))},
    ),
    "docs/tokens.md": Page(CONNECTED, "assert client.dataset('corpus').num_rows == 3", prepare=corpus),
    "docs/troubleshooting.md": Page(
        commands="bowstring store init --store data",
        instead={"journalctl -u bowstring": "echo a line", "STORE": "data"},
    ),
    "docs/where.md": Page(f"import bowstring\nphotos = bowstring.connect('{SERVER}').dataset('pets')"),
}


@pytest.fixture(scope="module")
def filled(imported: Path, binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A server with the datasets that the pages speak of."""
    folder = tmp_path_factory.mktemp("filled")
    shutil.copytree(imported, folder / "store")
    with Node(binary, folder / "store", "--lineage", str(folder / "lineage"), log=folder / "log") as node:
        client = bowstring.connect(node.url)
        photos = client.dataset("photos").columns(["id", "image"]).to_arrow()
        count = photos.num_rows
        numbers = [n / count for n in range(count)]
        scores = {"id": photos["id"], "loss": numbers, "difficulty": numbers, "repeats": [n % 3 for n in range(count)]}
        client.ingest("photos", pa.table(scores), mode="merge", on="id", progress=False)
        text = {"key": [str(n) for n in range(count)], "text": [f"text {n}" for n in range(count)]}
        few = photos["image"].slice(0, 40).to_pylist()
        images = {"image": pa.array(few, pa.large_binary())}
        web = pa.table({name: values[: len(few)] for name, values in text.items()} | images)
        client.ingest("web", web, key="key", media={"image": "image"}, progress=False)
        client.ingest("scans", web, key="key", media={"image": "image"}, progress=False)
        client.ingest("code", pa.table({**text, "stars": list(range(count))}), key="key", progress=False)
        tokens = pa.array([[n] * 100 for n in range(count)], pa.list_(pa.uint16()))
        client.ingest("text", pa.table({"key": text["key"], "tokens": tokens}), key="key", progress=False)
        pets = {"key": ["a", "b"], "label": ["cat", "dog"], "width": [500, 500], "caption": ["a dog", "a dog"]}
        client.ingest("pets", pa.table(pets), key="key", progress=False)
        yield node
        node.kill()  # streams of the pages are open


# A `serve` runs until the page's end, and the next command has to wait for it.
PROGRAM = """#!/bin/bash
set -e
if [ "$1" != serve ]; then exec {binary} "$@"; fi
{binary} "$@" --ready-file {folder}/ready >{folder}/server.log 2>&1 &
echo $! >>{folder}/servers
until [ -e {folder}/ready ]; do kill -0 $! 2>/dev/null || {{ cat {folder}/server.log; exit 1; }}; sleep 0.02; done
"""


class Shell:
    """Runs the shell of a page with a `bowstring` whose servers end with the page."""

    def __init__(self, binary: Path, folder: Path, listen: str) -> None:
        self.servers = folder / "servers"
        program = folder / "bin" / "bowstring"
        program.parent.mkdir()
        program.write_text(PROGRAM.format(binary=binary, folder=folder))
        program.chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{program.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "CURL_CA_BUNDLE": "ca.pem",
            "BOWSTRING_SERVE_LISTEN": listen,
        }

    def run(self, script: str) -> None:
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", script],  # noqa: S607
            check=False,
            capture_output=True,
            text=True,
            timeout=600,
            stdin=subprocess.DEVNULL,
            env=self.environment,
        )
        assert done.returncode == 0, f"{script}\nended with {done.returncode}:\n{done.stdout}\n{done.stderr}"

    def stop(self) -> None:
        """Kill the servers that the page has started."""
        for pid in self.servers.read_text().split() if self.servers.exists() else ():
            os.kill(int(pid), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("page", HERE)
def test_the_code_of_a_page(
    page: str, filled: Node, binary: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = HERE[page]
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "HOME": str(tmp_path),
        "BOWSTRING_BINARY": str(binary),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "RANK": "0",
        "WORLD_SIZE": "1",
        "GLOO_SOCKET_IFNAME": "lo",  # no name of the machine is looked up
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("BOWSTRING_CACHE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "torchaudio", None)  # transformers fails where it is for another torch
    if about.photos:
        (tmp_path / "photos").symlink_to(folder)
    about.prepare(tmp_path)
    listen, admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    shell, names = Shell(binary, tmp_path, listen), dict[str, Any]()

    def python(text: str, where: str) -> None:
        exec(compile(text.replace(SERVER, filled.url), where, "exec"), names)  # noqa: S102

    def reader(text: str) -> str:
        """The text for a reader with this machine alone."""
        for old, new in about.instead.items():
            text = text.replace(old, new)
        return text

    try:
        python(about.before, "before")
        shell.run(about.commands)
        for block in ran_here(page):
            text = reader(block.text)
            if block.language == "sh":
                shell.run(text.replace(LISTEN, listen).replace("127.0.0.1:9815", admin))
            else:
                python("\n" * block.line + text, str(ROOT / page))
        python(about.after, "after")
    finally:
        shell.stop()
        for server in servers.known():
            server.stop()


def ran_here(page: str) -> list[Block]:
    """The blocks of a page that the test of this file runs."""
    languages = {"sh"} if page in RUN_BY else {"sh", "python"}
    return [b for b in blocks() if b.page == page and b.language in languages and not b.reason]


def test_every_block_runs_or_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    """The blocks that do not run are printed with their reasons, and counted."""
    unknown = {f"{b.page}:{b.line}": b.language for b in blocks() if b.language not in {"python", "sh", *DATA}}
    assert not unknown
    code = [b for b in blocks() if b.language not in DATA]
    wrong = [f"{b.page}:{b.line}: not run: {b.reason}" for b in code if b.reason and b.reason not in REASONS]
    assert not wrong, f"the reasons are {list(REASONS)}"
    here = [b for page in HERE for b in ran_here(page)]
    for page, (test, count) in RUN_BY.items():
        found = [b for b in code if b.page == page and b.language == "python" and not b.reason]
        assert len(found) == count, f"tests/{test} runs {count} blocks of {page}, which has {len(found)}"
        assert Path(page).name in (ROOT / "tests" / test).read_text()
        here += found
    assert [f"{b.page}:{b.line}" for b in code if not b.reason and b not in here] == []
    assert all(ran_here(page) for page in HERE)
    reasons = collections.Counter(b.reason for b in code if b.reason)
    with capsys.disabled():
        print(f"\n{len(here)} blocks of pages run, {reasons.total()} do not:")
        for reason, count in reasons.items():
            where = ", ".join(f"{b.page}:{b.line}" for b in code if b.reason == reason)
            print(f"  {count} {reason}, which {REASONS[reason]}: {where}")
