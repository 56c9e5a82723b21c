"""Counts words of the project's old dialect, and measures the sentences of its documents.

    words.py [--json FILE] [--all] [PATH...]

It reads the files that git tracks (or those named), prints tables, and writes JSON with every count. It informs: the
status is 0 whatever it finds. Four kinds of text are counted apart:

    names     identifiers; each name once in a file, for one renaming mends all its uses
    comments  comments and Python's docstrings
    docs      Markdown without its code: pages, READMEs, cells of notebooks. The changelog is history, and is left out
    strings   literals in code: messages, help of flags. They are listed beside the total, not in it

Some words of the dialect are words of the field too (`layout`, `window`, `run`). They are fine with one meaning each,
which no program can tell. Where they are names, they are counted apart, as "ambiguous".

Sentences are measured in paragraphs and items of lists. Headings, tables and blocks of code have none; code in a
sentence is one word. The comment share of Go is that of cloc: lines that hold only comments, of all lines that are not
blank. It and the exported names leave tests and generated files out.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import keyword
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from markdown_it import MarkdownIt
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_for_filename
from pygments.token import Comment, Name, String
from pygments.util import ClassNotFound

ROOT = Path(__file__).parent.parent
NAMES, COMMENTS, DOCS, STRINGS = KINDS = ("names", "comments", "docs", "strings")
PROSE = frozenset({COMMENTS, DOCS, STRINGS})
ANY = PROSE | {NAMES}
IN_NAMES = frozenset({NAMES})
LONG = 35  # words; a sentence with more is long

# What the files are not ours to write, or list the dialect themselves.
LEFT_OUT = re.compile(r"(^|/)(vendor|testdata|LICENSE|CHANGELOG\.md|go\.[a-z.]*sum|(test_)?words\.py)(/|$)")
GENERATED = re.compile(r"^// Code generated .* DO NOT EDIT\.$", re.MULTILINE)


class Entry(NamedTuple):
    """A word of the old dialect."""

    was: str
    now: str
    pattern: re.Pattern[str]
    kinds: frozenset[str]


def entry(was: str, now: str, kinds: frozenset[str] = ANY, pattern: str | None = None, case: bool = False) -> Entry:
    """A pattern meets whole words; in names they are the parts of an identifier, in lower case, with spaces between."""
    spaced = r"\b(?:" + (pattern or was).replace(" ", r"\s+") + r")\b"
    return Entry(was, now, re.compile(spaced, 0 if case else re.IGNORECASE), kinds)


DIALECT = [
    entry("door", "auth, listener", pattern="doors?"),
    entry(
        "lend, loan, borrower",
        "peer read, owner, requester",
        pattern="lend(?:s|er|ers|ing)?|lent|loans?|borrow(?:s|ed|er|ers|ing)?",
    ),
    entry("keeper", "zone cache", pattern="keepers?"),
    entry("donor", "previous owner", pattern="donors?"),
    entry("astray", "not owner"),
    entry("onward", "forward", pattern="onwards?"),
    entry("mine", "owner", IN_NAMES),
    entry("of late", "recent"),
    entry("lookahead", "prefetch"),
    entry("ahead", "prefetch", IN_NAMES),
    entry("hungry, starved, fed", "blocked, unblocked", pattern="hungry|starved|fed"),
    entry("still", "idle", IN_NAMES),
    entry("lies", "is stored, extent", PROSE, "lies|lie"),
    entry("by sight", "extents"),
    entry("samenode", "shm"),
    entry("beside", "sideband", IN_NAMES),
    entry("express", "computed columns", IN_NAMES),
    entry("outline", "resolved request", IN_NAMES),
    entry("lap", "epoch offset", pattern="laps?"),
    entry("orphan", "unreleased batch", pattern="orphan(?:s|ed)?"),
    entry("tend", "maintenance", pattern="tend(?:s|ed|er|ing)?"),
    entry("crew", "workers", pattern="crews?"),
    entry("tell, told", "report, publish, log", pattern="tell(?:s|ing)?|told"),
    entry(
        "who asks, whoever",
        "caller, client",
        pattern="who (?:only )?(?:asks?|looks?|calls?|reads?|wants?|waits?)|whoever|whomever",
    ),
    entry("nobody", "no client, no caller"),
    entry(
        "drawn (traces)",
        "sampled",
        PROSE,
        "drawn (?:traces?|calls?|spans?)|(?:traces?|calls?|spans?) (?:is|are|was|were) drawn",
    ),
    entry("half as long again", "1.5 times", pattern="half as (?:long|much|many|large) again"),
    entry("look (placement)", "probe", IN_NAMES, "looks?"),
    entry("stands still", "stalled", pattern="st(?:and|ands|anding|ood) still"),
    entry(
        "processor time", "CPU time", pattern="processor(?:'?s)? time|(?:seconds?|minutes?) of (?:a |the )?processors?"
    ),
    entry("claims (a layout)", "reserves", pattern="claim(?:s|ed|ing)? (?:(?:a|an|the|its|this|that) )?layouts?"),
    entry("Visitor", "Viewer", IN_NAMES, "visitors?"),
    entry("Quitter", "BulkCanceler", IN_NAMES, "quitters?"),
    entry("wrongs", "failed logins", IN_NAMES),
    entry("Board", "proxy set", IN_NAMES),
    entry("dear", "expensive", pattern="dear|dearer|dearest"),
    entry("stands in", "falls back", PROSE, "st(?:and|ands|anding|ood) in for"),
    entry("gives up", "cancels", pattern="g(?:ive|ives|iving|ave) up|given up"),
    entry("lets go", "releases", pattern="let(?:s|ting)? go|let (?:it|them|him) go"),
    entry("by and by", "gradually"),
    entry("so many", "that number"),
    entry("but for", "except"),
    entry("by turns", "in rotation"),
]
# How no sentence begins. A question may.
BEGINS = [
    entry(f"begins with {word}", "a thing with a name", PROSE, f"^{word}", case=True)
    for word in ("Who", "What", "Of", "Beside", "Where there is")
]
AMBIGUOUS = [
    entry(word, "one meaning each", IN_NAMES, rf"{word}s?")
    for word in ("part", "place", "run", "trouble", "hold", "layout", "window", "gathering", "rule", "term", "stream")
]


class Text(NamedTuple):
    kind: str
    text: str
    title: bool = False  # a heading, which is no sentence


# --- what a file says -------------------------------------------------------


def words_of(name: str) -> str:
    """Gives the parts of an identifier: `readsOfLate`, `READS_OF_LATE` and `reads-of-late` are "reads of late"."""
    cut = re.sub(r"([a-z0-9])([A-Z])|([A-Z]+)(?=[A-Z][a-z])", lambda m: m[0] + " " if m[3] else f"{m[1]} {m[2]}", name)
    return re.sub(r"[\W_]+", " ", cut).strip().lower()


MARKS = re.compile(r"^[ \t]*(?://+!?|#+:?|--|/?\*+/?|;+|<!--)?[ \t]?", re.MULTILINE)


def comment(text: str) -> str:
    """Takes the marks of a comment away."""
    return MARKS.sub("", text.removesuffix("*/").removesuffix("-->").removeprefix("/*"))


def joined(parts: Iterable[tuple[int, str]]) -> Iterator[str]:
    """Joins comments on lines that follow one another: they are one text."""
    last, lines = -2, list[str]()
    for line, text in parts:
        if line != last + 1 and lines:
            yield "\n".join(lines)
            lines = []
        lines.append(text)
        last = line + text.count("\n")
    if lines:
        yield "\n".join(lines)


def python(source: str) -> Iterator[Text]:
    comments, names = list[tuple[int, str]](), set[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments.append((token.start[0], comment(token.string)))
        elif token.type == tokenize.NAME and not keyword.iskeyword(token.string):
            names.add(token.string)
    tree = ast.parse(source)
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                docstrings.add(id(node.body[0].value))  # type: ignore[attr-defined]
                yield Text(COMMENTS, text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield Text(STRINGS, node.value)
    yield from (Text(COMMENTS, text) for text in joined(comments))
    yield from (Text(NAMES, name) for name in sorted(names))


def code(source: str, lexer: Lexer) -> Iterator[Text]:
    comments, strings, names = list[tuple[int, str]](), list[str](), set[str]()
    line, in_string = 1, False
    for token, text in lexer.get_tokens(source):
        if token in Comment and token not in Comment.Preproc:
            comments.append((line, comment(text.rstrip("\n"))))
        elif token in String:
            if in_string:
                strings[-1] += text
            else:
                strings.append(text)
        elif token in Name:
            names.add(text)
        in_string = token in String
        line += text.count("\n")
    yield from (Text(COMMENTS, text) for text in joined(comments))
    yield from (Text(STRINGS, text) for text in strings)
    yield from (Text(NAMES, name) for name in sorted(names))


MARKDOWN = MarkdownIt("commonmark").enable("table")


class Block(NamedTuple):
    text: str
    prose: bool  # a paragraph or an item of a list: it has sentences
    title: bool = False

    def said(self) -> Text:
        """Leaves out code: its words are counted where the code is."""
        return Text(DOCS, re.sub(r"`[^`]*`", "`code`", self.text), self.title)


def blocks(source: str) -> Iterator[Block]:
    """Gives the texts of a page. Code in them stays between its marks, as one word."""
    heading = table = False
    for token in MARKDOWN.parse(source):
        if token.type in ("heading_open", "heading_close"):
            heading = token.type == "heading_open"
        elif token.type in ("table_open", "table_close"):
            table = token.type == "table_open"
        elif token.type == "inline":
            text = ""
            for child in token.children or []:
                if child.type in ("softbreak", "hardbreak"):
                    text += " "
                elif child.type == "code_inline":
                    text += "`" + re.sub(r"[\s.]+", "_", child.content.strip()) + "`"
                elif child.type in ("text", "image"):
                    text += child.content
            yield Block(text, not heading and not table, heading)


def notebook(source: str) -> Iterator[Text]:
    for cell in json.loads(source)["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield from (block.said() for block in blocks(text))
        elif cell["cell_type"] == "code":
            plain = re.sub(r"^[ \t]*[%!].*$", "", text, flags=re.MULTILINE)  # IPython's commands
            yield from python(plain)


def texts(path: str, source: str) -> list[Text]:
    """Gives what a file says, by kind; nothing of a file of an unknown kind."""
    name = Path(path).name
    try:
        if name.endswith(".md"):
            return [block.said() for block in blocks(source)]
        if name.endswith(".ipynb"):
            return list(notebook(source))
        if name.endswith((".py", ".pyi")):
            return list(python(source))
        if name.endswith((".txt", ".in", ".txtar", ".json", ".svg", ".ref", ".xml", ".mod")):
            return []
        return list(code(source, get_lexer_for_filename(name)))
    except (ClassNotFound, SyntaxError, tokenize.TokenError):
        return []


# --- what is counted --------------------------------------------------------

# The end of a sentence: a mark, whatever closes quotes and brackets, a space, and what may begin the next one.
END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!vs\.)(?<!cf\.)([\"')\]*_]*)\s+(?=[\"'(\[*_]*[A-Z`0-9\"“])")


def sentences(text: str) -> list[str]:
    marked = END.sub(lambda m: m[1] + "\0", text)
    return [s.strip() for s in re.split(r"\0|\n\s*\n", marked) if s.strip()]


def length(sentence: str) -> int:
    """Counts words: what has a letter or a digit in it, between spaces."""
    return sum(1 for word in sentence.split() if re.search(r"\w", word))


def dialect(kind: str, text: str, title: bool = False) -> Counter[str]:
    found: Counter[str] = Counter()
    if kind == NAMES:
        text = words_of(text)
    for e in DIALECT:
        if kind in e.kinds and (number := sum(1 for _ in e.pattern.finditer(text))):
            found[e.was] += number
    if kind in (COMMENTS, DOCS) and not title:
        for sentence in sentences(text):
            for e in BEGINS:
                if e.pattern.match(sentence) and not sentence.endswith("?"):
                    found[e.was] += 1
    return found


def ambiguous(name: str) -> Counter[str]:
    text = words_of(name)
    return Counter(e.was for e in AMBIGUOUS if e.pattern.search(text))


class Page(NamedTuple):
    words: int
    sentences: int
    mean: float
    long: int  # sentences of more than LONG words
    longest: int

    @property
    def share(self) -> float:
        return 100 * self.long / self.sentences if self.sentences else 0.0


def page(source: str) -> Page:
    found = list(blocks(source))
    lengths = [n for block in found if block.prose for s in sentences(block.text) if (n := length(s))]
    return Page(
        words=sum(length(block.text) for block in found),
        sentences=len(lengths),
        mean=sum(lengths) / len(lengths) if lengths else 0.0,
        long=sum(n > LONG for n in lengths),
        longest=max(lengths, default=0),
    )


class Go(NamedTuple):
    lines: int  # that are not blank
    comments: int  # that hold only comments
    exported: int
    bare: list[str]  # exported names without a comment


def masked(source: str, lexer: Lexer) -> str:
    """Gives gofmt'd source with the text of comments and strings taken out, and all lines kept."""
    out = []
    for token, text in lexer.get_tokens(source):
        if token in Comment:
            ending = "\n" if text.endswith("\n") else ""
            out.append("\n".join("//" for _ in text.removesuffix("\n").split("\n")) + ending)
        elif token in String:
            out.append("\n".join('""' if line.strip() else "" for line in text.split("\n")))
        else:
            out.append(text)
    return "".join(out)


FUNC = re.compile(r"^func (?:\((?:\w+ )?\*?(?P<on>\w+)(?:\[[^\]]*\])?\) )?(?P<name>\w+)[\[(]")
ONE = re.compile(r"^(?:type|var|const) (?P<name>[A-Z]\w*)")
GROUP = re.compile(r"^(?:type|var|const) \($")
MEMBER = re.compile(r"^\t(?P<name>[A-Z]\w*)(?:,| |$)")


def go(source: str) -> Go:
    """Reads the declarations at the left margin, where gofmt puts them: no fields, and no methods of interfaces."""
    lines = masked(source, get_lexer_for_filename("x.go", stripnl=False, ensurenl=False)).split("\n")
    exported, bare = 0, list[str]()
    group = documented = False  # in a group; under a comment that stands for all of it
    for at, line in enumerate(lines):
        above = at > 0 and lines[at - 1].strip() == "//"
        if GROUP.match(line):
            group, documented = True, above
            continue
        if line == ")":
            group = False
        func = FUNC.match(line)
        found = MEMBER.match(line) if group else func or ONE.match(line)
        if not found or not found["name"][0].isupper():
            continue
        on = found.groupdict().get("on")
        if on and not on[0].isupper():
            continue
        exported += 1
        trailed = not func and line.rstrip().endswith("//")
        if not (above or trailed or (group and documented)):
            bare.append(f"{on}.{found['name']}" if on else found["name"])
    full = [line.strip() for line in lines if line.strip()]
    return Go(len(full), sum(line == "//" for line in full), exported, bare)


def tracked(root: Path) -> list[str]:
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    return [path for path in listed.split("\0") if path]


def measure(root: Path, paths: Iterable[str]) -> dict[str, Any]:
    """Counts all files, by path relative to root."""
    files: dict[str, Any] = {}
    pages: dict[str, Any] = {}
    bare: dict[str, list[str]] = {}
    words: Counter[str] = Counter()
    names: Counter[str] = Counter()
    lines = comments = exported = 0
    for path in sorted(paths):
        if LEFT_OUT.search(path) or not (root / path).is_file():
            continue
        try:
            source = (root / path).read_text()
        except UnicodeDecodeError:
            continue
        if path.endswith(".go") and GENERATED.search(source[:2000]):
            continue
        counts = dict.fromkeys(KINDS, 0)
        found: Counter[str] = Counter()
        for kind, text, title in texts(path, source):
            here = dialect(kind, text, title)
            counts[kind] += here.total()
            found += here
            if kind != STRINGS:
                words += here
            if kind == NAMES:
                names += ambiguous(text)
        if found:
            files[path] = {
                **counts,
                "total": sum(counts[k] for k in (NAMES, COMMENTS, DOCS)),
                "words": dict(found.most_common()),
            }
        if path.startswith("docs/") and path.endswith(".md"):
            p = page(source)
            pages[path] = {**p._asdict(), "mean": round(p.mean, 1), "long_percent": round(p.share, 1)}
        if path.endswith(".go") and not path.endswith("_test.go"):
            g = go(source)
            lines, comments, exported = lines + g.lines, comments + g.comments, exported + g.exported
            if g.bare:
                bare[path] = g.bare
    return {
        "dialect": {kind: sum(f[kind] for f in files.values()) for kind in (*KINDS, "total")},
        "words": dict(words.most_common()),
        "ambiguous_names": dict(names.most_common()),
        "files": dict(sorted(files.items(), key=lambda item: -item[1]["total"])),
        "pages": pages,
        "go": {
            "lines": lines,
            "comment_lines": comments,
            "comment_percent": round(100 * comments / lines, 1) if lines else 0.0,
            "exported": exported,
            "without_comment": sum(map(len, bare.values())),
            "names_without_comment": bare,
        },
    }


# --- what is printed --------------------------------------------------------


def table(out: TextIO, header: list[str], rows: Iterable[list[Any]]) -> None:
    """Prints columns: the first to the left, figures to the right."""
    text = [header, *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[n]) for row in text) for n in range(len(header))]
    for row in text:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        out.write("  ".join(cells).rstrip() + "\n")
    out.write("\n")


def report(result: dict[str, Any], out: TextIO, most: int | None) -> None:
    now = {e.was: e.now for e in [*DIALECT, *BEGINS]}
    table(out, ["word of the old dialect", "times", "plain"], ([w, n, now[w]] for w, n in result["words"].items()))
    files = [(path, f) for path, f in result["files"].items() if f["total"] or most is None]
    table(
        out,
        ["file", *KINDS, "total"],
        ([path, *(f[k] for k in KINDS), f["total"]] for path, f in files[:most]),
    )
    if most is not None and len(files) > most:
        out.write(f"and {len(files) - most} more files (--all lists them)\n\n")
    table(
        out,
        ["page", "words", "sentences", "mean", f"over {LONG} %", "longest"],
        (
            [path, p["words"], p["sentences"], p["mean"], p["long_percent"], p["longest"]]
            for path, p in result["pages"].items()
        ),
    )
    d, g = result["dialect"], result["go"]
    out.write(
        f"words of the old dialect: {d['total']} (names {d['names']}, comments {d['comments']}, docs {d['docs']}), "
        f"and {d['strings']} in strings\n"
        f"exported Go names without a comment: {g['without_comment']} of {g['exported']}\n"
        f"comment share of Go: {g['comment_percent']} % ({g['comment_lines']} of {g['lines']} lines)\n"
    )


def main(arguments: list[str], out: TextIO) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", type=Path, help="write every count to this file")
    parser.add_argument("--all", action="store_true", help="list every file, not the first 40 alone")
    parser.add_argument(
        "paths", nargs="*", help="files, relative to the repository; all that git tracks if none is named"
    )
    args = parser.parse_args(arguments)
    result = measure(ROOT, args.paths or tracked(ROOT))
    report(result, out, None if args.all else 40)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:], sys.stdout)
