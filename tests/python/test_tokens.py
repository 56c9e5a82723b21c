"""Token ids: from text, from lists, from other tools' files; stored in every type, read back in each way."""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bowstring
import megatron
import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.parquet as pq
import pytest
import torch
from bowstring import tokens
from bowstring.torch import BowstringDataset, labels
from conftest import StartNode
from node import Node
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXTS = ["a server sends samples", "samples, and samples again", "", "bytes: \x00 é 漢"]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, binary: Any) -> Iterator[str]:
    root = tmp_path_factory.mktemp("tokens")
    with Node(binary, root / "store", log=root / "log") as own:
        yield own.url


@pytest.fixture
def here(url: str) -> bowstring.Client:
    return bowstring.connect(url)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Byte-level BPE, trained on the texts: it holds every text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=300, special_tokens=["</s>"], initial_alphabet=alphabet)
    )
    return made


def test_text_is_read_tokenised_and_uploaded(here: bowstring.Client, tokenizer: Tokenizer, tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"text": text, "topic": n}) + "\n\n" for n, text in enumerate(TEXTS))
    (tmp_path / "b.txt").write_text("one\ntwo\n")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    files = [tmp_path / "a.jsonl.gz", tmp_path / "b.txt"]
    rows = tokens.encode(
        tokens.read(*files), tmp_path / "tokenizer.json", end="</s>", keep={"topic": pa.int16()}, batch=3
    )
    result = here.ingest("text", rows, key="key", progress=False)
    assert result.rows == 5
    stored = here.dataset("text").columns(["key", "tokens", "n_tokens", "topic"]).to_arrow()
    assert stored.schema.field("tokens").type.value_type == pa.uint16()
    last = tokenizer.token_to_id("</s>")
    lists = stored["tokens"].to_pylist()
    assert [ids[-1] for ids in lists] == [last] * 5
    assert [tokenizer.decode(ids[:-1]) for ids in lists] == [*TEXTS, "one\ntwo\n"]
    assert stored["n_tokens"].to_pylist() == [len(ids) for ids in lists]
    assert stored["topic"].to_pylist() == [0, 1, 2, 3, None]
    assert stored["key"].to_pylist() == [f"{files[0]}#{n}" for n in (1, 3, 5, 7)] + [str(files[1])]


def test_nothing_is_cut(tokenizer: Tokenizer) -> None:
    """Whatever a tokenizer says of truncation and padding, and the caller's stays as it is."""
    cutting = Tokenizer.from_str(tokenizer.to_str())
    cutting.enable_truncation(3)
    cutting.enable_padding(length=50)
    documents = [{"key": n, "text": text} for n, text in enumerate(TEXTS)]
    found = tokens.encode(documents, cutting).read_all()["tokens"].to_pylist()
    assert found == [tokenizer.encode(text).ids for text in TEXTS]
    assert cutting.truncation is not None


def test_types_follow_the_vocabulary() -> None:
    large = Tokenizer(models.WordLevel({f"w{n}": n for n in range(70_000)}, "w0"))
    large.pre_tokenizer = pre_tokenizers.Whitespace()
    found = tokens.encode([{"key": "a", "text": "w1 w69999"}], large).read_all()["tokens"]
    assert (found.type.value_type, found.to_pylist()) == (pa.uint32(), [[1, 69_999]])
    with pytest.raises(ValueError, match="a: token id 69999 does not fit uint16: give a wider dtype"):
        tokens.encode([{"key": "a", "text": "w1 w69999"}], large, dtype=np.uint16).read_all()


def test_long_documents_are_batches_of_their_own() -> None:
    documents = ({"key": n, "tokens": np.full(400_000, n)} for n in range(5))
    batches = list(tokens.encode(documents))
    assert [batch.num_rows for batch in batches] == [2, 2, 1]
    assert batches[2]["tokens"][0].as_py() == [4] * 400_000


@pytest.mark.parametrize("name", ["uint16", "uint32", "int32", "int64"])
def test_every_type_by_every_way(url: str, here: bowstring.Client, name: str) -> None:
    """Upload, where, order, Arrow at the server and at the client, stock Flight and the torch loader."""
    kind = np.dtype(name)
    top = int(np.iinfo(kind).max)
    rng = np.random.default_rng(len(name))
    lists = [rng.integers(0, top, n, dtype=kind, endpoint=True).tolist() for n in rng.integers(0, 300, 200)]
    lists[7] = [top, 0]
    documents = [{"key": n, "tokens": ids} for n, ids in enumerate(lists)]
    here.ingest(f"of-{name}", tokens.encode(documents, dtype=kind), key="key", progress=False)
    dataset = here.dataset(f"of-{name}")
    column = dataset.columns(["tokens"]).to_arrow()["tokens"]
    assert column.type == pa.list_(pa.field("item", pa.from_numpy_dtype(kind)))
    assert column.to_pylist() == lists
    for place in ("server", "client"):
        placed = dataset.options(place=place).shuffle(3).columns(["position", "tokens"])
        got = [row for batch in placed.batches(64) for row in batch.to_pylist()]
        assert sorted(row["position"] for row in got) == list(range(200))
        assert all(row["tokens"] == lists[row["position"]] for row in got)
    long = dataset.where("n_tokens >= 100 && len(tokens) == n_tokens").columns(["tokens"]).to_arrow()
    assert long["tokens"].to_pylist() == [ids for ids in lists if len(ids) >= 100]
    first = dataset.where("len(tokens) > 0 && tokens[0] == " + str(top)).columns(["tokens"]).to_arrow()
    assert lists[7] in first["tokens"].to_pylist()
    request = {"dataset": f"of-{name}", "columns": ["tokens"]}
    client = fl.connect(url)
    info = client.get_flight_info(fl.FlightDescriptor.for_command(json.dumps(request)))
    assert client.do_get(info.endpoints[0].ticket).read_all()["tokens"].to_pylist() == lists
    loader = BowstringDataset(dataset, columns=["tokens"], global_batch_size=64, rank=0, world_size=1)
    rows = [values for batch in loader for values in batch["tokens"]]
    assert [torch.as_tensor(values, dtype=torch.int64).tolist() for values in rows] == lists


def test_what_other_tools_wrote(request: pytest.FixtureRequest, start: StartNode, tmp_path: Path) -> None:
    """Megatron's pairs of files as lists and as blobs; lists of Parquet."""
    bowstring_ = request.getfixturevalue("bowstring")
    documents: list[list[list[int]]] = [[[1, 2, 65535]], [[]], [[7], [8, 9]]]
    (tmp_path / "m").mkdir()
    megatron.write(tmp_path / "m" / "train_text_document", documents, np.uint16)
    (tmp_path / "p").mkdir()
    flat = [[n for sequence in document for n in sequence] for document in documents]
    pq.write_table(pa.table({"input_ids": pa.array(flat, pa.list_(pa.int32()))}), tmp_path / "p" / "x.parquet")
    store = ["--store", tmp_path / "store"]
    bowstring_("import", tmp_path / "m", "lists", *store)
    bowstring_("import", tmp_path / "m", "blobs", "--token-blobs", *store)
    bowstring_("attach", tmp_path / "m", "attached", *store)
    bowstring_("import", tmp_path / "p", "parquet", "--count-tokens", "input_ids", *store)
    client = bowstring.connect(start(store=tmp_path / "store").url)
    for name in ("lists", "blobs", "attached"):
        table = client.dataset(name).to_arrow()
        assert tokens.ids(table).to_pylist() == flat, name
        assert table["n_tokens"].to_pylist() == [3, 0, 3]
        assert table["sequences"].to_pylist() == [[3], [0], [1, 2]]
    part = client.dataset("blobs").to_arrow().slice(2)
    assert tokens.ids(part).to_pylist() == flat[2:]
    assert client.dataset("parquet").to_arrow()["n_tokens"].to_pylist() == [3, 0, 3]


def test_ids_of_what_says_no_type() -> None:
    with pytest.raises(ValueError, match="x is large_binary, and its field does not say what type"):
        tokens.ids(pa.table({"x": pa.array([b"ab"], pa.large_binary())}), "x")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "x.jsonl:2: it is no JSON"),
        (b"[1]", "x.jsonl:2: got list, want an object"),
        (b'{"text": "\xff"}', "x.jsonl:2: it is no text in UTF-8"),
        (b'{"text": 1}', "x.jsonl#2.?: text: got int, want a text"),
        (b"{}", "x.jsonl#2.?: text: got nothing, want a text"),
    ],
)
def test_lines_that_are_no_documents(tokenizer: Tokenizer, tmp_path: Path, line: bytes, message: str) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'{"text": "fine"}\n' + line + b"\n")
    with pytest.raises(ValueError, match=message):
        tokens.encode(tokens.read(tmp_path / "x.jsonl"), tokenizer).read_all()


def test_what_is_no_list_of_ids() -> None:
    for value, message in (
        ([1.5], "want a list of whole numbers"),
        ("ab", "got str, want a list"),
        ([-1], "does not fit"),
    ):
        with pytest.raises(ValueError, match=message):
            tokens.encode([{"key": "a", "tokens": value}], dtype=np.uint16).read_all()
    for arguments, message in (
        ({"dtype": np.float32}, "dtype: got float32"),
        ({"end": "</s>"}, "end: want the token's id"),
        ({"keep": {"tokens": pa.int8()}}, "keep: tokens is a column that is made"),
        ({"batch": 0}, "batch: got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            tokens.encode([], **arguments)


def test_the_library_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"bowstring\[tokens\]"):
        tokens.encode([], "tokenizer.json")
    assert tokens.encode([{"key": "a", "tokens": [1]}]).read_all().num_rows == 1


def test_labels_stay_within_documents() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(50):
        length = rng.randint(1, 20)
        segments = sorted(rng.randint(1, 4) for _ in range(rng.randint(0, length)))
        segments += [0] * (length - len(segments))
        ids = [rng.randrange(65_536) for _ in segments]
        wanted = [ids[i + 1] if i + 1 < length and segments[i] == segments[i + 1] != 0 else -100 for i in range(length)]
        found = labels(torch.tensor([ids], dtype=torch.uint16), torch.tensor([segments], dtype=torch.int32))
        assert found.dtype == torch.int64
        assert found.tolist() == [wanted]
    with pytest.raises(ValueError, match=r"segments: got shape \(2,\), want that of tokens, \(3,\)"):
        labels(torch.zeros(3), torch.zeros(2))
