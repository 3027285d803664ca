"""The compiled binlog decoder: see `_decoder.pyx`."""

from collections.abc import Callable, Sequence
from typing import Any

MORE: int
EVENT: int
PACKET: int
FULL: int
LARGE: int
EMPTY: int
FINISHED: int
BROKEN: int
PIECE_BYTES: int

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

class BinlogDecoder:
    epoch: int
    file_number: int
    file: str
    offset: int
    has_checksum: bool
    cuts_only: bool
    is_open: bool
    is_begun: bool
    server_id: int
    start_offset: int
    commit_ns: int
    newest_ns: int
    yielded_second: int
    held_scn: int
    held_ns: int
    trail_begin: int
    trail_digest: int
    expected_scn: int
    statement_comment: str | None
    def __init__(
        self,
        *,
        end_event: bytes,
        metadata_head: bytes,
        before_images: bool,
        epoch: int,
        comment_of: Callable[[bytes], str | None],
    ) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def begin_scn(self) -> int: ...
    @property
    def transactions(self) -> int: ...
    @property
    def gtid_text(self) -> str | None: ...
    @property
    def window_bytes(self) -> int: ...
    @property
    def held_bytes(self) -> int: ...
    @property
    def empty(self) -> tuple[int, int]: ...
    def feed(self, chunk: bytes | bytearray | memoryview, size: int) -> None: ...
    def run(self) -> int: ...
    def run_into(self, room: memoryview) -> tuple[int, int, bytes | None]: ...
    def next_event(self) -> bytes: ...
    def take_ended(self) -> Sequence[tuple[int, int, int, str, int]]: ...
    def take_batch(self) -> tuple[bytes, bytes] | None: ...
    def take_piece(self) -> tuple[int, bytes] | None: ...
    def take_end(self) -> tuple[int, int, int, int]: ...
    def begin(self, gtid: bytes | None, server_id: int, start_offset: int) -> None: ...
    def append_events(self, events: bytes, rows: int) -> None: ...
    def put_rows(self, plan: RowPlan, type_code: int, body: bytes) -> bool: ...
    def cut(self, size: int, rows: int) -> None: ...
    def commit(self, scn: int, timestamp_ns: int) -> int: ...
    def bind(
        self, table_id: int, content: bytes, layout: object | None, plan: RowPlan | None
    ) -> None: ...
    def unbind(self) -> None: ...
    def layouts(self) -> dict[int, Any]: ...
    def end_statements(self) -> None: ...
