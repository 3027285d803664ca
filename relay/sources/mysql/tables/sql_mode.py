"""The bits of `sql_mode` that change how a statement is parsed, as its event has them. Pure.

MySQL and MariaDB use the same bits; those of MariaDB alone are 0 on MySQL.
"""

from __future__ import annotations

REAL_AS_FLOAT = 1 << 0
ANSI_QUOTES = 1 << 2
ORACLE = 1 << 9  # of MariaDB
MAXDB = 1 << 12  # of MariaDB
NO_BACKSLASH_ESCAPES = 1 << 20
STRICT_TRANS_TABLES = 1 << 21
STRICT_ALL_TABLES = 1 << 22
PAD_CHAR_TO_FULL_LENGTH = 1 << 31
EMPTY_STRING_IS_NULL = 1 << 32  # of MariaDB; on MySQL the bit means another thing


def is_strict(sql_mode: int) -> bool:
    """Whether a value that does not fit is an error instead of being adjusted."""
    return bool(sql_mode & (STRICT_TRANS_TABLES | STRICT_ALL_TABLES))
