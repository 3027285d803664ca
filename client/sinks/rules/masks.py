"""Masks for personal data: a value is hashed with a secret, removed or cut. Pure.

A hash is the same for equal values, so that rows can still be counted and joined by it; without
the secret nobody can find the value by trying.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from hashlib import sha256
from typing import Any

from databus.schemas.errors import SettingsError

Mask = Callable[[Any], Any]
_FORMS = "hash, redact or truncate:LENGTH"


def make_mask(text: str, secret: bytes) -> Mask:
    """Return the mask of `hash`, `redact` or `truncate:LENGTH`; NULL stays NULL.

    Raises SettingsError for another text, and for `hash` without a secret.
    """
    name, _, argument = text.partition(":")
    if name == "hash" and not argument:
        if not secret:
            raise SettingsError("mask 'hash' needs a secret: name a file with mask_secret_file")
        return lambda value: None if value is None else hashed(value, secret)
    if name == "redact" and not argument:
        return _redacted
    if name == "truncate" and argument.isdecimal():
        length = int(argument)
        return lambda value: value[:length] if isinstance(value, str | bytes) else value
    raise SettingsError(f"mask {text!r}: write {_FORMS}")


def keeps_keys_apart(text: str) -> bool:
    """Whether different values stay different, so that a key may have the mask."""
    return text == "hash"


def leaves_text(text: str) -> bool:
    """Whether what is left of any value is a text, or NULL."""
    return text in ("hash", "redact")


def hashed(value: Any, secret: bytes) -> str:
    """Return the HMAC-SHA256 of a value, as hexadecimal digits."""
    return hmac.new(secret, _bytes(value), sha256).hexdigest()


def _redacted(value: Any) -> Any:
    # A column of numbers takes no text: what is removed there is NULL.
    return "***" if isinstance(value, str) else None


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, Decimal):
        return str(value.normalize()).encode()
    return (value.isoformat() if isinstance(value, date) else str(value)).encode()
