"""Random conditions in SQL, and a table to test them on, which has nulls, NaN and unsigned 64-bit integers."""

from __future__ import annotations

import datetime as dt
import json
import math
import random

import bowstring
import duckdb
import numpy as np
import pyarrow as pa

WORDS = ["cat", "dog", "Cat", "hotdog", "", "a%b", "a_b", "it's", "naïve", "日本", "x\ny", "C:\\d"]
CLASSES = ["cat", "dog", "hot dog", "bird"]
DAY = dt.date(2024, 1, 1)


def table(rows: int, seed: int) -> pa.Table:
    """Random rows. About every fifth cell of a column that may be null is null."""
    rng = random.Random(seed)

    def column(kind: pa.DataType, values: list[object], nulls: float = 0.2) -> pa.Array:
        cells = [None if rng.random() < nulls else rng.choice(values) for _ in range(rows)]
        return pa.array(cells, kind)

    floats: list[float] = [-2.5, -0.0, 0.0, 0.1, 0.5, 2.0, 7.25, 1e300, math.inf, -math.inf, math.nan]
    small: list[object] = list(range(-9, 60))
    start = dt.datetime(2024, 1, 1)
    named = pa.field("class", pa.int32(), metadata={"bowstring.classes": json.dumps(CLASSES)})
    columns = [
        (pa.field("key", pa.string(), nullable=False), pa.array([f"row-{n}" for n in range(rows)])),
        (pa.field("sure", pa.int32(), nullable=False), column(pa.int32(), small, 0)),
        (pa.field("small", pa.int16()), column(pa.int16(), small)),
        (pa.field("big", pa.int64()), column(pa.int64(), [-(2**63), -1, 0, 7, 2**53, 2**53 + 1, 2**63 - 1])),
        (pa.field("huge", pa.uint64()), column(pa.uint64(), [0, 7, 2**53, 2**53 + 1, 2**63, 2**64 - 2, 2**64 - 1])),
        (pa.field("single", pa.float32()), column(pa.float32(), [np.float32(f) for f in floats if f != 1e300])),
        (pa.field("score", pa.float64()), column(pa.float64(), list(floats))),
        (pa.field("word", pa.string()), column(pa.string(), list(WORDS))),
        (pa.field("other", pa.string()), column(pa.string(), list(WORDS))),
        (pa.field("flag", pa.bool_()), column(pa.bool_(), [True, False])),
        (pa.field("day", pa.date32()), column(pa.date32(), [DAY + dt.timedelta(n) for n in range(-9, 9)])),
        (pa.field("taken", pa.timestamp("us")),
         column(pa.timestamp("us"), [start + dt.timedelta(hours=n, microseconds=n) for n in range(-40, 40)])),
        (pa.field("tags", pa.list_(pa.string())), column(pa.list_(pa.string()), [["cat"], ["dog", "cat"], [], ["x"]])),
        (named, column(pa.int32(), [0, 1, 2, 3])),
        (pa.field("a b", pa.int32()), column(pa.int32(), small)),
    ]  # fmt: skip
    return pa.table([cells for _, cells in columns], schema=pa.schema([field for field, _ in columns]))


class Conditions:
    """Random conditions."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def any(self, depth: int) -> str:
        """A condition of at most `depth` levels of AND, OR and NOT."""
        rng = self.rng
        if depth == 0 or rng.random() < 0.2:
            return self.test()
        match rng.randrange(6):
            case 0:
                return f"NOT ({self.any(depth - 1)})"
            case 1 | 2:
                return f"({self.any(depth - 1)}) AND {self.any(depth - 1)}"
            case 3 | 4:
                return f"({self.any(depth - 1)}) OR ({self.any(depth - 1)})"
            case _:
                return f"({self.any(depth - 1)}) IS {rng.choice(['', 'NOT '])}{rng.choice(['TRUE', 'FALSE', 'NULL'])}"

    def test(self) -> str:
        """One test of a column."""
        rng = self.rng
        op = rng.choice(["=", "<>", "!=", "<", "<=", ">", ">="])
        no = rng.choice(["", "NOT "])
        word, number = rng.choice(["word", "other"]), rng.choice(["sure", "small", '"a b"'])
        match rng.randrange(16):
            case 0 | 1:
                column = rng.choice(["sure", "small", "big", "huge", "SURE", '"a b"'])
                sides = [column, self.integer()]
                return f" {op} ".join(sides if rng.random() < 0.8 else sides[::-1])
            case 2:
                return f"{rng.choice(['sure', 'small', 'big', 'huge'])} {op} {self.decimal()}"
            case 3 | 4:
                return f"{rng.choice(['single', 'score'])} {op} {self.decimal()}"
            case 5:
                pair = rng.choice([("single", "score"), ("score", "score"), ("big", "huge"), ("huge", "sure"),
                                   ("word", "other"), ("small", '"a b"'), ("single", "small")])  # fmt: skip
                return f"{pair[0]} {op} {pair[1]}"
            case 6:
                column = rng.choice(["sure", "small", "huge", "score"])
                return f"{column} {no}BETWEEN {self.integer()} AND {self.integer()}"
            case 7:
                column = rng.choice(["sure", "small", "big", "huge", "single", "score"])
                items = [self.integer(), self.integer(), self.decimal(), *(["NULL"] if rng.random() < 0.3 else [])]
                return f"{column} {no}IN ({', '.join(items)})"
            case 8:
                return f"{word} {no}IN ({', '.join(self.text(w) for w in rng.sample(WORDS, 3))})"
            case 9:
                return f"{word} {op} {self.text(rng.choice(WORDS))}"
            case 10:
                pattern = rng.choice(["%cat%", "cat", "%dog", "c%", "%", "", "_a_", "a!%b", "%o_d%", "a%b", "%!_%",
                                      "C:\\%", "%\n%", "x_y"])  # fmt: skip
                return f"{word} {no}{rng.choice(['LIKE', 'ILIKE'])} {self.text(pattern)} ESCAPE '!'"
            case 11:
                column = rng.choice(["sure", "small", "huge", "score", "word", "flag", "day", "tags", '"a b"'])
                return f"{column} IS {no}NULL"
            case 12:
                return rng.choice(["flag", "NOT flag", "flag = TRUE", "flag <> FALSE", "flag IS TRUE", "NULL", "TRUE",
                                   "flag = NULL", "flag IS NOT FALSE"])  # fmt: skip
            case 13:
                day = DAY + dt.timedelta(rng.randrange(-9, 9))
                column = rng.choice(["day", "taken"])
                literal = rng.choice([f"DATE '{day}'", f"'{day}'", f"TIMESTAMP '{day} 05:00:00.000005'"])
                return f"{column} {op} {literal}"
            case 14:
                made = rng.choice([f"{number} + sure", f"{number} * 2", f"score / {number}", f"{number} - sure * 2",
                                   f"-{number}", f"abs({number})", f"{number} % 7", f"length({word})",
                                   f"coalesce({number}, 3)", f"coalesce({number}, sure)",
                                   f"score + {number}"])  # fmt: skip
                return f"{made} {op} {rng.randrange(-20, 60)}"
            case _:
                return rng.choice([f"list_contains(tags, '{rng.choice(['cat', 'dog', 'y'])}')",
                                   f"starts_with({word}, 'c')", f"contains({word}, 'o')", f"lower({word}) = 'cat'",
                                   f"class {no}LIKE '%dog%'", f"class {no}IN ('cat', 'bird')",
                                   f"class {rng.choice(['=', '<>'])} 'dog'"])  # fmt: skip

    def integer(self) -> str:
        """An integer of a size at which types differ."""
        edges = [0, 1, 7, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)]
        return str(self.rng.choice([self.rng.randrange(-20, 60), self.rng.choice(edges)]))

    def decimal(self) -> str:
        """A decimal number."""
        return self.rng.choice(["0.1", "-2.5", "2.0", "7.25", "0.5", "-0.0", "60.5"])

    def text(self, value: str) -> str:
        """A literal of text."""
        return "'" + value.replace("'", "''") + "'"


def differing(dataset: bowstring.Dataset, rows: pa.Table, count: int, seed: int) -> list[str]:
    """The conditions for which the dataset has other rows than DuckDB finds in the same table."""
    conditions, found = Conditions(seed), []
    names = pa.DictionaryArray.from_arrays(rows["class"].combine_chunks(), CLASSES).cast(pa.string())
    plain = rows.set_column(rows.schema.get_field_index("class"), "class", names)
    plain = plain.append_column("position", pa.array(range(rows.num_rows)))
    with duckdb.connect() as database:
        database.register("samples", plain)
        database.execute("create table rows as select * from samples")
        for number in range(count):
            sql = conditions.any(conditions.rng.randrange(4))
            query = f"select position from rows where {sql} order by position"  # noqa: S608
            expected = [position for (position,) in database.execute(query).fetchall()]
            try:
                got = dataset.where(sql=sql).positions().tolist()
            except bowstring.BowstringError as error:
                got = str(error)
            if got != expected:
                at = f"{got}" if isinstance(got, str) else f"rows {sorted(set(got) ^ set(expected))[:5]}"
                found.append(f"condition {number} of seed {seed}: {sql}: {at}")
    return found
