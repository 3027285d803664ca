"""Debezium's envelope, as its MySQL connector 2.x sends it by the JSON converter without schemas.

Values are those of the connector's defaults: a DECIMAL is its unscaled value in base64, a DATE a
number of days, a TIME of microseconds, a DATETIME of milliseconds, a TIMESTAMP text in UTC.

A change has values and not the types of its columns. What follows: `Settings.datetimes` says
whether a DATETIME has microseconds; a decimal without a fraction is a number, because BIGINT
UNSIGNED comes as one.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

from databus import __version__
from databus.client.sinks.contract import Change, ChangeOp, Row
from databus.client.sinks.errors import SinkRefusedError
from databus.client.sinks.formats.message import Message
from databus.client.sinks.formats.plain import json_bytes
from databus.client.sinks.formats.source_names import split_source
from databus.schemas.event.json import json_value

_OPS = {
    ChangeOp.INSERT: "c",
    ChangeOp.UPDATE: "u",
    ChangeOp.DELETE: "d",
    ChangeOp.SNAPSHOT: "r",
    ChangeOp.TRUNCATE: "t",
}
_EPOCH, _EPOCH_DAY = datetime(1970, 1, 1), date(1970, 1, 1)
_MILLI, _MICRO = timedelta(milliseconds=1), timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class DebeziumFormat:
    """Makes messages. `name` is the connector's `topic.prefix`.

    `decimals` is `decimal.handling.mode`. With `datetimes` = "millis" a DATETIME is as the
    connector sends DATETIME to DATETIME(3), and with "micros" as DATETIME(4) to DATETIME(6).
    """

    name: str = "databus"
    decimals: Literal["precise", "string", "double"] = "precise"
    datetimes: Literal["millis", "micros"] = "millis"

    def __call__(self, change: Change, now_ms: int) -> Message | None:
        """Return the message of a change; None for statements.

        Raises SinkRefusedError if a value would lose digits.
        """
        if change.op not in _OPS:
            return None
        try:
            key = json_bytes(self._row(change.key)) if change.key else None
            return Message(key, json_bytes(self._envelope(change, now_ms)))
        except ValueError as error:
            raise SinkRefusedError(f"{change.source}: {error}", change) from error

    def _envelope(self, change: Change, now_ms: int) -> dict[str, Any]:
        return {
            "before": self._row(change.before),
            "after": self._row(change.after),
            "source": self._source(change),
            "op": _OPS[change.op],
            "ts_ms": now_ms,
            "transaction": None,  # as without `provide.transaction.metadata`
        }

    def _source(self, change: Change) -> dict[str, Any]:
        """Return where the change comes from. What is not known is null."""
        name, gtid = split_source(change.source), change.transaction.gtid
        return {
            "version": __version__,
            "connector": "mysql",
            "name": self.name,
            "ts_ms": change.timestamp_ns // 1_000_000,
            "snapshot": "true" if change.op is ChangeOp.SNAPSHOT else "false",
            "db": name.database,
            "sequence": None,
            "table": name.table,
            "server_id": _server_id(gtid),
            "gtid": gtid,
            "file": None,
            "pos": change.scn,  # grows as a place in the log does
            "row": change.index,
            "thread": None,
            "query": None,
        }

    def _row(self, row: Row | None) -> dict[str, Any] | None:
        if row is None:
            return None
        return {column: self._value(column, value) for column, value in row.items()}

    def _value(self, column: str, value: Any) -> Any:
        if isinstance(value, Decimal):
            return self._decimal(value)
        if isinstance(value, datetime):
            return self._moment(column, value)
        if isinstance(value, date):
            return (value - _EPOCH_DAY).days
        return json_value(value)

    def _decimal(self, value: Decimal) -> Any:
        exponent = value.as_tuple().exponent
        if not isinstance(exponent, int):
            raise ValueError(f"{value} is no number of Debezium's")
        if exponent == 0:
            return int(value)
        if self.decimals == "double":
            return float(value)
        return format(value, "f") if self.decimals == "string" else _unscaled(value)

    def _moment(self, column: str, value: datetime) -> Any:
        if value.tzinfo is not None:
            text = value.astimezone(UTC).replace(tzinfo=None).isoformat()
            return (text.rstrip("0") if value.microsecond else text) + "Z"
        since = value - _EPOCH
        if self.datetimes == "micros":
            return since // _MICRO
        if value.microsecond % 1000:
            raise ValueError(f"{column} has microseconds: set datetimes = 'micros' of its format")
        return since // _MILLI


def _unscaled(value: Decimal) -> str:
    """Return a decimal as Kafka Connect's Decimal in JSON: its digits as a big-endian number."""
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits))) * (-1 if sign else 1)
    # The fewest bytes of two's complement, as BigInteger.toByteArray has them.
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return b64encode(number.to_bytes(size, "big", signed=True)).decode()


def _server_id(gtid: str | None) -> int | None:
    """Return the server that MariaDB's GTID names; MySQL's has none."""
    parts = (gtid or "").split("-")
    return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() else None
