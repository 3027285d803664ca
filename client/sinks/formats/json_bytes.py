"""JSON as bytes, without blanks and in UTF-8: by orjson, where it writes what `json` does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import orjson

# These have a form of the caller's.
_OPTIONS = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS


def encoder(default: Callable[[Any], Any], exact: Callable[[Any], str]) -> Callable[[Any], bytes]:
    """Return a function that writes a value.

    `default` has a form for what JSON has no type for. `exact` writes, or refuses, what orjson
    does not write as it is: a float that is not finite, an integer of more than 64 bits, half a
    character.
    """

    def encode(value: Any) -> bytes:
        try:
            found = orjson.dumps(value, default, _OPTIONS)
        except TypeError:
            return exact(value).encode()
        # It writes null for a float that is not finite.
        if b"null" not in found or _has_no_more(value, found) or _is_finite((value,)):
            return found
        return exact(value).encode()

    return encode


def _has_no_more(value: Any, found: bytes) -> bool:
    """Whether each null is the None of an object's member; False if that is not seen at once."""
    return type(value) is dict and found.count(b"null") == list(value.values()).count(None)


def _is_finite(values: Iterable[Any]) -> bool:
    # Once for each row: a call for each value would take longer than the writing.
    for one in values:
        kind = type(one)
        if kind is float:
            if one - one != 0.0:
                return False
        elif kind is dict:
            if not _is_finite(one.values()):
                return False
        elif (kind is list or kind is tuple) and not _is_finite(one):
            return False
    return True
