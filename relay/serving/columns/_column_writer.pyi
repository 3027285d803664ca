from typing import Any

from databus.relay.serving.columns.compiled_plan import CompiledColumn

WRITE_ROW: Any  # a C function for other compiled modules

class CompiledWriter:
    def __init__(
        self,
        planned: tuple[CompiledColumn, ...],
        changes: tuple[int, ...],
        offsets: tuple[int, ...],
    ) -> None: ...
    def row_data(
        self,
        op: int,
        row: bytes,
        before: bytes | None,
        absent: tuple[int, ...],
        before_absent: tuple[int, ...],
        raw: dict[str, str],
        before_raw: dict[str, str],
    ) -> bytes | None: ...
