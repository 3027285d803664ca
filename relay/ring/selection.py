"""What a consumer wants of one ring, and from where. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from databus.schemas.checkpoint import Checkpoint
from databus.schemas.filters import EventFilter
from databus.schemas.scn import MAX_SCN


@dataclass(frozen=True, slots=True)
class Selection:
    """What is read of one physical source, and from where.

    `src_ids` is None when it is every source of it. `filters` has only those
    that can turn something away. DDL events are left out unless `wants_ddl`.
    Windows after `until_scn` are not read.
    """

    physical_source: str
    checkpoint: Checkpoint
    src_ids: frozenset[int] | None = None
    filters: Mapping[int, EventFilter] = field(default_factory=dict)
    from_latest: bool = False
    wants_ddl: bool = False
    until_scn: int = MAX_SCN
