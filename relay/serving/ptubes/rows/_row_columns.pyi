from databus.relay.serving.ptubes.rows.compiled_columns import CompiledColumn

class CompiledColumns:
    def __init__(
        self,
        planned: tuple[CompiledColumn, ...],
        changes: tuple[int, ...],
        offsets: tuple[int, ...],
        midnight_us: int,
    ) -> None: ...
    def map_fields(self, tag: int, row: bytes) -> bytes | None: ...

def plain_metadata(
    data: bytes,
) -> tuple[int, bytes | None, int, bytes | None, bytes | None] | None: ...
def event_bytes(
    table: bytes, checkpoint: bytes, time_ms: int, event_type: int, row: bytes, rest: bytes
) -> bytes: ...
def message_fields(tag: int, messages: list[bytes]) -> bytes: ...
