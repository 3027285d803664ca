from collections.abc import Iterable, Mapping
from mmap import mmap

from databus.schemas.event.v2 import Buffer

class Plan:
    def __init__(
        self,
        src_ids: Iterable[int] | None,
        rules: Mapping[int, list[tuple[int, int, int]]],
        wants_ddl: bool,
        wants_truncates: bool = True,
    ) -> None: ...

class RingData:
    def __init__(
        self,
        mapping: mmap | bytearray | bytes,
        data_at: int,
        capacity_bytes: int,
        is_writable: bool,
    ) -> None: ...
    def release(self) -> None: ...
    def index_entry(self, number: int, slots: int) -> tuple[int, int, int] | None: ...
    def index_bisect(self, word: int, wanted: int, low: int, end: int, slots: int) -> int: ...
    def copy_out(self, position: int, length: int) -> bytes: ...
    def copy_in(self, position: int, data: Buffer) -> None: ...
    def find_event(self, position: int, end: int, scn: int, to_skip: int) -> tuple[int, int]: ...
    def last_end(self, position: int, end: int, limit: int) -> int: ...
    def check_windows(
        self, position: int, end: int, after_scn: int
    ) -> list[tuple[int, int, int, int]]: ...
    def stamp(self, position: int, end: int, scn: int, timestamp_ns: int) -> None: ...
    def select(
        self,
        position: int,
        end: int,
        tail: int,
        plan: Plan,
        scn: int,
        offset: int,
        room_bytes: int,
    ) -> tuple[int, int, int, bytes, int, int, int]: ...
    def count(
        self,
        end: int,
        tail: int,
        plan: Plan,
        limits: tuple[int, int, int, int],
        so_far: tuple[int, int, int, int, int, int, int, bool],
    ) -> tuple[int, int, int, int, int, int, int, bool]: ...

def stamp(buffer: bytearray, begin: int, end: int, scn: int, timestamp_ns: int) -> None: ...
def find_run(marks: bytes, number: int, newest: int, limit: int) -> int: ...
def find_optional(windows: bytes) -> int: ...
