"""docs/glossary.md: each word has one meaning, and every name that it lists exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import words
from conftest import ROOT

ROW = re.compile(r"^\| (?P<word>[^|]+) \| (?P<meaning>[^|]+) \|(?P<names>[^|]*)\|$", re.MULTILINE)
# A field of a struct with tags of kong: `GCEvery time.Duration `... help:"..."``. The flag is --gc-every.
FLAG = re.compile(r'^\t(?P<field>[A-Z]\w*)\s+\S+\s+`(?P<tags>[^`]*\bhelp:"[^`]*)`', re.MULTILINE)


def rows() -> list[tuple[str, str, list[str]]]:
    text = (ROOT / "docs" / "glossary.md").read_text()
    found = [(m["word"].strip(), m["meaning"], re.findall(r"`([^`]+)`", m["names"])) for m in ROW.finditer(text)]
    return [row for row in found if row[0] != "word"]


def flags() -> set[str]:
    found = set()
    for path in (ROOT / "cmd" / "bowstring" / "command").glob("*.go"):
        for m in FLAG.finditer(path.read_text()):
            named = re.search(r'\bname:"([^"]+)"', m["tags"])
            found.add("--" + (named[1] if named else words.words_of(m["field"]).replace(" ", "-")))
    return found


def exported(package: Path) -> set[str]:
    found = set()
    for path in package.glob("*.go"):
        if not path.name.endswith("_test.go"):
            found |= set(re.findall(r"^(?:type|func|var|const) ([A-Z]\w*)", path.read_text(), re.MULTILINE))
    return found


def test_each_word_once() -> None:
    found = [word for word, _, _ in rows()]
    assert len(found) > 50
    assert sorted(found) == sorted(set(found))


@pytest.mark.parametrize("name", sorted({name for _, _, names in rows() for name in names}))
def test_the_name_exists(name: str) -> None:
    if name.startswith("--"):
        assert name in flags(), f"no command has the flag {name}"
        return
    package, _, last = name.rpartition(".")
    if package == "bowstring":
        public = (ROOT / "python" / "src" / "bowstring" / "__init__.py").read_text()
        assert f'"{last}"' in public.split("__all__", 1)[1], f"the package bowstring has no {last}"
        return
    assert (ROOT / package).is_dir(), f"there is no package {package}"
    assert last in exported(ROOT / package), f"package {package} has no {last}"


def test_a_name_that_is_not_there_is_found() -> None:
    assert "--no-such-flag" not in flags()
    assert "NoSuchName" not in exported(ROOT / "schema")
