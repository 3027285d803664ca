"""Texts that the code of a stranger has written, as people may see them. Pure."""

from __future__ import annotations

_KEPT = "\n\t"


def shown(text: str, most_chars: int) -> str:
    """Return the beginning of a text, without what would steer a terminal or cannot be encoded."""
    return "".join(
        one if one.isprintable() or one in _KEPT else "\ufffd" for one in text[:most_chars]
    )
