"""Time zones in settings."""

from __future__ import annotations

from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


def known_zone(name: str) -> str:
    """Return the name of a time zone; raise ValueError if this machine has none of that name."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"{name!r} is no time zone of this machine: write it as Europe/Paris"
        ) from None
    return name
