"""Filters of events by key: mod, range and partition filters, as a consumer requests them.

The JSON is Databus' own: a map from src_id to a partition type and a list of filters, one of
which must match. HASH is this project's own, and has one filter:

    {"40": {"partitionType": "MOD",
            "filters": [{"numBuckets": 4, "bktRange": {"start": 0, "end": 2}}]},
     "41": {"partitionType": "RANGE",
            "filters": [{"keyRange": {"start": 100, "end": 200}}]},
     "42": {"partitionType": "NONE"},
     "43": {"partitionType": "HASH",
            "filters": [{"partitions": 32, "wanted": "a1", "by": ["customer_id"]}]}}

Ranges are half-open. The arithmetic of MOD is Java's, so that a relay of this project and
LinkedIn's put a row into the same bucket. `wanted` is a number in hexadecimal digits, whose bit p
is set if partition p is wanted: of thousands of partitions a list would be longer than a request
may be. `docs/formats/partitions.md` defines the hash.

Filters do not apply to control events, nor to events about all rows
of a table, which concern every key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol
from zlib import crc32

from databus.schemas.errors import InvalidParameterError
from databus.schemas.protocol import Parameter

MAX_CHARS = 64 * 1024
MAX_PARTITIONS: Final = 1 << 15
MAX_PARTITION_COLUMNS: Final = 16

_SMALLEST_LONG, _LARGEST_LONG = -(1 << 63), (1 << 63) - 1
_LARGEST_SRC_ID = (1 << 15) - 1
_NUMBER = re.compile(r"[+-]?\d{1,40}")
_HEXADECIMAL = re.compile(rf"[0-9a-f]{{1,{MAX_PARTITIONS // 4}}}")


class EventFilter(Protocol):
    """Decides by its key whether a row's event is wanted."""

    def matches(self, key: int | bytes) -> bool:
        """Return whether an event with this key is wanted."""
        ...

    def to_json_value(self) -> dict[str, Any]:
        """Return the filter as a JSON value."""
        ...


@dataclass(frozen=True, slots=True)
class ModFilter:
    """Keys whose bucket `abs(key) % num_buckets` lies in [start, end)."""

    num_buckets: int
    start: int
    end: int

    def matches(self, key: int | bytes) -> bool:
        """Whether the key's bucket is in the range."""
        number = key if isinstance(key, int) else _number_or_hash(key)
        if number == _SMALLEST_LONG:
            # Java's abs leaves this one negative, and its % keeps the sign.
            bucket = -(-number % self.num_buckets)
        else:
            bucket = abs(number) % self.num_buckets
        return self.start <= bucket < self.end

    def to_json_value(self) -> dict[str, Any]:
        """Return the filter as a JSON value."""
        return {
            "numBuckets": self.num_buckets,
            "bktRange": {"start": self.start, "end": self.end},
        }


@dataclass(frozen=True, slots=True)
class RangeFilter:
    """Keys in [start, end). Only numeric keys have ranges."""

    start: int
    end: int

    def matches(self, key: int | bytes) -> bool:
        """Whether the key is in the range.

        Raises InvalidParameterError for a key that is not a number: treating it as out of range
        would lose the row silently.
        """
        number = key if isinstance(key, int) else _number(key)
        return self.start <= number < self.end

    def to_json_value(self) -> dict[str, Any]:
        """Return the filter as a JSON value."""
        return {"keyRange": {"start": self.start, "end": self.end}}


@dataclass(frozen=True, slots=True)
class PartitionFilter:
    """Rows whose partition `key_hash(key) % partitions` is among those wanted.

    With `by`, these columns are hashed instead, as the key that they would make. An update is
    then wanted for the partition of the row before it, too. Raises InvalidParameterError if a
    number is out of range.
    """

    partitions: int
    wanted: frozenset[int]
    by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.partitions <= MAX_PARTITIONS:
            raise _malformed(self.partitions, f'"partitions" must be 1 to {MAX_PARTITIONS}')
        if not self.wanted or min(self.wanted) < 0 or max(self.wanted) >= self.partitions:
            raise _malformed(
                sorted(self.wanted), f'"wanted" must have partitions below {self.partitions}'
            )
        if len(self.by) > MAX_PARTITION_COLUMNS or len(set(self.by)) < len(self.by):
            raise _malformed(
                self.by, f'"by" must have at most {MAX_PARTITION_COLUMNS} columns, each once'
            )

    def wants(self, row_hash: int) -> bool:
        """Whether the partition of a row with this hash is wanted."""
        return row_hash % self.partitions in self.wanted

    def matches(self, key: int | bytes) -> bool:
        """Whether the key's partition is wanted.

        Raises InvalidParameterError if columns are hashed: the key does not have them.
        """
        if self.by:
            raise _malformed(self.by, '"by" needs rows, and only their keys are known here')
        return self.wants(key_hash(key))

    def to_json_value(self) -> dict[str, Any]:
        """Return the filter as a JSON value."""
        one: dict[str, Any] = {
            "partitions": self.partitions,
            "wanted": f"{sum(1 << partition for partition in self.wanted):x}",
        }
        if self.by:
            one["by"] = list(self.by)
        return {"partitionType": "HASH", "filters": [one]}


@dataclass(frozen=True, slots=True)
class NoFilter:
    """Every key."""

    def matches(self, key: int | bytes) -> bool:  # noqa: ARG002 - the shape of a filter
        """Whether the key is wanted: always."""
        return True

    def to_json_value(self) -> dict[str, Any]:
        """Return the filter as a JSON value."""
        return {"partitionType": "NONE", "filters": []}


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Keys that one of several filters wants; all filters are of one kind, as in the JSON."""

    filters: tuple[ModFilter, ...] | tuple[RangeFilter, ...]

    def matches(self, key: int | bytes) -> bool:
        """Whether one of the filters wants the key."""
        return any(one.matches(key) for one in self.filters)

    def to_json_value(self) -> dict[str, Any]:
        """Return the filter as a JSON value."""
        is_mod = isinstance(self.filters[0], ModFilter)
        return {
            "partitionType": "MOD" if is_mod else "RANGE",
            "filters": [one.to_json_value() for one in self.filters],
        }


def parse_filters(text: str, max_chars: int = MAX_CHARS) -> dict[int, EventFilter]:
    """Read the `filters` parameter: src_id → filter.

    Raises InvalidParameterError when it is malformed or longer than `max_chars`.
    """
    if len(text) > max_chars:
        raise InvalidParameterError(
            Parameter.FILTERS, text, f"must not be longer than {max_chars} characters"
        )
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidParameterError(Parameter.FILTERS, text, f"must be JSON: {error}") from error
    if not isinstance(values, dict):
        raise InvalidParameterError(
            Parameter.FILTERS, text, "must be a JSON map from src_id to filter"
        )
    return {_src_id(key): _parse_one(value) for key, value in values.items()}


def filters_to_json(filters: Mapping[int, EventFilter]) -> str:
    """Return the text of the `filters` parameter; `parse_filters` reads it back."""
    values = {}
    for src_id, one in filters.items():
        whole = AnyOf((one,)) if isinstance(one, ModFilter | RangeFilter) else one  # type: ignore[arg-type]
        values[str(src_id)] = whole.to_json_value()
    return json.dumps(values, separators=(",", ":"))


def key_hash(key: int | bytes) -> int:
    """Return the hash of a key from which its partition is computed: zlib's CRC-32.

    A long key is hashed as its decimal digits, so that it equals a byte key that spells it.
    """
    return crc32(b"%d" % key if isinstance(key, int) else key)


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`: over UTF-16 code units, in 32 signed bits."""
    units = text.encode("utf-16-be", "surrogatepass")
    code = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return code - (1 << 32) if code & 0x80000000 else code


def key_number(key: bytes) -> tuple[int, bool]:
    """Return the number that filters use for a byte key, and whether it is only its hash."""
    text = _text(key)
    number = _parse_long(text)
    return (java_hash(text), True) if number is None else (number, False)


def _parse_one(value: Any) -> EventFilter:
    if not isinstance(value, dict):
        raise _malformed(value, "must be a JSON object")
    partition_type = value.get("partitionType")
    listed = value.get("filters") or []
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise _malformed(value, '"filters" must be a list of objects')
    if partition_type == "NONE":
        return NoFilter()
    if not listed:
        raise _malformed(value, '"filters" must have at least one filter')
    if partition_type == "MOD":
        return AnyOf(tuple(_mod_filter(one) for one in listed))
    if partition_type == "RANGE":
        return AnyOf(tuple(RangeFilter(*_range(one, "keyRange")) for one in listed))
    if partition_type == "HASH":
        if len(listed) > 1:
            raise _malformed(value, "HASH has one filter")
        return _partition_filter(listed[0])
    raise _malformed(value, '"partitionType" must be MOD, RANGE, HASH or NONE')


def _mod_filter(value: dict[str, Any]) -> ModFilter:
    num_buckets = _long(value, value.get("numBuckets"), "numBuckets")
    if num_buckets <= 0:
        raise _malformed(value, '"numBuckets" must be positive')
    return ModFilter(num_buckets, *_range(value, "bktRange"))


def _partition_filter(value: dict[str, Any]) -> PartitionFilter:
    partitions = _long(value, value.get("partitions"), "partitions")
    text, by = value.get("wanted"), value.get("by", [])
    if not isinstance(text, str) or not _HEXADECIMAL.fullmatch(text):
        raise _malformed(value, '"wanted" must be a number in hexadecimal digits')
    if not isinstance(by, list) or not all(isinstance(one, str) for one in by):
        raise _malformed(value, '"by" must be a list of columns')
    bits = f"{int(text, 16):b}"[::-1]
    wanted = frozenset(partition for partition, bit in enumerate(bits) if bit == "1")
    return PartitionFilter(partitions, wanted, tuple(by))


def _range(value: dict[str, Any], name: str) -> tuple[int, int]:
    held = value.get(name)
    if not isinstance(held, dict):
        raise _malformed(value, f'"{name}" must have "start" and "end"')
    start = _long(value, held.get("start"), "start")
    end = _long(value, held.get("end"), "end")
    if start >= end:
        raise _malformed(value, '"start" must be below "end"')
    return start, end


def _long(value: Any, number: Any, name: str) -> int:
    if type(number) is not int or not _SMALLEST_LONG <= number <= _LARGEST_LONG:
        raise _malformed(value, f'"{name}" must be a 64-bit integer')
    return number


def _src_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 5 and int(key) <= _LARGEST_SRC_ID):
        raise InvalidParameterError(
            Parameter.FILTERS, key, f"a src_id is a number up to {_LARGEST_SRC_ID}"
        )
    return int(key)


def _malformed(value: Any, rule: str) -> InvalidParameterError:
    return InvalidParameterError(Parameter.FILTERS, json.dumps(value), rule)


def _text(key: bytes) -> str:
    return key.decode("utf-8", "replace")


def _number(key: bytes) -> int:
    text = _text(key)
    number = _parse_long(text)
    if number is None:
        raise InvalidParameterError(
            Parameter.FILTERS, text, "a RANGE filter needs keys that are numbers; use MOD"
        )
    return number


def _number_or_hash(key: bytes) -> int:
    return key_number(key)[0]


def _parse_long(text: str) -> int | None:
    """Read a number as Java's `Long.parseLong` does, or return None."""
    if not _NUMBER.fullmatch(text):
        return None
    number = int(text)
    return number if _SMALLEST_LONG <= number <= _LARGEST_LONG else None
