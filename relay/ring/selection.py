"""The selection: the events that a consumer wants from one ring. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from databus.conf.patterns import NamePatterns
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.filters import EventFilter
from databus.schemas.scn import MAX_SCN


@dataclass(frozen=True, slots=True)
class Selection:
    """The sources, filters and start position of a read of one physical source.

    `src_ids` is None for all its sources. `filters` holds only filters that can reject an
    event. DDL events are skipped unless `wants_ddl`, and truncates (row events without a
    payload) unless `wants_truncates`. Windows after `until_scn` are not read. With `readable`, of
    the statements those pass that are about sources of these names alone. `log_src_id`: the source
    that the checkpoint's log window names, if the relay has it.
    """

    physical_source: str
    checkpoint: Checkpoint
    src_ids: frozenset[int] | None = None
    filters: Mapping[int, EventFilter] = field(default_factory=dict)
    from_latest: bool = False
    wants_ddl: bool = False
    wants_truncates: bool = True
    until_scn: int = MAX_SCN
    readable: NamePatterns | None = None
    log_src_id: int | None = None
