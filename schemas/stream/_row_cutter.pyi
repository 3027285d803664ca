from typing import Any

from databus.schemas.stream.row_reader import RowEvent

def take_rows(
    data: bytes, offset: int, scn: int, src_id: int, digest: bytes, events: list[RowEvent]
) -> int: ...
def take_windows(
    data: bytes,
    offset: int,
    begin: int,
    window_bytes: int,
    max_window_bytes: int,
    scn: int,
    events: list[RowEvent],
    known: frozenset[tuple[int, bytes]],
    windows: list[Any],
    window_type: type[tuple[Any, ...]],  # `RowWindow`
) -> tuple[int, int, int]: ...
def pass_whole(data: bytes, offset: int) -> tuple[int, int]: ...
