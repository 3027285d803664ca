"""Advice for tables whose definition at an SCN is unknown: the command that sets it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path


def repair_advice(
    sources: Sequence[str], scn: int, config: Path | None, *, was_altered: bool
) -> str:
    """Return the advice; `was_altered` tells whether a later change of a table is known."""
    settings = shlex.quote(str(config or "RELAY.toml"))
    file = " --create-table FILE" if was_altered else ""
    commands = "` and `".join(
        f"databus schema repair {shlex.quote(source)} --scn {scn} -c {settings}{file}"
        for source in sources
    )
    where_from = (
        f"FILE has its CREATE TABLE statement as it was at scn {scn}: it was altered later, so "
        "the database as it is now does not say it"
        if was_altered
        else "from the database as it is now if it was not altered since; else add "
        "--create-table FILE, with its CREATE TABLE statement as it was then"
    )
    return (
        f"stop the relay, give the definition of that moment with `{commands}` ({where_from}), "
        "and start it"
    )
