from collections.abc import Callable
from typing import Any

class RowDecoder:
    def __new__(
        cls,
        names: tuple[str, ...],
        columns: tuple[tuple[bool, tuple[Any, ...]], ...],  # `row_decoding.ColumnPlan`
        fallback: Callable[[bytes], dict[str, Any]],
    ) -> RowDecoder: ...
    def decode(self, data: bytes, offset: int = 0, end: int = -1) -> dict[str, Any]: ...

DECODE_ROW: object  # a capsule: see decode_row.pxi
