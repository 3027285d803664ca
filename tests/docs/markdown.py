"""The pages, taken apart: fenced blocks with what is said about testing them, and links. Pure.

A comment right before a block says what a test does with it:

    <!-- test: run -->              paste it into the page's terminal; it must succeed
    <!-- test: run in NAME -->      paste it into another terminal, and do not wait for its end
    <!-- test: run, relay -->       run it, then wait until the relay that it started captures
    <!-- test: write FILE -->       save it under that name
    <!-- test: sql -->              run it in MariaDB, as an administrator
    <!-- test: prints [in NAME] --> these lines come out of the terminal; … stands for anything
    <!-- test: NAME -->             a test of this page takes it by that name
    <!-- not run: REASON -->        it is not run

A block of a language in `MUST_RUN` without such a comment fails.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tools.repository import ROOT

MUST_RUN = frozenset({"python", "bash", "sh", "toml", "sql", "ini"})

_FENCE = re.compile(r"^```(\w*)$")
_TEST = re.compile(r"^<!-- test: (.+) -->$")
_NOT_RUN = re.compile(r"^<!-- not run: (\S.*) -->$")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$")


@dataclass(frozen=True)
class Block:
    """A fenced block. `test` is what to do with it, empty when nothing is said."""

    page: str
    line: int
    language: str
    text: str
    test: str = ""
    reason_not_run: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return README and every page of docs/, the generated ones too."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(page: Path) -> list[Block]:
    """Return a page's fenced blocks in order."""
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    name = str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name
    number = 0
    while number < len(lines):
        match = _FENCE.match(lines[number])
        if match is None:
            number += 1
            continue
        end = lines.index("```", number + 1)
        before = _comment_before(lines, number)
        test, not_run = _TEST.match(before), _NOT_RUN.match(before)
        found.append(
            Block(
                name,
                number + 1,
                match[1],
                "\n".join(lines[number + 1 : end]) + "\n",
                test[1] if test else "",
                not_run[1] if not_run else "",
            )
        )
        number = end + 1
    return found


def block_for(page: Path, test: str) -> Block:
    """Return the one block of a page that a test takes by name."""
    (found,) = [block for block in blocks_of(page) if block.test == test]
    return found


def links_of(page: Path) -> list[str]:
    """Return the targets of a page's links, those in fenced blocks left out."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return _LINK.findall(re.sub(r"`[^`\n]*`", "", text))


def anchors_of(page: Path) -> set[str]:
    """Return what `#…` may name on a page, as GitHub makes it of headings."""
    headings = (_HEADING.match(line) for line in page.read_text(encoding="utf-8").splitlines())
    texts = [re.sub(r"[^\w\- ]", "", match[1].lower()) for match in headings if match]
    return {text.strip().replace(" ", "-") for text in texts}


def _comment_before(lines: list[str], number: int) -> str:
    return lines[number - 1].strip() if number else ""
