"""The compiled reader of a SELECT's rows: see `_text_rows.pyx`."""

from collections.abc import Callable, Sequence
from typing import Any

MORE: int
END: int
ERROR: int
BROKEN: int

class RowPlan:
    def __init__(
        self,
        columns: Sequence[dict[str, Any]],
        *,
        src_id: int,
        digest: bytes,
        key: str,
        key_columns: Sequence[int],
        make_key: Callable[[bytes], bytes],
        delivers_partial: bool,
    ) -> None: ...

class TextRows:
    columns: int
    sequence: int
    def __init__(self, columns: int, sequence: int) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> tuple[bytes | None, ...]: ...
    @property
    def error(self) -> bytes: ...
    def feed(self, chunk: bytes) -> int: ...
    def events(
        self,
        plan: RowPlan,
        rows: int,
        *,
        scn: int,
        timestamp_ns: int,
        metadata: bytes,
        metadata_end: bytes,
    ) -> list[tuple[int | bytes, bytes]] | None: ...
