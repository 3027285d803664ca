"""What a source may be called, so that requests can ask for it. Pure."""

from __future__ import annotations


def name_problem(name: str) -> str:
    """Say why no request can ask for a source of a name; empty when one can.

    A list of sources in a request has commas between names, with or without spaces, and
    names or ids in it.
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
