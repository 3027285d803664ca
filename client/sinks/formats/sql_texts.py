"""Values as MySQL writes them, which Maxwell and Canal send."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

_DAY_S = 86_400


def time_text(value: datetime | date | timedelta) -> str:
    """Return a DATETIME, TIMESTAMP (in UTC), DATE or TIME; microseconds only if there are some."""
    if isinstance(value, timedelta):
        return _span_text(value)
    if not isinstance(value, datetime):
        return value.isoformat()
    if value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    return value.isoformat(" ")


def _span_text(value: timedelta) -> str:
    size = abs(value)
    seconds = size.days * _DAY_S + size.seconds
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    sign = "-" if value < timedelta() else ""
    return f"{sign}{text}.{size.microseconds:06}" if size.microseconds else sign + text
