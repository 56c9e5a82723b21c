"""The flags, settings, environment variables and names that the pages speak of exist.

Only code counts: blocks, and words between backticks.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import bowstring
import bowstring.torch
import pytest
import site_pages
from conftest import ROOT
from words import MARKDOWN

# Old names are right in it.
PAGES = [page for page in site_pages.tracked(ROOT, "*.md") if page != "CHANGELOG.md"]
# Flags of other programs that the pages call, and of none.
ELSEWHERE = {
    "--cascade": "kubectl",
    "--extra-index-url": "pip",
    "--find-links": "pip",
    "--ignore-missing": "sha256sum",
    "--from-file": "kubectl",
    "--from-literal": "kubectl",
    "--type": "kubectl",
    "--values": "helm",
    "--nproc-per-node": "torchrun",
    "--slowstart": "the kit that bench/peers/compare.py calls",
    "--flag": "docs/glossary.md, which speaks of flags",
    "--peer-protocol": "serve, whose help does not have it: a test of upgrades sets it",
}
# The classes of the variables on the pages.
VARIABLES: dict[str, list[type]] = {
    "batches": [bowstring.Batches],
    "chosen": [bowstring.Dataset],
    "client": [bowstring.Client],
    "dataset": [bowstring.Dataset, bowstring.torch.BowstringDataset],
    "mixed": [bowstring.Mixture],
    "photos": [bowstring.Dataset],
}


class Code(NamedTuple):
    """Code of a page."""

    page: str
    text: str


@functools.cache
def code() -> list[Code]:
    """All code of all pages, block by block and word by word."""
    found = []
    for page in PAGES:
        for token in MARKDOWN.parse((ROOT / page).read_text()):
            if token.type == "fence":
                found.append(Code(page, token.content))
            found += [Code(page, child.content) for child in token.children or [] if child.type == "code_inline"]
    return found


@functools.cache
def sources(*folders: str) -> str:
    """The source of some folders."""
    files = site_pages.tracked(ROOT, *(f"{folder}/*" for folder in folders))
    texts = (ROOT / file for file in files if file.endswith((".py", ".go", ".sh", ".yaml", ".yml", ".tpl", ".json")))
    return "\n".join(path.read_text() for path in texts)


def commands(program: Path, words: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Every command of a program, and its help."""
    done = subprocess.run(
        [program, *words, "--help-all" if words == ("serve",) else "--help"],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stderr
    yield " ".join((program.name, *words)), done.stdout
    listed = re.search(r"\nCommands:\n(.*?)(\n\n|\Z)", done.stdout, re.DOTALL)
    parent = f"{words[-1]} " if words else ""
    for name in re.findall(rf"^  {parent}([a-z][a-z-]*)", listed[1], re.MULTILINE) if listed else ():
        yield from commands(program, (*words, name))


@pytest.fixture(scope="module")
def helps(binary: Path, lab: Path) -> dict[str, str]:
    """The help of every command."""
    return dict([*commands(binary), *commands(lab)])


def flags(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text))


def test_flags_exist(helps: dict[str, str]) -> None:
    known = flags("".join(helps.values())) | set(ELSEWHERE)
    own = sources("bench", "examples", "tests", "tools", "internal")  # of programs of this repository
    used = {flag: c.page for c in code() for flag in flags(c.text)}
    assert {f: page for f, page in used.items() if f not in known and f'"{f}"' not in own} == {}
    assert set(ELSEWHERE) <= set(used), "these are on no page any more"


def test_commands_have_their_flags(helps: dict[str, str]) -> None:
    """A flag that follows a command in one line is one of that command."""
    wrong = set()
    for page, text in code():
        for line in text.splitlines():
            for call in re.split(r"[|;&#(]", line):
                found = re.match(r"\s*(?:[A-Z_]+=\S+ )*(bowstring(?:-lab)?(?: [a-z-]+)+)", call)
                found = found or re.match(r"((?:serve|import|attach|explain|get|warm|top)) --", call)
                if not found:
                    continue
                name = found[1] if found[1].startswith("bowstring") else f"bowstring {found[1]}"
                while name not in helps and " " in name:
                    name = name.rpartition(" ")[0]
                if name not in {"bowstring", "bowstring-lab"}:
                    wrong |= {(page, name, flag) for flag in flags(call) - flags(helps[name]) - set(ELSEWHERE)}
    assert wrong == set()


def test_settings_exist(helps: dict[str, str]) -> None:
    """Variables of the environment, and settings of the configuration file."""
    known = set(re.findall(r"\$(BOWSTRING_[A-Z_]+)", "".join(helps.values())))
    read = sources("cmd", "python", "bench", "tests", "deploy", "internal", "tools", "examples", "fetch", "spill")
    used = {name: c.page for c in code() for name in re.findall(r"\bBOWSTRING_[A-Z]+(?:_[A-Z]+)*\b", c.text)}
    assert {n: page for n, page in used.items() if n not in known and not re.search(rf"\b{n}\b", read)} == {}
    settings = {name: c.page for c in code() for name in re.findall(r"^serve\.([a-z-]+)$", c.text)}
    serve = flags(helps["bowstring serve"])
    assert {name: page for name, page in settings.items() if f"--{name}" not in serve} == {}


def imported(module: str) -> ModuleType | None:
    """A module; None if a package that it needs is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def exists(name: str) -> bool:
    """Whether a name of the package is there. What cannot be imported here is looked up in its source."""
    found: object = bowstring
    path = "bowstring"
    for part in name.split(".")[1:]:
        path += f".{part}"
        if hasattr(found, part):
            found = getattr(found, part)
            continue
        spec = importlib.util.find_spec(path) if hasattr(found, "__path__") else None
        if spec is None or spec.origin is None:
            return False
        found = imported(path)
        if found is None:
            rest = name[len(path) + 1 :]
            source = Path(spec.origin).read_text()
            return not rest or bool(re.search(rf"^(class|def) {rest}\b", source, re.MULTILINE))
    return True


@pytest.mark.slow  # torch, Ray and Polars are imported
def test_names_exist() -> None:
    """Names of the package, and attributes of what variables are on the pages.

    Keys of metadata and loggers begin with `bowstring.` too: the source has these as strings.
    """
    strings = {"bowstring.Name"}  # of docs/glossary.md, which speaks of names
    strings |= set(re.findall(r'"(bowstring\.[a-z_]+)[".]', sources("schema", "fetch", "flight", "python")))
    names = re.compile(r"(?<![\w./@-])bowstring(?:\.[A-Za-z_]\w*)+")
    used = {name: c.page for c in code() for name in names.findall(c.text)}
    assert {name: page for name, page in used.items() if name not in strings and not exists(name)} == {}
    calls = re.compile(rf"(?<![\w./-])({'|'.join(VARIABLES)})\.([a-z_]+)\(")
    wrong = {
        (c.page, f"{variable}.{name}")
        for c in code()
        if "\n" not in c.text  # blocks run
        for variable, name in calls.findall(c.text)
        if not any(hasattr(kind, name) for kind in VARIABLES[variable])
    }
    assert wrong == set()


def test_names_of_go_exist() -> None:
    """`schema.Manifest` and the like: the package's folder has the name."""
    folders: dict[str, list[Path]] = {}
    for file in site_pages.tracked(ROOT, "*.go"):
        if not file.endswith("_test.go"):
            folders.setdefault((ROOT / file).parent.name, []).append(ROOT / file)
    wrong = set()
    for page, text in code():
        found = re.fullmatch(r"([a-z]+)\.([A-Z]\w*)(?:\.\w+)?", text)
        if not found or found[1] == "bowstring" or found[1] not in folders:
            continue
        if not any(re.search(rf"\b{found[2]}\b", file.read_text()) for file in folders[found[1]]):
            wrong.add((page, text))
    assert wrong == set()
