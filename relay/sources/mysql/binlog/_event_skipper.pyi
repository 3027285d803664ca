"""The compiled skipper of binlog events: see `_event_skipper.pyx`."""

MORE: int
EVENT: int
PACKET: int
BROKEN: int

class EventSkipper:
    offset: int
    end_offset: int
    has_checksum: bool
    is_unfinished: bool
    @property
    def sequence(self) -> int: ...
    def feed(self, chunk: bytes | bytearray | memoryview, size: int) -> None: ...
    def run(self) -> int: ...
    def next_event(self) -> bytes: ...
    def rest(self) -> bytes: ...

class TransactionSkipper(EventSkipper):
    until_ns: int
    begin: int
    end: int
    commit_ns: int
    time_s: int
