"""What a change is in Redis: commands that write rows by key, or that append messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from databus.client.sinks.contract import MARKS, Change, ChangeOp, Row
from databus.client.sinks.formats.message import AvroMessage, Format
from databus.client.sinks.formats.plain import json_bytes
from databus.client.sinks.ready.rows import key_text, whole_row
from databus.client.sinks.ready.templates import Template
from databus.schemas.event.json import json_value

Argument = bytes | str | int
Command = tuple[Argument, ...]
Value = Callable[[Change], bytes | None]  # None: the format has no message for the change

NO_EXPIRY = 0  # the score of a key that stays


class Commands(Protocol):
    """What makes the commands of a change."""

    @property
    def has_rows(self) -> bool:
        """Whether each row is a key: a TRUNCATE removes them."""
        ...

    def of(self, change: Change) -> Iterator[Command]:
        """Yield its commands; raise SinkRefusedError."""
        ...


@dataclass(frozen=True, slots=True)
class Rows:
    """A key for each row: a string, or a hash with a field for each column."""

    name: Template | None  # None: source and primary key
    value: Value | None  # of a string; None: a hash
    ttl_s: int
    index_of: Callable[[str], str] | None  # the key with the names of a source's keys
    has_rows: bool = True

    def of(self, change: Change) -> Iterator[Command]:
        """Yield the commands that write or remove a row."""
        if change.op in MARKS:
            return
        if change.after is None:
            yield from self._remove(change.source, self._name(change))
            return
        name = self._name(change)
        if self.name is not None and change.op is ChangeOp.UPDATE:
            # A column that is not of the primary key may have changed the name.
            old = self._name(replace(change, after=None))
            if old != name:
                yield from self._remove(change.source, old)
        yield from self._put(name, change, change.after)
        if self.index_of is not None:
            yield from self._note(self.index_of(change.source), name)

    def _name(self, change: Change) -> str:
        if self.name is not None:
            return self.name.fill(change)
        return f"{change.source}:{key_text(change)}"

    def _put(self, name: str, change: Change, row: Row) -> Iterator[Command]:
        if self.value is None:
            known = {column: value for column, value in row.items() if value is not None}
            if known:
                fields = (part for one in known.items() for part in (one[0], _field(one[1])))
                yield ("HSET", name, *fields)
            if len(known) < len(row):
                yield ("HDEL", name, *(column for column in row if row[column] is None))
            if self.ttl_s:
                yield ("EXPIRE", name, self.ttl_s)
        elif (value := self.value(change)) is not None:
            yield ("SET", name, value, *(("EX", self.ttl_s) if self.ttl_s else ()))

    def _remove(self, source: str, name: str) -> Iterator[Command]:
        yield ("DEL", name)
        if self.index_of is not None:
            yield ("ZREM", self.index_of(source), name)

    def _note(self, index: str, name: str) -> Iterator[Command]:
        """Yield what keeps the name for a TRUNCATE, as long as its key is there."""
        if not self.ttl_s:
            yield ("ZADD", index, NO_EXPIRY, name)
            return
        now_s = int(time.time())
        yield ("ZADD", index, now_s + self.ttl_s, name)
        yield ("ZREMRANGEBYSCORE", index, f"({NO_EXPIRY}", now_s - 1)


@dataclass(frozen=True, slots=True)
class Messages:
    """A message for each change: of a stream, of a list, or of a channel."""

    kind: str
    name: Template
    value: Value
    max_length: int  # 0: all
    ttl_s: int
    has_rows: bool = False

    def of(self, change: Change) -> Iterator[Command]:
        """Yield the command that appends the message, and what keeps the key short."""
        value = self.value(change)
        if value is None:
            return
        name = self.name.fill(change)
        if self.kind == "pubsub":
            yield ("PUBLISH", name, value)
            return
        if self.kind == "stream":
            limit = ("MAXLEN", "~", self.max_length) if self.max_length else ()
            yield (
                "XADD",
                name,
                *limit,
                "*",
                "id",
                change.id,
                "op",
                change.op.value,
                "value",
                value,
            )
        else:
            yield ("RPUSH", name, value)
            if self.max_length:
                yield ("LTRIM", name, -self.max_length, -1)
        if self.ttl_s:
            yield ("EXPIRE", name, self.ttl_s)


def row_value(change: Change) -> bytes:
    """Return the row as an object of JSON; raise SinkRefusedError if columns are not known."""
    return json_bytes(dict(whole_row(change)))


def template_value(template: Template) -> Value:
    """Return what fills a template."""
    return lambda change: template.fill(change).encode()


def format_value(form: Format) -> Value:
    """Return what makes the message of a format."""

    def value(change: Change) -> bytes | None:
        message = form(change, time.time_ns() // 1_000_000)
        assert not isinstance(message, AvroMessage)  # the options have refused it
        return None if message is None else message.value

    return value


def _field(value: Any) -> bytes | str:
    if isinstance(value, bytes):
        return value
    plain = json_value(value)
    return plain if isinstance(plain, str) else json_bytes(plain)
