"""What `databus quickstart` finds in a database, and what capture still needs there. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class FoundTable(NamedTuple):
    """A table or view; `problem` says why it cannot be captured, `note` what to know of it."""

    source: str
    problem: str = ""
    note: str = ""


class Statement(NamedTuple):
    """An SQL statement, and its text for a terminal, which has no password."""

    text: str
    shown: str


class Needs(NamedTuple):
    """What is missing before a database can be captured.

    `problems` need the server's option file and a restart; then nothing else helps.
    """

    problems: tuple[str, ...] = ()
    option_lines: tuple[str, ...] = ()
    statements: tuple[Statement, ...] = ()
    installs: tuple[str, ...] = ()  # what the relay's first start puts into the database


class Found(NamedTuple):
    """A database with its tables, as the settings file will name them.

    `label` says in that file which database it is for, and `uri` is the physical source's.
    """

    name: str
    label: str
    uri: str
    tables: tuple[FoundTable, ...]
    needs: Needs
    password_file: Path | None = None
    tls_ca: Path | None = None
    password: str = ""

    @property
    def sources(self) -> list[str]:
        """The sources that can be captured."""
        return [table.source for table in self.tables if not table.problem]
