"""JSON with a checksum of its values, so that a record that was damaged is not believed. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from zlib import crc32


def encode_checked(values: Mapping[str, Any]) -> bytes:
    """Return the JSON of `values` with a `crc` beside them."""
    checked = {**values, "crc": _checksum(values)}
    return json.dumps(checked, indent=1).encode() + b"\n"


def decode_checked(data: bytes) -> dict[str, Any]:
    """Return the values; raise ValueError if they are not as they were written."""
    try:
        values = json.loads(data)
    except RecursionError as error:
        raise ValueError("it is no record") from error
    if not isinstance(values, dict):
        raise ValueError("it is no record")
    if values.pop("crc", None) != _checksum(values):
        raise ValueError("its checksum is wrong: it was damaged, or edited by hand")
    return values


def _checksum(values: Mapping[str, Any]) -> str:
    return f"{crc32(json.dumps(values, sort_keys=True, separators=(',', ':')).encode()):08x}"
