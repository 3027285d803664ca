"""A found position as the API shows it."""

from __future__ import annotations

from typing import Literal

from databus.conf.named_places import NamedPlace
from databus.relay.admin.models import PositionView
from databus.relay.physical_source import PhysicalSource
from databus.relay.serving.reading.position_search import FoundPosition
from databus.schemas.scn import binlog_position


def position_view(
    source: str, physical: PhysicalSource, place: NamedPlace, found: FoundPosition
) -> PositionView:
    """Return a found position as the API shows it."""
    extent, newest = physical.history.extent(), physical.reader.max_scn
    transaction = found.transaction
    binlog = None
    if transaction is not None and transaction.file.rpartition(".")[2].isdigit():
        binlog = f"{transaction.file}:{binlog_position(found.scn).offset}"
    return PositionView(
        source=source,
        physical_source=physical.name,
        at=str(place),
        scn=_known(found.scn),
        committed_at=None if found.timestamp_ns is None else found.timestamp_ns / 1e9,
        gtid=None if transaction is None else transaction.gtid,
        binlog=binlog,
        oldest_scn=_known(extent.min_scn),
        newest_scn=_known(newest),
        rung=_rung_of(physical, found.scn),
        is_nearest=found.is_nearest,
    )


def _rung_of(physical: PhysicalSource, scn: int) -> Literal["ring", "relayLog", "archive"]:
    """Return what has the window after an SCN."""
    if scn >= physical.reader.prev_scn or physical.recorder is None:
        return "ring"
    on_disk = physical.recorder.on_disk
    return "relayLog" if on_disk and scn >= on_disk[0].header.prev_scn else "archive"


def _known(scn: int) -> int | None:
    return None if scn < 0 else scn
