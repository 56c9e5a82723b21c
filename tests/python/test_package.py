"""The wheel: what is in it, that it is what the tests run with, and that importing it is cheap."""

from __future__ import annotations

import ast
import contextlib
import email
import graphlib
import json
import re
import socket
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import bowstring
import pytest
from conftest import ROOT
from node import Node
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SOURCE = ROOT / "python" / "src" / "bowstring"
README = ROOT / "python" / "README.md"
HEAVY = ["torch", "grain", "torchvision", "ray", "polars", "pandas", "PIL", "IPython", "sqlglot", "tqdm"]


@pytest.fixture(scope="module")
def wheel() -> zipfile.ZipFile:
    found = list((ROOT / "build" / "wheel").glob("bowstring-*.whl"))
    if not found:
        pytest.fail("there is no wheel; run `make wheel`")
    return zipfile.ZipFile(found[0])


def test_what_is_in_it(wheel: zipfile.ZipFile) -> None:
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert inside == {
        f"bowstring/{p.relative_to(SOURCE)}"
        for p in SOURCE.rglob("*")
        if p.suffix in (".py", ".jpg") or p.name == "py.typed"
    }
    for name in inside:
        assert wheel.read(name) == (SOURCE.parent / name).read_bytes(), f"{name} is old; run `make wheel`"


def test_what_it_says_of_itself(wheel: zipfile.ZipFile) -> None:
    (info,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    about = email.message_from_bytes(wheel.read(info))
    assert about["Name"] == "bowstring"
    assert about["Version"] == bowstring.__version__
    assert about["Requires-Python"] == ">=3.10"
    assert about["License-Expression"] == "Apache-2.0"
    extras = {"torch", "grain", "ray", "polars", "notebook", "dali", "sql", "tokens"}
    assert set(about.get_all("Provides-Extra", [])) == extras
    needed = about.get_all("Requires-Dist", [])
    assert {re.split(r"[<>=\[; ]", n)[0] for n in needed if "extra ==" not in n} == {
        "hpack",
        "numpy",
        "pyarrow",
        "tenacity",
        "tqdm",
    }
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())
    assert (ROOT / "python" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_tests_run_with_it() -> None:
    where = Path(bowstring.__file__)
    assert "site-packages" in where.parts, f"bowstring comes from {where}, and not from its wheel; run `make wheel`"


def test_importing_it_is_cheap() -> None:
    """It imports little beside what pyarrow does, of what a `pip install` brings; and nothing heavy in any case."""
    script = """
import json, sys
import pyarrow.flight, numpy
import pyarrow.compute
before = set(sys.modules)
import bowstring
print(json.dumps(sorted(set(sys.modules) - before)))
"""

    def imported(program: str) -> set[str]:
        done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
        return {name.partition(".")[0] for name in json.loads(done.stdout)}

    assert not imported(script) & set(HEAVY)
    alone = imported(f"barred = set({Only(set()).barred()!r}){BARRIER}{script}")
    assert alone - sys.stdlib_module_names <= {"bowstring", "hpack", "numpy", "tenacity"}


def test_reading_does_not_import_pandas(node: Node) -> None:
    """The imports of pyarrow's first conversion to NumPy; that takes most of a second."""
    script = """
import sys, bowstring
photos = bowstring.connect(sys.argv[1]).dataset("photos", split="train").where("width > 0").select(range(200))
next(photos.shuffle(1).batches(8))
photos.positions(), photos.take([1, 2]), photos.explain(), repr(photos.head())
print([m for m in ("pandas", "torch", "polars", "ray", "tqdm") if m in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script, node.url], check=False, capture_output=True, text=True, timeout=600
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def imports(path: Path) -> set[str]:
    """The modules that a file imports, anywhere in it: in functions and for types, too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative imports"
            module = node.module or ""
            found |= {f"{module}.{alias.name}" for alias in node.names} | {module}
    return found


def test_imports_go_one_way() -> None:
    """No module imports one that imports it, whatever is between them."""
    modules = {
        ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in SOURCE.rglob("*.py")
    }
    graph = {name: (imports(path) & modules.keys()) - {name} for name, path in modules.items()}
    # `from bowstring._transport import fork` takes a module, and nothing that the package itself has.
    graph = {name: {other for other in others if not name.startswith(f"{other}.")} for name, others in graph.items()}
    names = "_cancellation _finalizers _messages connection errors"
    names += " _transport _transport.background _transport.fork _transport.shm _transport.views"
    assert graph["bowstring.stream"] == {f"bowstring.{name}" for name in names.split()}
    tuple(graphlib.TopologicalSorter(graph).static_order())  # CycleError names the modules


# Each imports only earlier ones.
GROUPS = ["_unstable", "_local", "_transport", "_requests", "_rows", "_operators", "_filters"]


def test_groups_of_private_modules_import_one_way() -> None:
    """A group imports only groups before it, and no group imports itself through public modules."""
    folders = {path.name for path in SOURCE.iterdir() if path.name.startswith("_") and path.is_dir()}
    assert folders - {"__pycache__"} == set(GROUPS)
    whole: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts[0] in ("torch", "demo", "__init__"):
            continue
        direct = {name.split(".")[1] for name in imports(path) if name.startswith("bowstring.")} - {parts[0]}
        if parts[0] in GROUPS:
            later = GROUPS[GROUPS.index(parts[0]) + 1 :]
            assert not direct & set(later), f"{path.relative_to(SOURCE)} imports {direct & set(later)}"
        whole.setdefault(parts[0], set()).update(direct)
    tuple(graphlib.TopologicalSorter(whole).static_order())  # CycleError names the groups and modules


def test_every_public_name_is_documented() -> None:
    for name in bowstring.__all__:
        thing = getattr(bowstring, name)
        assert (thing.__doc__ or "").strip(), f"{name} has no docstring"
        for part, method in vars(thing).items() if isinstance(thing, type) else ():
            if not part.startswith("_") and callable(method):
                assert (method.__doc__ or "").strip(), f"{name}.{part} has no docstring"


def blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)


@pytest.mark.parametrize("path", [README, ROOT / "docs" / "python" / "index.md"], ids=["README", "docs"])
@pytest.mark.slow
def test_the_lines_in_the_documents(node: Node, path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """They run one after another, as in a notebook, against the photographs."""
    names: dict[str, object] = {}
    found = blocks(path)
    assert found
    for block in found:
        exec(block.replace("grpc://127.0.0.1:8815", node.url), names)  # noqa: S102
    assert "270 rows" in capfd.readouterr().out
    client = bowstring.connect(node.url)
    for info in client.datasets():
        if info.name != "photos":
            client.drop(info.name)


class Only:
    """Lets a process import nothing but what a `pip install` has brought, and what Python has itself."""

    def __init__(self, extras: set[str]) -> None:
        self.wanted = {"pip", *self._closure("bowstring", extras)}

    def _closure(self, name: str, extras: set[str], seen: set[str] | None = None) -> set[str]:
        seen = set() if seen is None else seen
        seen.add(name)
        for line in metadata.requires(name) or []:
            need = Requirement(line)
            other = canonicalize_name(need.name)
            wanted = need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in {"", *extras})
            if wanted and other not in seen:
                with contextlib.suppress(metadata.PackageNotFoundError):  # of another platform
                    self._closure(other, set(need.extras), seen)
        return seen

    def barred(self) -> list[str]:
        """Modules that are here, and would not be there."""
        brought = metadata.packages_distributions()
        return sorted(
            module
            for module, names in brought.items()
            if not {canonicalize_name(name) for name in names} & self.wanted and module.isidentifier()
        )


BARRIER = """
import sys
class Barrier:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in barred:
            raise ModuleNotFoundError(f"the pip install that is shown does not bring {name}", name=name)
sys.meta_path.insert(0, Barrier())
"""


@pytest.mark.parametrize(
    "path",
    [README, ROOT / "README.md", ROOT / "docs" / "python" / "index.md"],
    ids=["python/README", "README", "docs/python/index"],
)
def test_what_is_shown_needs_what_is_installed(node: Node, path: Path) -> None:
    """The lines of Python run with no other packages than those of the `pip install` above them."""
    text = path.read_text()
    installs = re.findall(r"^pip install '?\./python(?:\[([a-z,]+)\])?'? ", text, re.MULTILINE)
    assert installs
    extras = {extra for given in installs for extra in given.split(",") if extra}
    barred = Only(extras).barred()
    assert {"torchvision", "ray", "duckdb", "pandas", "pytest"} <= set(barred)
    assert not {"pyarrow", "numpy", "bowstring"} & set(barred)
    # Each of the first page's is a program of its own; the others go on from one to the next.
    for script in blocks(path) if path == ROOT / "README.md" else ["\n".join(blocks(path))]:
        script = script.replace(
            'bowstring.open("photos/"', 'bowstring.connect("grpc://127.0.0.1:8815").dataset("photos"'
        )
        program = f"barred = set({barred!r}){BARRIER}{script.replace('grpc://127.0.0.1:8815', node.url)}"
        done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr


def test_this_takes_no_network() -> None:
    """Making a client and a ticket sends nothing: the listener gets no connection, and a call would wait for ever."""
    with socket.create_server(("127.0.0.1", 0)) as listens:
        listens.setblocking(False)
        address = f"grpc://127.0.0.1:{listens.getsockname()[1]}"
        client = bowstring.connect(address)
        assert repr(client) == f"<bowstring.Client {address}>"
        assert bowstring.Dataset(client, "photos", 1, None, 300).ticket(batch=8, rank=1, world_size=2)["rank"] == 1
        with pytest.raises(BlockingIOError):
            listens.accept()
