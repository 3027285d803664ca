"""What mkdocs lacks for this repository: pages and files outside docs/, and links to them.

A page links as it lies in the repository, so that it works in an editor and in a forge, too. Here
README, CHANGELOG and CONTRIBUTING become pages, each other file that a page links to is put below
`checkout/`, and the links are rewritten to lead there.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, normpath, relpath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
# Pages that do not lie in docs/, by where they lie.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)")
_FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
_ELSEWHERE = re.compile(r"[a-z]+:")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie elsewhere, and the files that any page links to."""
    for source, uri in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, uri, content=text))
    linked = {one for page in files.documentation_pages() for one in _outside(page)}
    for name in sorted(linked):
        path = ROOT / name
        content = path.read_text(encoding="utf-8")
        files.append(File.generated(config, _uri_of(name), content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page that lead, or lie, outside docs/."""
    uri = page.file.src_uri
    return _replaced(markdown, lambda link: _rewritten(link, _source_of(uri), uri))


def _outside(page: File) -> set[str]:
    """Return the files outside docs/ that a page links to, but for those that are pages."""
    found: set[str] = set()

    def note(link: str) -> str:
        target = _target(link, _source_of(page.src_uri))
        if not target.startswith("docs/") and target not in PAGES and (ROOT / target).is_file():
            found.add(target)
        return link

    _replaced(page.content_string, note)
    return found


def _replaced(markdown: str, replace: Any) -> str:
    """Replace the target of every link that is not in a fenced block or to another site."""

    def link(match: re.Match[str]) -> str:
        text = match[0]
        return text if _ELSEWHERE.match(text) else str(replace(text))

    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(link, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(link, markdown[end:])])


def _rewritten(link: str, source: str, uri: str) -> str:
    return relpath(_uri_of(_target(link, source)), dirname(uri) or ".")


def _target(link: str, source: str) -> str:
    """Return what a link leads to, from the repository's root."""
    return normpath(f"{dirname(source)}/{link}".lstrip("/"))


def _source_of(uri: str) -> str:
    """Return where a page of the site lies in the repository."""
    return next((source for source, page in PAGES.items() if page == uri), f"docs/{uri}")


def _uri_of(target: str) -> str:
    """Return where a file of the repository is on the site."""
    if target in PAGES:
        return PAGES[target]
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    # A page's ending would make it one.
    return f"checkout/{target}".replace(".md", ".md.txt")
