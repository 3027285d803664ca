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
        f"FILE has its CREATE TABLE statement as of scn {scn}, which the database no longer has, "
        "because the table was altered later"
        if was_altered
        else "it is taken from the database; if the table was altered since, add "
        "--create-table FILE, with its CREATE TABLE statement of that time"
    )
    return (
        f"stop the relay, give the definition of that moment with `{commands}` ({where_from}), "
        "and start it"
    )
