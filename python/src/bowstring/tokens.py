"""Text on its way to being trained on: documents that are read, tokenised, and uploaded.

```python
from bowstring import tokens

documents = tokens.read("wiki.jsonl.gz", "notes.txt")
rows = tokens.encode(documents, "tokenizer.json", end="</s>")
client.ingest("corpus", rows, key="key")
```

A document becomes a row of `key`, `tokens` (a list of token ids) and `n_tokens`. Documents are read and tokenised as
they are sent: a corpus may be larger than memory.
"""

from __future__ import annotations

import io
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bowstring._messages import shown

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["encode", "ids", "read"]

_TYPES = (np.uint8, np.uint16, np.uint32, np.int32, np.int64, np.uint64)
_FIELD = b"bowstring.tokens"  # metadata of a field of blobs: the type of their token ids
_BATCH_IDS = 1 << 20  # of a record batch, about

Document = Mapping[str, Any]


def read(*paths: str | os.PathLike[str], lines: bool = False) -> Iterator[dict[str, Any]]:
    """Read documents from files of JSON lines and of text, which may be compressed by gzip, zstd, bz2 or lz4.

    A file named `.jsonl`, `.ndjson` or `.json` has an object in each line, which is a document: `text` and what else
    it has. Any other file is text in UTF-8, and is one document.

    Args:
        paths: The files, in the order in which they are read. Their names are part of the keys.
        lines: Whether each line of a file of text that is not blank is a document by itself.

    Yields:
        Documents, each with a `key`: the file, and the line's number from 1 where it has several documents.
    """
    for path in paths:
        name = os.fspath(path)
        plain = Path(name)
        if plain.suffix in (".gz", ".zst", ".bz2", ".lz4"):
            plain = plain.with_suffix("")
        of_json = plain.suffix in (".jsonl", ".ndjson", ".json")
        with io.BufferedReader(pa.input_stream(name)) as file:  # which decompresses by the name
            if not (of_json or lines):
                yield {"key": name, "text": _text(file.read(), name)}
                continue
            for number, line in enumerate(file, 1):
                at = f"{name}:{number}"
                if not line.strip():
                    continue
                text = _text(line, at)
                document = _parsed(text, at) if of_json else {"text": text.rstrip("\r\n")}
                yield {**document, "key": f"{name}#{number}"}


def _text(data: bytes, at: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{at}: it is no text in UTF-8: {error}") from None


def _parsed(line: str, at: str) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{at}: it is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"{at}: got {type(document).__name__}, want an object")  # noqa: TRY004 - it is in the file
    return document


def encode(
    documents: Iterable[Document],
    tokenizer: Tokenizer | str | os.PathLike[str] | None = None,
    *,
    field: str | None = None,
    dtype: npt.DTypeLike | None = None,
    end: str | int | None = None,
    special: bool = False,
    keep: Mapping[str, pa.DataType] | None = None,
    batch: int = 1000,
) -> pa.RecordBatchReader:
    """Turn documents into rows of token ids, as they are asked for.

    Args:
        documents: Documents with a `key` each, as [read][bowstring.tokens.read] gives them.
        tokenizer: A tokenizer of the library `tokenizers`, or the path of its `tokenizer.json`. It takes all of a
            document, whatever it says of truncation and padding. None: documents have lists of token ids already.
        field: What of a document is tokenised: `text`, or without a tokenizer `tokens`.
        dtype: The type of the ids: `uint8`, `uint16`, `uint32`, `int32`, `int64` or `uint64`. Without it `uint16` where
            that holds all ids of the tokenizer, `uint32` where it does not, and `int32` without a tokenizer.
        end: A token, or its id, that is put behind each document.
        special: Whether the tokenizer adds the special tokens that it adds to a single text.
        keep: Other values of documents that become columns, and their types. A document may lack them.
        batch: How many documents are tokenised together.

    Returns:
        Columns `key`, `tokens`, `n_tokens`, and those of `keep`: what `Client.ingest` takes.
    """
    if batch < 1:
        raise ValueError(f"batch: got {batch}, want 1 or more")
    name = field or ("tokens" if tokenizer is None else "text")
    coder = None if tokenizer is None else _tokenizer(tokenizer)
    kind = _kind(dtype, coder)
    last = [] if end is None else [_end(end, coder)]
    kept = dict(keep or {})
    for taken in ("key", "tokens", "n_tokens"):
        if taken in kept:
            raise ValueError(f"keep: {taken} is a column that is made")
    schema = pa.schema(
        [
            pa.field("key", pa.string(), nullable=False),
            pa.field("tokens", pa.list_(pa.from_numpy_dtype(kind)), nullable=False),
            pa.field("n_tokens", pa.int64(), nullable=False),
            *(pa.field(column, kept[column]) for column in kept),
        ]
    )

    def batches() -> Iterator[pa.RecordBatch]:
        left = iter(documents)
        while some := list(itertools.islice(left, batch)):
            values = [_value(document, name, coder is not None) for document in some]
            lists = values if coder is None else _encoded(coder, values, special)
            start = 0
            while start < len(some):  # a batch of long documents is several
                stop, size = start, 0
                while stop < len(some) and (stop == start or size + len(lists[stop]) <= _BATCH_IDS):
                    size += len(lists[stop])
                    stop += 1
                yield _rows(schema, kind, some[start:stop], lists[start:stop], last, kept)
                start = stop

    return pa.RecordBatchReader.from_batches(schema, batches())


def _tokenizer(given: Tokenizer | str | os.PathLike[str]) -> Tokenizer:
    try:
        from tokenizers import Tokenizer as Library
    except ImportError as error:
        raise ImportError("tokenising needs the library tokenizers: pip install 'bowstring[tokens]'") from error
    if isinstance(given, (str, os.PathLike)):
        coder = Library.from_file(os.fspath(given))
    else:
        coder = getattr(given, "backend_tokenizer", given)  # of transformers
    if not isinstance(coder, Library):
        raise TypeError(
            f"tokenizer: got {type(given).__name__}, want a tokenizers.Tokenizer or the path of tokenizer.json"
        )
    if coder.truncation is not None or coder.padding is not None:  # which the caller's keeps
        coder = Library.from_str(coder.to_str())
        coder.no_truncation()
        coder.no_padding()
    return coder


def _kind(dtype: npt.DTypeLike | None, coder: Tokenizer | None) -> np.dtype[Any]:
    if dtype is not None:
        kind = np.dtype(dtype)
        if kind not in _TYPES:
            raise ValueError(f"dtype: got {kind}, want uint8, uint16, uint32, int32, int64 or uint64")
        return kind
    if coder is None:
        return np.dtype(np.int32)
    largest = max(coder.get_vocab(with_added_tokens=True).values(), default=0)
    return np.dtype(np.uint16 if largest < 1 << 16 else np.uint32)


def _end(end: str | int, coder: Tokenizer | None) -> int:
    if isinstance(end, int):
        return end
    found = None if coder is None else coder.token_to_id(end)
    if found is None:
        raise ValueError(f"end: the tokenizer has no token {shown(end)}" if coder else "end: want the token's id")
    return found


def _value(document: Document, name: str, text: bool) -> Any:
    if "key" not in document:
        raise ValueError("a document has no key: want a mapping with key, as tokens.read gives it")
    value = document.get(name)
    wanted = str if text else (Sequence, np.ndarray)
    if not isinstance(value, wanted) or (not text and isinstance(value, (str, bytes))):
        what = "a text" if text else "a list of token ids"
        got = "nothing" if value is None else type(value).__name__
        raise ValueError(f"{shown(str(document['key']))}: {shown(name)}: got {got}, want {what}")
    return value


def _encoded(coder: Tokenizer, texts: list[str], special: bool) -> list[list[int]]:
    encode_batch = getattr(coder, "encode_batch_fast", coder.encode_batch)  # without offsets, where there is that
    return [encoding.ids for encoding in encode_batch(texts, add_special_tokens=special)]


def _rows(
    schema: pa.Schema,
    kind: np.dtype[Any],
    documents: list[Document],
    lists: Sequence[Any],
    last: list[int],
    kept: Mapping[str, pa.DataType],
) -> pa.RecordBatch:
    arrays = [_ids(document, values, last, kind) for document, values in zip(documents, lists, strict=True)]
    counts = np.array([len(a) for a in arrays], np.int64)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"{shown(str(documents[0]['key']))}: {offsets[-1]} tokens are more than a list may have")
    tokens = pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)), pa.array(np.concatenate([np.empty(0, kind), *arrays]))
    )
    columns = [pa.array([str(document["key"]) for document in documents], pa.string()), tokens, pa.array(counts)]
    for name, type_ in kept.items():
        try:
            columns.append(pa.array([document.get(name) for document in documents], type_))
        except (pa.ArrowException, OverflowError) as error:  # noqa: PERF203
            raise ValueError(
                f"{shown(str(documents[0]['key']))} and those that follow: {shown(name)}: {error}"
            ) from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _ids(document: Document, values: Any, last: list[int], kind: np.dtype[Any]) -> npt.NDArray[Any]:
    numbers = np.asarray([*values, *last] if last else values)
    if numbers.size == 0:
        return np.empty(0, kind)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise ValueError(f"{shown(str(document['key']))}: want a list of whole numbers")
    low, high = int(numbers.min()), int(numbers.max())
    bounds = np.iinfo(kind)
    if low < bounds.min or high > bounds.max:
        wrong = low if low < bounds.min else high
        raise ValueError(f"{shown(str(document['key']))}: token id {wrong} does not fit {kind}: give a wider dtype")
    return numbers.astype(kind)


def ids(batch: pa.RecordBatch | pa.Table, column: str = "tokens") -> pa.Array:
    """A blob column of token ids as lists, without a copy.

    Args:
        batch: What a stream or a request gave.
        column: A column of blobs whose field says the type of their token ids, as `attach` makes it of Megatron's
            files. A column of lists comes as it is.
    """
    field, values = batch.schema.field(column), batch.column(column)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_list(field.type) or pa.types.is_large_list(field.type) or pa.types.is_fixed_size_list(field.type):
        return values
    named = (field.metadata or {}).get(_FIELD, b"").decode()
    if not named or not (pa.types.is_large_binary(field.type) or pa.types.is_binary(field.type)):
        raise ValueError(f"{shown(column)} is {field.type}, and its field does not say what type its token ids have")
    kind = np.dtype(named)
    values = values.cast(pa.large_binary())
    offsets, data = np.zeros(1, np.int64), memoryview(b"")
    if len(values):
        _, starts, body = values.buffers()
        offsets = np.frombuffer(starts, np.int64, len(values) + 1, 8 * values.offset)
        data = memoryview(body or b"")[offsets[0] : offsets[-1]]
        offsets = offsets - offsets[0]
    if (offsets % kind.itemsize).any():
        raise ValueError(f"{shown(column)}: a blob is no whole number of token ids of {kind}")
    numbers = pa.array(np.frombuffer(data, kind))
    mask = values.is_null() if values.null_count else None
    return pa.LargeListArray.from_arrays(pa.array(offsets // kind.itemsize), numbers, mask=mask)
