"""Undocumented parts of Ray, Polars and torch that the package uses, compared with the installed versions.

A failure names the part that another version has changed, and the file of the package that uses it.
"""

from __future__ import annotations

import datetime as dt
import inspect
import multiprocessing
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

SEE = "; it is used in python/src/bowstring/_unstable/"


def column(name: str) -> dict[str, Any]:
    return {"Column": name}


def function(family: str, which: Any, *inputs: Any) -> dict[str, Any]:
    return {"Function": {"input": list(inputs), "function": {family: which}}}


def binary(op: str, left: Any, right: Any) -> dict[str, Any]:
    return {"BinaryExpr": {"left": left, "op": op, "right": right}}


LITERAL = "a literal"  # whose form is Polars' own: Polars evaluates it
A, B = pl.col("a"), pl.col("b")
TREES = {
    "a == 1": (A == 1, binary("Eq", column("a"), LITERAL)),
    "a != 1": (A != 1, binary("NotEq", column("a"), LITERAL)),
    "a < 1": (A < 1, binary("Lt", column("a"), LITERAL)),
    "a <= 1": (A <= 1, binary("LtEq", column("a"), LITERAL)),
    "a > 1": (A > 1, binary("Gt", column("a"), LITERAL)),
    "a >= 1": (A >= 1, binary("GtEq", column("a"), LITERAL)),
    "a & b": (A & B, binary("And", column("a"), column("b"))),
    "a | b": (A | B, binary("Or", column("a"), column("b"))),
    "eq_missing": (A.eq_missing(1), binary("EqValidity", column("a"), LITERAL)),
    "ne_missing": (A.ne_missing(1), binary("NotEqValidity", column("a"), LITERAL)),
    "~a": (~A, function("Boolean", "Not", column("a"))),
    "is_null": (A.is_null(), function("Boolean", "IsNull", column("a"))),
    "is_not_null": (A.is_not_null(), function("Boolean", "IsNotNull", column("a"))),
    "all_horizontal": (pl.all_horizontal("a", "b"), function("Boolean", "AllHorizontal", column("a"), column("b"))),
    "any_horizontal": (pl.any_horizontal("a", "b"), function("Boolean", "AnyHorizontal", column("a"), column("b"))),
    "is_between": (
        A.is_between(1, 2, closed="left"),
        function("Boolean", {"IsBetween": {"closed": "Left"}}, column("a"), LITERAL, LITERAL),
    ),
    "is_in": (A.is_in([1, 2]), function("Boolean", {"IsIn": {"nulls_equal": False}}, column("a"), LITERAL)),
    "str.contains": (
        A.str.contains("x", literal=True),
        function("StringExpr", {"Contains": {"literal": True, "strict": False}}, column("a"), LITERAL),
    ),
    "str.starts_with": (A.str.starts_with("x"), function("StringExpr", "StartsWith", column("a"), LITERAL)),
    "str.ends_with": (A.str.ends_with("x"), function("StringExpr", "EndsWith", column("a"), LITERAL)),
    "list.contains": (
        A.list.contains(1),
        function("ListExpr", {"Contains": {"nulls_equal": True}}, column("a"), LITERAL),
    ),
    "bin.size": (A.bin.size(), function("BinaryExpr", "Size", column("a"))),
    "cast": (A.cast(pl.Int64), {"Cast": {"expr": column("a"), "dtype": {"Literal": "Int64"}, "options": "Strict"}}),
}


def without_literals(node: Any) -> Any:
    if isinstance(node, dict):
        if set(node) == {"Literal"} and isinstance(node["Literal"], dict):
            return LITERAL
        return {name: without_literals(inside) for name, inside in node.items()}
    return [without_literals(inside) for inside in node] if isinstance(node, list) else node


@pytest.mark.parametrize("name", TREES)
def test_polars_writes_expressions_as_before(name: str) -> None:
    from bowstring._unstable.polars import tree

    expression, want = TREES[name]
    got = without_literals(tree(expression))
    assert got == want, f"Polars {pl.__version__} writes {name} in another form{SEE}polars.py and _filters/polars.py"


@pytest.mark.parametrize("value", [None, True, 7, 2.5, "x", dt.date(2024, 2, 29), dt.datetime(2024, 2, 29, 1)], ids=str)
def test_polars_reads_the_literals_that_it_writes(value: object) -> None:
    from bowstring._unstable.polars import literal, tree

    got = literal(tree(pl.lit(value))).to_list()
    assert got == [value], f"Polars {pl.__version__} does not evaluate what it wrote{SEE}polars.py"


def test_polars_takes_a_source_of_frames() -> None:
    """register_io_source is documented as unstable. The package calls it by these names."""
    from polars.io.plugins import register_io_source

    names = set(inspect.signature(register_io_source).parameters)
    wanted = {"schema", "is_pure", "explain_name"}
    assert wanted <= names, f"Polars {pl.__version__}: register_io_source lacks {wanted - names}"
    seen: list[tuple[Any, ...]] = []

    def source(columns: Any, predicate: Any, rows: Any, batch_rows: Any) -> Any:
        seen.append((columns, predicate, rows, batch_rows))
        yield pl.DataFrame({"a": [1, 2, 3], "b": [4, 5, 6]}).filter(predicate).select(columns)

    schema = pl.Schema(dict.fromkeys("abc", pl.Int64))
    frame = register_io_source(source, schema=schema, is_pure=True)
    assert frame.filter(A > 1).select("b").collect()["b"].to_list() == [5, 6]
    ((columns, predicate, rows, _),) = seen
    assert (set(columns) - {"a"}, rows) == ({"b"}, None), f"Polars {pl.__version__} calls a source otherwise"
    assert isinstance(predicate, pl.Expr)


def test_ray_counts_the_rows_of_a_block_without_columns() -> None:
    block = pytest.importorskip("ray.data._internal.arrow_block")
    from bowstring._unstable.ray import ROWS_ALONE

    names = {value for name, value in vars(block).items() if name.endswith("STUB_COL_NAME")}
    assert ROWS_ALONE in names, f"Ray names the column of blocks without columns {names or 'elsewhere'}{SEE}ray.py"


def test_ray_counts_the_runs_of_a_dataset() -> None:
    data = pytest.importorskip("ray.data")
    from bowstring._unstable.ray import runs

    context = data.DataContext()
    assert hasattr(context, "_execution_idx"), f"Ray's DataContext does not count runs in _execution_idx{SEE}ray.py"
    context._execution_idx = 3
    assert runs(context) == 3
    assert runs(None) == 0


def test_ray_says_what_a_source_has_to_read() -> None:
    source = pytest.importorskip("ray.data.datasource")
    from bowstring._unstable.ray import with_all_columns

    made = source.Datasource()
    with_all_columns(made)
    assert made.get_projection_map() is None, f"Ray keeps the columns to read elsewhere{SEE}ray.py"
    chosen = made.apply_projection({"a": "a", "b": "b"}).apply_projection({"b": "b"})
    assert list(chosen.get_projection_map()) == ["b"], f"Ray keeps the columns to read elsewhere{SEE}ray.py"


def test_ray_passes_a_task_to_sinks() -> None:
    pytest.importorskip("ray.data")
    import ray.data
    from ray.data.datasource import Datasink

    names = list(inspect.signature(Datasink.write).parameters)
    assert names == ["self", "blocks", "ctx"], f"Ray {ray.__version__} passes sinks {names[1:]}"
    interfaces = pytest.importorskip("ray.data._internal.execution.interfaces")
    wanted = {"task_idx"}
    assert wanted <= set(interfaces.TaskContext.__dataclass_fields__), f"Ray's TaskContext lacks {wanted}{SEE}ray.py"


TESTS: dict[str, Callable[[Any], Any]] = {
    "starts_with": lambda text: text.starts_with("x"),
    "ends_with": lambda text: text.ends_with("x"),
    "match_substring": lambda text: text.contains("x"),
}


@pytest.mark.parametrize("name", TESTS)
def test_ray_tests_strings_by_functions_of_arrow(name: str) -> None:
    expressions = pytest.importorskip("ray.data.expressions")
    from bowstring._unstable.ray import text_test

    e = TESTS[name](expressions.col("a").str)
    assert isinstance(e, expressions.PyArrowComputeUDFExpr), f"Ray makes {type(e).__name__} of {name}{SEE}ray.py"
    found = text_test(e)
    assert found is not None, f"Ray keeps the arguments of {name} elsewhere{SEE}ray.py"
    function, of, text = found
    assert (function, of.name, text) == (name, "a", "x"), f"Ray tests strings by other functions{SEE}ray.py"


def test_torch_collates_by_class() -> None:
    data = pytest.importorskip("torch.utils.data")
    from bowstring._unstable.torch import collate_by

    class Mine(dict[str, int]):
        pass

    collate_by(Mine, lambda batch, *, collate_fn_map=None: ("mine", len(batch)))  # noqa: ARG005
    got = data.default_collate([Mine(a=1), Mine(a=2)])
    assert got == ("mine", 2), f"torch does not look up classes in default_collate_fn_map{SEE}torch.py"


def test_workers_are_numbered() -> None:
    pytest.importorskip("torch")
    from bowstring._unstable.torch import worker_number

    assert worker_number() == 0
    context = multiprocessing.get_context("fork")
    found = []
    for _ in range(2):
        said = context.SimpleQueue()
        process = context.Process(target=lambda said=said: said.put(worker_number()))
        process.start()
        found.append(said.get())
        process.join()
    assert found[1] == found[0] + 1 > 1, f"multiprocessing does not number its processes in _identity{SEE}torch.py"
