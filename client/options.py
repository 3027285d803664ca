"""The keyword arguments of `DatabusClient`: the keys of `ClientSettings`, for type checkers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal, TypedDict

from databus.conf.settings import BackOffSettings, ClientHttpSettings, ServerAccessSettings

Table = Mapping[str, object]  # a table of a settings file, by key


class ClientOptions(TypedDict, total=False):
    """One key for each setting; docs/reference/settings.md says what each does."""

    name: str
    bootstrap_servers: str | Sequence[str]
    coordinator: str
    room: str
    access: ServerAccessSettings | Table
    log_format: Literal["text", "json"]
    bootstrap_order: Literal["linear", "classic"]
    checkpoint_dir: str | Path | None
    group: str
    partitions: int
    partition_by: Sequence[str]
    group_ttl_s: float
    group_finish_s: float
    start: str | int | datetime
    fetch_bytes: int | str
    buffer_bytes: int | str
    max_window_bytes: int | str
    wait_ms: int
    connect_timeout_s: float
    request_timeout_s: float
    callback_budget_s: float
    callback_retries: int
    checkpoint_every_s: float
    back_off: BackOffSettings | Table
    http: ClientHttpSettings | Table | None
    report_every_s: float
