"""Builds the documentation as a site: `make site` writes it to build/site, and fails on a dead reference.

MkDocs reads one folder, and pages of this repository are in several, with links between them that GitHub follows. So
the pages are copied into one folder in which each has the path that it has in the repository. A hook that rewrites
links while MkDocs runs was the alternative; it would have to know each kind of link.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIG = Path(__file__).with_name("mkdocs.yml")
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")


def tracked(root: Path, *patterns: str) -> list[str]:
    """The files that git tracks or would add, so that a new page is checked before its commit."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *patterns],  # noqa: S607
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    return sorted(name for name in listed.stdout.split("\0") if name and (root / name).exists())


def pages(root: Path) -> list[str]:
    """The Markdown files of the documentation, by path from the root. In cmd are only notes on vendored files."""
    return [name for name in tracked(root, "*.md") if not name.startswith("cmd/")]


def stage(root: Path, into: Path) -> None:
    """Copy the pages of root into a folder, with the files that they link to.

    A folder has no page of its own in MkDocs. If a link leads to one without a README.md, a list of its files is made.
    """
    shutil.rmtree(into, ignore_errors=True)
    for name in pages(root):
        page = root / name

        def placed(link: re.Match[str], page: Path = page) -> str:
            target = link[2]
            found = (page.parent / target).resolve()
            if re.match(r"[a-z+]+:", target) or not found.is_relative_to(root):
                return link[0]
            if found.is_dir():
                listing(root, into, found)
                return f"{link[1]}{target.rstrip('/')}/README.md{link[3]}"
            if found.is_file() and found.suffix != ".md":
                copy(root, into, found)
            return link[0]

        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(lists(LINK.sub(placed, page.read_text())))
    for name in tracked(root, "docs/*.svg", "docs/*.png", "docs/*.webp"):
        copy(root, into, root / name)


def lists(text: str) -> str:
    """Lists as Python-Markdown reads them: after an empty line, and nested by four spaces. GitHub needs neither."""
    lines: list[str] = []
    code = False
    for line in text.splitlines():
        code ^= line.lstrip().startswith("```")
        item = not code and re.match(r"( *)([-*]|\d+\.) ", line)
        if item and not item[1] and lines and re.match(r"[^\s\-*\d|<]", lines[-1]):
            lines.append("")
        lines.append(f"    {line.lstrip()}" if item and item[1] else line)
    return "\n".join([*lines, ""])


def copy(root: Path, into: Path, file: Path) -> None:
    target = into / file.relative_to(root)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)


def listing(root: Path, into: Path, folder: Path) -> None:
    name = folder.relative_to(root).as_posix()
    target = into / name / "README.md"
    if target.exists() or (folder / "README.md").exists():
        return
    files = tracked(root, f"{name}/*")
    for file in files:
        copy(root, into, root / file)
    target.write_text(
        f"# {name}\n\n" + "".join(f"- [{file}]({os.path.relpath(root / file, folder)})\n" for file in files)
    )


def build(pages: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of staged pages. A warning of MkDocs or of a plugin is an error.

    MkDocs counts the warnings that it logs. `--quiet` suppresses them before they are counted, so `--strict` has no
    effect with it.
    """
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(CONFIG)],
        check=False,
        env={**os.environ, "SITE_PAGES": str(pages), "SITE_OUT": str(out), "NO_MKDOCS_2_WARNING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def main() -> None:
    pages = ROOT / "build" / "site-pages"
    stage(ROOT, pages)
    done = build(pages, ROOT / "build" / "site")
    if done.returncode:
        sys.exit("\n".join(line for line in done.stdout.splitlines() if not line.startswith("INFO")))


if __name__ == "__main__":
    main()
