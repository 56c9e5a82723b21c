"""What the counter of words makes of a few texts."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import words

GO = """// Package x keeps blobs. What it lends comes back.
package x

import "fmt"

const raw = `
func NotADeclaration() {}
`

// Limits of a keeper.
const (
	Most  = 1
	least = 2
)

const (
	Alone   = 3
	Trailed = 4 // at the end of the line

	// Told by a line above.
	Above = 5
)

// Set is a set.
type Set[K any] struct{ Field int }

type Bare struct{}

// Kept is documented.
func (s *Set[K]) Kept() {}

func (s *Set[K]) Plain() {} // not by this

func (h hidden) Exported() {}

func Free(readsOfLate int) {
	fmt.Println("nobody asks")
}

/*
Whole is exported.
*/
func Whole[T any](t T) {}

var Also, Other = 1, 2
"""


def kinds(path: str, source: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {kind: [] for kind in words.KINDS}
    for kind, text, _ in words.texts(path, source):
        found[kind].append(text)
    return found


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("readsOfLate", "reads of late"),
        ("READS_OF_LATE", "reads of late"),
        ("HTTPServer2", "http server2"),
        ("on-stands-still", "on stands still"),
        ("x", "x"),
        ("_", ""),
    ],
)
def test_parts_of_names(name: str, parts: str) -> None:
    assert words.words_of(name) == parts


@pytest.mark.parametrize(
    ("kind", "text", "found"),
    [
        (words.NAMES, "readsOfLate", {"of late": 1}),
        (words.NAMES, "blobKeepers", {"keeper": 1}),
        (words.NAMES, "housekeeping", {}),
        (words.NAMES, "stillIdle", {"still": 1}),
        (words.COMMENTS, "It is still there, beside others, and so on.", {}),
        (words.COMMENTS, "It stands\nstill. Nobody is told.", {"stands still": 1, "nobody": 1, "tell, told": 1}),
        (words.DOCS, "All but\nfor one, by turns.", {"but for": 1, "by turns": 1}),
        (
            words.DOCS,
            "Beside it, one. Of three, one. It is. Who?",
            {"begins with Beside": 1, "begins with Of": 1},
        ),
        (words.DOCS, "What does it cost?", {}),
        (words.DOCS, "What it costs is known. Whatever.", {"begins with What": 1}),
        (words.STRINGS, "What is given up", {"gives up": 1}),
        (words.DOCS, "The node claims its layout, as OIDC claims are.", {"claims (a layout)": 1}),
        (words.DOCS, "The node reserves a layout.", {}),
    ],
)
def test_dialect(kind: str, text: str, found: dict[str, int]) -> None:
    assert dict(words.dialect(kind, text)) == found


def test_headings_and_code_of_pages() -> None:
    page = "# What it tells\n\nWhat the `keeper of doors` keeps.\n"
    assert [dict(words.dialect(*text)) for text in words.texts("x.md", page)] == [
        {"tell, told": 1},
        {"begins with What": 1},
    ]


def test_every_word_is_found_by_its_own_pattern() -> None:
    for e in [*words.DIALECT, *words.AMBIGUOUS]:
        first = e.was.split(",")[0].split(" (")[0].lower()
        if first not in ("drawn", "claims", "who asks", "stands in"):  # these need what follows them
            assert e.pattern.search(first), e.was
    assert len({e.was for e in words.DIALECT}) == len(words.DIALECT)


def test_ambiguous_names() -> None:
    assert dict(words.ambiguous("runPlaces")) == {"run": 1, "place": 1}
    assert not words.ambiguous("truncate")


def test_go() -> None:
    found = kinds("x.go", GO)
    assert found[words.COMMENTS][0] == "Package x keeps blobs. What it lends comes back."
    assert "Whole is exported." in "".join(found[words.COMMENTS])
    assert {"Set", "readsOfLate", "Free"} <= set(found[words.NAMES])
    assert not {"NotADeclaration", "func"} & set(found[words.NAMES])
    assert any("nobody asks" in s for s in found[words.STRINGS])

    g = words.go(GO)
    assert g.bare == ["Alone", "Bare", "Set.Plain", "Free", "Also"]
    assert g.exported == 11  # Most, Alone, Trailed, Above, Set, Bare, Set.Kept, Set.Plain, Free, Whole, Also
    assert g.comments == 8
    assert g.lines == sum(1 for line in GO.split("\n") if line.strip())


def test_python() -> None:
    source = (
        '"""Doc of the module."""\n# One.\n# Two.\nx = 1  # three\n\ndef lend_it():\n    "Doc."\n    return "told"\n'
    )
    found = kinds("x.py", source)
    assert found[words.COMMENTS] == ["Doc of the module.", "Doc.", "One.\nTwo.\nthree"]
    assert found[words.NAMES] == ["lend_it", "x"]
    assert found[words.STRINGS] == ["told"]
    assert not any(kinds("x.py", "def (").values())


@pytest.mark.parametrize(
    ("path", "source", "said"),
    [
        ("x.sql", "-- Nobody reads this.\nSELECT 1;\n", "Nobody reads this."),
        ("x.js", "/** Told. */\nconst keeper = 1;\n", "Told."),
        ("x.yaml", "# By turns.\na: 1\n", "By turns."),
        ("Makefile", "# By turns.\nall:\n", "By turns."),
        ("x.sh", "# By turns.\ntrue\n", "By turns."),
    ],
)
def test_other_languages(path: str, source: str, said: str) -> None:
    assert said in "\n".join(kinds(path, source)[words.COMMENTS])


def test_notebook() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "Text."]},
        {"cell_type": "code", "source": ["%pip install x\n", "door = 1  # why"]},
    ]
    found = kinds("x.ipynb", json.dumps({"cells": cells}))
    assert found == {words.DOCS: ["Title", "Text."], words.NAMES: ["door"], words.COMMENTS: ["why"], words.STRINGS: []}


def test_unknown_files_say_nothing() -> None:
    assert words.texts("x.bin", "Nobody.") == []
    assert words.texts("x.unknown", "Nobody.") == []


PAGE = """# A heading. It has no sentences

One sentence, with `a b. C` in it, e.g. this one. Another one begins
on a line and goes on. (It is the third.) `Four` is code. "Five" is quoted.

- an item without an end
- an item. And a sentence

| a head | two |
|---|---|
| a cell. It is not measured | x |

```
Code. It is not measured.
```
"""


def test_page() -> None:
    prose = [s for b in words.blocks(PAGE) if b.prose for s in words.sentences(b.text)]
    assert prose == [
        "One sentence, with `a_b_C` in it, e.g. this one.",
        "Another one begins on a line and goes on.",
        "(It is the third.)",
        "`Four` is code.",
        '"Five" is quoted.',
        "an item without an end",
        "an item.",
        "And a sentence",
    ]
    assert [words.length(s) for s in prose] == [9, 9, 4, 3, 3, 5, 2, 3]
    p = words.page(PAGE)
    assert (p.words, p.sentences, p.mean, p.long, p.longest) == (6 + 38 + 3 + 7, 8, 38 / 8, 0, 9)
    long = words.page("word " * 36 + ".\n\nA short one.\n")
    assert (long.long, long.longest, long.share) == (1, 36, 50)
    assert words.page("") == (0, 0, 0.0, 0, 0)


def test_the_whole(tmp_path: Path) -> None:
    files = {
        "a.go": GO,
        "a_test.go": "package x\n\ntype Keeper int\n",
        "made.go": "// Code generated by x. DO NOT EDIT.\n\npackage x\n\ntype Door int\n",
        "docs/a.md": PAGE + "\nNobody.\n",
        "CHANGELOG.md": "Nobody.\n",
        "pkg/testdata/a.go": "package door\n",
    }
    for path, source in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(source)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff")
    result = words.measure(tmp_path, [*files, "picture.png", "gone.go"])
    assert set(result["files"]) == {"a.go", "a_test.go", "docs/a.md"}
    assert result["files"]["a_test.go"] == {
        "names": 1, "comments": 0, "docs": 0, "strings": 0, "total": 1, "words": {"keeper": 1}
    }  # fmt: skip
    assert result["files"]["a.go"]["strings"] == 1
    assert result["words"]["nobody"] == 1  # the page's; the one in a string is not in the total
    assert result["dialect"]["total"] == sum(f["total"] for f in result["files"].values())
    assert list(result["pages"]) == ["docs/a.md"]
    assert (result["go"]["exported"], result["go"]["without_comment"]) == (11, 5)

    out = io.StringIO()
    words.report(result, out, 1)
    assert "and 2 more files" in out.getvalue()
    assert "exported Go names without a comment: 5 of 11" in out.getvalue()


def test_it_reads_this_repository(tmp_path: Path) -> None:
    out = io.StringIO()
    words.main(["--all", "--json", str(tmp_path / "new" / "words.json"), "docs/testing.md", "Makefile"], out)
    result = json.loads((tmp_path / "new" / "words.json").read_text())
    assert result["pages"]["docs/testing.md"]["sentences"] > 10
    assert "docs/testing.md" in out.getvalue()
    assert "docs/ARCHITECTURE.md" in words.tracked(words.ROOT)
