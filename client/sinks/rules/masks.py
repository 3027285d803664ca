"""Masks of a sink: a value is hashed with a key, removed or cut. Pure.

The hash is the one of masks at the source, so that equal values are equal wherever they were masked
with the same key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from databus.relay.sources.masks import REDACTED, MaskKey
from databus.schemas.errors import SettingsError

Mask = Callable[[Any], Any]
_FORMS = "hash, redact or truncate:LENGTH"


def make_mask(text: str, key: MaskKey | None) -> Mask:
    """Return the mask of `hash`, `redact` or `truncate:LENGTH`; NULL stays NULL.

    Raises SettingsError for another text, and for `hash` without a key.
    """
    name, _, argument = text.partition(":")
    if name == "hash" and not argument:
        if key is None:
            raise SettingsError("mask 'hash' needs a key: name a file with mask_key_file")
        return lambda value: None if value is None else key.hash(value)
    if name == "redact" and not argument:
        return _redacted
    if name == "truncate" and argument.isdecimal():
        length = int(argument)
        return lambda value: value[:length] if isinstance(value, str | bytes) else None
    raise SettingsError(f"mask {text!r}: write {_FORMS}")


def keeps_keys_apart(text: str) -> bool:
    """Whether different values stay different, so that a key may have the mask."""
    return text == "hash"


def leaves_text(text: str) -> bool:
    """Whether what is left of any value is a text, or NULL."""
    return text in ("hash", "redact")


def _redacted(value: Any) -> Any:
    # A column of numbers takes no text: what is removed there is NULL.
    return REDACTED if isinstance(value, str) else None
