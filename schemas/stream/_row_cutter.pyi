from collections.abc import Sequence
from typing import Any, overload

from databus.schemas.stream.row_event import RowEvent

class PackedRun:
    data: bytes
    begin: int
    end: int
    count: int
    scn: int
    src_id: int
    digest: bytes
    def __len__(self) -> int: ...

class PackedRows(Sequence[RowEvent]):
    runs: tuple[PackedRun | RowEvent, ...]
    def __init__(self, events: Sequence[PackedRun | RowEvent]) -> None: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, place: int) -> RowEvent: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[RowEvent, ...]: ...

def sealed(events: list[PackedRun | RowEvent]) -> Sequence[RowEvent]: ...
def take_rows(
    data: bytes,
    offset: int,
    scn: int,
    src_id: int,
    digest: bytes,
    events: list[PackedRun | RowEvent],
) -> int: ...
def take_windows(
    data: bytes,
    offset: int,
    begin: int,
    window_bytes: int,
    max_window_bytes: int,
    scn: int,
    events: list[PackedRun | RowEvent],
    known: frozenset[tuple[int, bytes]],
    windows: list[Any],
    window_type: type[tuple[Any, ...]],  # `RowWindow`
) -> tuple[int, int, int]: ...
def pass_whole(data: bytes, offset: int) -> tuple[int, int]: ...
