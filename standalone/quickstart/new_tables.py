"""Tables that a database got after `databus.toml` was written, for quickstart typed again. Pure."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence

from databus.standalone.quickstart.found import FoundTable

_LIST = re.compile(r"^sources = \[\n(?:[^\]\n]*,[^\n]*\n|\s*#[^\n]*\n|\s*\n)*(?=\]$)", re.M)


def new_tables(text: str, tables: Sequence[FoundTable]) -> list[FoundTable]:
    """Return the tables that can be captured and that a settings file does not name.

    A name in a comment counts, too: who takes a table out by `#` is not asked again. A file that
    names tables by a pattern gets new ones by itself.
    """
    if any("*" in source for source in _sources(text)):
        return []
    return [one for one in tables if not one.problem and _quoted(one.source) not in text]


def with_tables(text: str, sources: Sequence[str]) -> str | None:
    """Return the settings with more sources; None if the list is not as quickstart wrote it."""
    lines = "".join(f"    {_quoted(source)},\n" for source in sources)
    changed, count = _LIST.subn(lambda found: found[0] + lines, text)
    if count != 1 or _sources(changed) != [*_sources(text), *sources]:
        return None
    return changed


def _sources(text: str) -> list[str]:
    """Return the sources of the settings, which have one physical source or are not touched."""
    physical = tomllib.loads(text).get("physical_sources", [])
    listed = [source for one in physical for source in one.get("sources", [])]
    return [source if isinstance(source, str) else str(source) for source in listed]


def _quoted(source: str) -> str:
    return json.dumps(source, ensure_ascii=False)
