"""Names and texts in statements of ClickHouse."""

from __future__ import annotations

import re

_ELEMENT = re.compile(r"\s*(`(?:[^`\\]|\\.|``)*`|[^,`]+)\s*(?:,|$)")
_ESCAPED = re.compile(r"\\(.)|``", re.DOTALL)


def identifier(name: str) -> str:
    """Return a name in backticks."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def literal(text: str) -> str:
    """Return a text in quotes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0") + "'"


def listed(names: str) -> list[str]:
    """Return the elements of a list as ClickHouse shows it: names without their backticks."""
    names = names[1:-1] if names.startswith("(") else names
    return [
        _ESCAPED.sub(lambda found: found[1] or "`", one[1:-1]) if one[0] == "`" else one.strip()
        for one in _ELEMENT.findall(names)
    ]
