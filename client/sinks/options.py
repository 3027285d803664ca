"""The keyword arguments of `register_sink`: the keys of `SinkSettings`, for type checkers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypedDict

from databus.conf.sink_settings import (
    FailureSettings,
    FlushSettings,
    LimitSettings,
    SinkTableSettings,
)

Table = Mapping[str, object]  # a table of a settings file, by key


class SinkOptions(TypedDict, total=False):
    """One key for each setting; docs/reference/settings.md says what each does."""

    options: Mapping[str, Any]
    isolate: bool
    limits: LimitSettings | Table
    until: str | int | datetime
    order: Literal["transaction", "single-table", "table", "row"]
    lanes: int
    unique: Literal["primary", "writeset"]
    ddl: bool
    capacity: int
    positions_every_s: float
    flush: FlushSettings | Table
    failures: FailureSettings | Table
    mask_key_file: str | Path
    tables: Sequence[SinkTableSettings | Table]
