from collections.abc import Sequence

from databus.schemas.columns.avro_columns import AvroColumn
from databus.schemas.event.v2 import Buffer

class Held:
    def __buffer__(self, flags: int) -> memoryview: ...

Buffers = tuple[Held | None, Held | None, Held]  # validity, offsets, values

class ColumnDecoder:
    def __init__(
        self,
        *,
        has_before: bool,
        as_snapshot: bool,
        batch_rows: int,
        batch_bytes: int,
        keeps_events: bool = False,
    ) -> None: ...
    def add(self, src_id: int, digest: bytes, columns: Sequence[AvroColumn]) -> int: ...
    def take(
        self, data: Buffer, offset: int, scn: int, is_mixed: bool
    ) -> tuple[int, int, int, bool, int, int]: ...
    def rows(self, number: int) -> int: ...
    def finish(
        self, number: int
    ) -> tuple[int, list[Buffers], list[Buffers], list[Buffers] | None, Held | None]: ...
