"""How the keys of a table are parted between tasks: filters that together are one. Pure."""

from __future__ import annotations

from itertools import pairwise

from databus.schemas.filters import AnyOf, EventFilter, ModFilter, NoFilter, RangeFilter


def split_keys(wanted: EventFilter | None, parts: int) -> list[EventFilter | None]:
    """Return up to so many filters; each key that passes `wanted` passes one of them.

    Without a filter keys are parted by the rest of their division. One that is an
    OR of several stays whole.
    """
    match wanted:
        case None | NoFilter():
            return [None] if parts == 1 else [_part(parts, n) for n in range(parts)]
        case AnyOf((one,)):
            return split_keys(one, parts)
        case ModFilter(num_buckets, start, end):
            # Below 0 there is but one key's rest: what is parted is the others.
            (_, first), *others = _split(max(0, start), end, parts) if end > 0 else [(start, end)]
            return [ModFilter(num_buckets, a, b) for a, b in [(start, first), *others]]
        case RangeFilter(start, end):
            return [RangeFilter(a, b) for a, b in _split(start, end, parts)]
    return [wanted]


def _part(parts: int, number: int) -> ModFilter:
    # Of the least of all keys Java's remainder is negative: it is in the first part.
    return ModFilter(parts, number if number else 1 - parts, number + 1)


def _split(start: int, end: int, parts: int) -> list[tuple[int, int]]:
    parts = min(parts, end - start)
    bounds = [start + (end - start) * n // parts for n in range(parts + 1)]
    return list(pairwise(bounds))
