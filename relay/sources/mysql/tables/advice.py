"""What errors about tables advise. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

CALLED = (
    "a function that was called in statement format, and writes to tables that the log does not "
    "name, may have"
)
BY_SESSION = (
    ". A session did it that was connected before binlog_format was ROW, or has set its own: let "
    "it reconnect first, or its next statement stops capture again"
)


def repair_advice(
    sources: Sequence[str], scn: int, config: Path | None, *, was_altered: bool
) -> str:
    """Return how to set the definitions of tables at an SCN.

    `was_altered` tells whether a later change of a table is known.
    """
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


def lost_text(what: str, source: str) -> str:
    """Return why a table stops whose rows were changed without being logged."""
    return (
        f"{what} changed the rows of {source} without logging them; seed the consumers again, and "
        "then let capture continue"
    )


def cascade_text(rule: str, source: str) -> str:
    """Return why a table stops that gets a foreign key with a cascade."""
    return (
        f"a foreign key of {source} is ON {rule}: rows that it changes are not in the log of this "
        "server; make it RESTRICT, or set allow_cascades = true to capture the table without "
        "those changes"
    )
