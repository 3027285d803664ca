"""Whether SQLite can put many blobs together in one statement, as they are."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import cache

_PROBE = """
select cast(group_concat(piece, '') as blob) from (select x'00ff' piece union all select x'80')
"""


@cache
def joins_bytes() -> bool:
    """Say whether `group_concat` keeps zeros: older ones end at the first."""
    with closing(sqlite3.connect(":memory:")) as connection:
        return bool(connection.execute(_PROBE).fetchone()[0] == b"\x00\xff\x80")
