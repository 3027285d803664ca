"""What is put in place of a masked column's values. Pure, but for the reading of the key.

A value is masked by its content alone: equal values give equal hashes, in every column, table and
source with the same key, whether the change log or a table scan has them.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from databus.daemon.tokens import private_line
from databus.schemas.errors import SettingsError
from databus.schemas.table import Column

REDACTED = "redacted"
MIN_KEY_CHARS = 16
_HASH_CHARS = 64
_KEY_ID_CHARS = 8

_LABELLED = re.compile(r"(enum|set)\b", re.IGNORECASE)  # types that list all values

ChangeValue = Callable[[Any], Any]  # a value to what stands for it


@dataclass(frozen=True, slots=True)
class MaskKey:
    """The key of `hash` masks, which is neither shown nor logged."""

    secret: bytes

    def __repr__(self) -> str:
        return f"MaskKey({self.id})"

    @property
    def id(self) -> str:
        """What schemas say of the key, so that another key is noticed."""
        return self.hash("databus mask key")[:_KEY_ID_CHARS]

    def hash(self, value: Any) -> str:
        """Return a value's HMAC-SHA-256, in hexadecimal digits."""
        return hmac.digest(self.secret, _content(value), "sha256").hex()

    @classmethod
    def read(cls, path: Path) -> MaskKey:
        """Read the first line of a file that others may not read; raises SettingsError."""
        key = private_line("mask_key_file", path)
        if len(key) < MIN_KEY_CHARS:
            raise SettingsError(
                f"mask_key_file {path}: its first line is the key, of {MIN_KEY_CHARS} or more "
                "characters; `openssl rand -base64 32` makes one"
            )
        return cls(key.encode())


@dataclass(frozen=True, slots=True)
class Mask:
    """A mask as the settings have it: `hash`, `redact` or `truncate:N`."""

    text: str
    key: MaskKey | None = None

    @property
    def is_hash(self) -> bool:
        """Whether equal values stay equal, and others different."""
        return self.key is not None

    @property
    def is_truncation(self) -> bool:
        """Whether it shows the beginning of a text."""
        return self.text.startswith("truncate")

    def column(self, column: Column, dialect: str, *, nullable: bool) -> Column:
        """Return the column with the type of what stands for its values."""
        if self.key is not None:
            masked = _text_column(column, dialect, _HASH_CHARS)
            return replace(masked, nullable=nullable, mask=f"{self.text}:{self.key.id}")
        if self.text == "redact":
            is_kept = nullable and not _LABELLED.match(column.sql_type)
            redacted = column if is_kept else _text_column(column, dialect, len(REDACTED))
            return replace(redacted, nullable=nullable, mask=self.text)
        shortened = _text_column(column, dialect, self._length)
        return replace(shortened, nullable=nullable, mask=self.text)

    def change(self, *, nullable: bool) -> ChangeValue:
        """Return the function from a value to what stands for it."""
        if self.key is not None:
            hash_of = self.key.hash
            return lambda value: None if value is None else hash_of(value)
        if self.text == "redact":
            shown = None if nullable else REDACTED
            return lambda _: shown
        length = self._length
        return lambda value: None if value is None else _truncated(value, length)

    @property
    def _length(self) -> int:
        return int(self.text.partition(":")[2])


def _text_column(column: Column, dialect: str, length: int) -> Column:
    if dialect == "mysql":
        return replace(column, sql_type=f"varchar({length})", avro_type=None)
    if dialect == "sqlite":
        return replace(column, sql_type="text", avro_type=None)
    return replace(column, avro_type='"string"')


def _truncated(value: Any, length: int) -> str:
    # Of a column of text. What else SQLite has in one is not shown at all.
    return value[:length] if isinstance(value, str) else REDACTED[:length]


def _content(value: Any) -> bytes:
    """Return the bytes of a value that is not null; numbers of equal value have equal ones."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return _text(value).encode("utf-8", "surrogateescape")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, Decimal):
        return format(value.normalize(), "f")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value)
