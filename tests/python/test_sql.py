"""Conditions in SQL select the same rows as in DuckDB, and errors have the place of the mistake."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import bowstring
import pyarrow as pa
import pytest
from bowstring._filters import sql as _sql
from node import Node
from sql_conditions import differing, table

SCHEMA = table(1, 0).schema.append(
    pa.field("image", pa.large_binary(), metadata={"bowstring.kind": "blob"})
).append(pa.field("box", pa.struct([("w", pa.int32())])))  # fmt: skip
EXPRESSIONS = [
    ("sure >= 40 AND word LIKE '%dog%'", '(sure >= 40) and (word contains "dog")'),
    ("NOT (small > 3)", "small <= 3"),
    ("class = 'dog'", "class == 1"),
    ("class LIKE '%dog'", 'class in [1, 2]'),
    ("split IN ('a', 'b')", 'split in ["a", "b"]'),
    ("small NOT IN (1, NULL)", "false"),
    ("small NOT IN (1, 2)", "small != nil and not (small in [1, 2])"),
    ("score > 0.5", "score > 0.5 or (score != score)"),
    ("single = 0.1", "single == 0.10000000149011612"),
    ("small BETWEEN 1 AND 2.5", "(small >= 1) and (small <= 2)"),
    ("image.size > 3 AND image IS NOT NULL", '($env["image.size"] > 3) and ($env["image.size"] != nil)'),
    ("box.w = 3", "box.w == 3"),
    ("\"a b\" IS NULL", '$env["a b"] == nil'),
    ("day > '2024-01-31'", 'day > date("2024-01-31")'),
    ("WORD LIKE 'a!_b' ESCAPE '!'", 'word == "a_b"'),
    ("word ILIKE 'a_.%'", 'word matches "(?is)^a.\\\\..*$"'),
    ("1 = 1", "true"),
    ("small < 60 * 2", "small < 120"),
]  # fmt: skip
ERRORS = [
    ("", 0, "want a condition"),
    ("smal = 3", 0, 'no column "smal" (did you mean "small"?)'),
    ("small = 3 AND\n  word > 5", 16, "want text in '…'"),
    ("class = 'cow'", 0, "no class 'cow'"),
    ("class < 'dog'", 0, "no order"),
    ("small = 3 word", 10, "unexpected 'word'"),
    ("small = 3; drop table x", 11, "unexpected 'drop'"),
    ("small = AND word", 8, "a value is missing before 'AND'"),
    ("word = 'cat", 7, "a quote is not closed"),
    ("small IN (SELECT 1)", 0, "want a list of values after IN"),
    ("sure = 1 AND CASE WHEN flag THEN 1 END = 1", 23, "CASE is not supported"),
    ("count(*) > 3", 0, "COUNT is not supported"),
    ("small", 0, "want a condition"),
    ("small % 0 = 1", 0, "not 0 after %"),
    ("day > 'today'", 0, "is no date"),
    ("word LIKE small", 10, "want a pattern"),
    ("image = 'x'", 0, "does not compare"),
    ("(" * 3000 + "flag", 0, "nested too deeply"),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, binary: Path) -> Iterator[bowstring.Client]:
    root = tmp_path_factory.mktemp("sql")
    with Node(binary, root / "store", log=root / "log") as node, bowstring.connect(node.url) as client:
        yield client


@pytest.mark.parametrize(("sql", "expression"), EXPRESSIONS, ids=range(len(EXPRESSIONS)))
def test_translation(sql: str, expression: str) -> None:
    assert _sql.expression(sql, SCHEMA) == expression


@pytest.mark.parametrize(("sql", "start", "message"), ERRORS, ids=range(len(ERRORS)))
def test_errors(sql: str, start: int, message: str) -> None:
    with pytest.raises(bowstring.InvalidRequest) as caught:
        _sql.expression(sql, SCHEMA)
    said = str(caught.value)
    assert message in said
    line, column = sql.count("\n", 0, start), start - (sql.rfind("\n", 0, start) + 1)
    assert said.startswith(f"sql:{line + 1}:{column + 1}: ")
    assert said.splitlines()[-1] == " | " + "." * column + "^"


def test_random_conditions(client: bowstring.Client) -> None:
    """Whatever the condition: the rows are those that DuckDB finds."""
    seed = secrets.randbelow(1 << 32)
    rows = table(300, seed)
    client.ingest("random", rows, progress=False)
    assert not differing(client.dataset("random"), rows, 150, seed)


def test_where(client: bowstring.Client) -> None:
    rows = table(100, 1)
    client.ingest("rows", rows, progress=False)
    dataset = client.dataset("rows")
    both = dataset.filter("sure > 3", sql="word = 'cat'").columns(["sure"])
    assert both == dataset.where("sure > 3").where('word == "cat"').columns(["sure"])
    assert both.where(sql='"a b" < 20').num_rows == both.where('$env["a b"] < 20').num_rows
    with pytest.raises(TypeError, match="want an expression, or sql"):
        dataset.where()
    with pytest.raises(TypeError, match="sql: got int, want str"):
        dataset.where(sql=3)  # type: ignore[arg-type]


def test_other_entrances(client: bowstring.Client) -> None:
    """A condition in SQL selects the same rows wherever a condition is taken."""
    rows = table(100, 2)
    client.ingest("entrances", rows, progress=False)
    dataset = client.dataset("entrances")
    sql = "word = 'cat' OR sure > 3"
    chosen = dataset.where(sql=sql)
    count = chosen.num_rows
    assert 0 < count < 100
    polars = pytest.importorskip("bowstring.polars")
    assert polars.scan(client, "entrances", sql=sql).collect().height == count
    torch = pytest.importorskip("bowstring.torch")
    assert len(torch.BowstringMapDataset(dataset, sql=sql)) == count
    # The translated condition is one for every other client, such as `bowstring get --where`.
    assert dataset.where(chosen.request()["where"]).num_rows == count
    with pytest.raises(bowstring.InvalidRequest, match="got both, want one"):
        client.alter("entrances", delete_where="sure > 3", delete_sql=sql)
    assert client.alter("entrances", delete_sql=sql).deleted == count
    assert client.dataset("entrances").num_rows == 100 - count
