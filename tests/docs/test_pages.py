"""The pages that are followed from top to bottom, and what holds for every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.markdown import (
    MUST_RUN,
    anchors_of,
    blocks_of,
    links_of,
    pages,
)
from tests.docs.terminal import Reader
from tools.repository import PACKAGED, ROOT

FOLLOWED = (
    *("getting-started.md", "sources.md", "operating.md"),
    *("bootstrap.md", "security.md", "cluster.md"),
)
GENERATED = ("settings.md", "cli.md")


@pytest.mark.parametrize("name", FOLLOWED)
def test_everything_on_the_page_can_be_pasted(reader: Reader, name: str) -> None:
    blocks = blocks_of(ROOT / "docs" / name)
    assert any(block.test for block in blocks)
    reader.follow(blocks)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_example_is_run_or_says_why_not(page: Path) -> None:
    unmarked = [
        f"{block} ({block.language})"
        for block in blocks_of(page)
        if block.language in MUST_RUN and not (block.test or block.reason_not_run)
    ]
    assert unmarked == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in links_of(page):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_is_named_is_there(page: Path) -> None:
    named = re.findall(rf"`((?:{'|'.join(PACKAGED)})/[\w/.]+)`", page.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    ahead = [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in seen:
            continue
        seen.add(page)
        for link in links_of(page):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.is_dir():
                ahead += target.glob("*.md")
            elif target.suffix == ".md" and target.exists():
                ahead.append(target)
    assert [page.name for page in pages() if page not in seen] == []
