"""The rule for names of sources, which requests list. Pure."""

from __future__ import annotations


def name_problem(name: str) -> str:
    """Return why a request cannot name a source; empty if it can.

    A request lists names or ids of sources with commas between them, with or without spaces.
    """
    if not name or name != name.strip():
        return "is no source name: one begins and ends with something else than a space"
    if "," in name or not name.isprintable():
        return (
            "cannot be captured: a comma or a control character in a name cannot be told from "
            "what stands between two names in a request; rename the table"
        )
    if name.isdecimal():
        return "is no source name: in a request a number is a source's id; write DATABASE.TABLE"
    return ""
