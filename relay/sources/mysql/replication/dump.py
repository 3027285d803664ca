"""The replication connection: a session that has become a stream of binlog events.

mysql-replication requests the stream, and encodes the registration as a replica and the GTID
sets. The bytes that arrive are read from the socket in large chunks and cut into events by
`binlog/packets.py`.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

from pymysql.constants.COMMAND import COM_BINLOG_DUMP
from pymysql.err import MySQLError
from pymysqlreplication.binlogstream import COM_BINLOG_DUMP_GTID, ReportSlave

from databus.relay.sources.mysql.binlog.gtid_set import MysqlGtidSet
from databus.relay.sources.mysql.binlog.packets import FATAL, SAME_ID, PacketReader, StreamEnded
from databus.relay.sources.mysql.replication.chunk_reader import ChunkReader
from databus.relay.sources.mysql.server.connection import MysqlAddress, connect, driver_errors
from databus.relay.sources.mysql.server.start_position import FIRST_OFFSET, Start
from databus.schemas.errors import SourceStoppedError, SourceUnavailableError

RECEIVE_BYTES = 1 << 18
HEARTBEAT_S = 1.0
# A live server sends a heartbeat each second; one that is silent for so long is gone.
SILENCE_S = 10.0
# How long a reader to the end of the log waits before it is asked whether to go on.
_END_WAIT_S = 0.5
_NO_CHUNK = memoryview(b""), 0

_NON_BLOCKING, _WITH_STATEMENTS, _BY_GTID = 1, 2, 4


class BinlogDump:
    """A requested dump; yields events as bytes.

    With `follows` the dump waits for new events at the end of the log, otherwise it ends there.
    """

    def __init__(
        self,
        address: MysqlAddress,
        start: Start,
        server_id: int,
        *,
        source: str,
        scn: int = 0,
        is_mariadb: bool = True,
        host: str = "",
        follows: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._scn = scn
        self._doing = f"reading the binlog of {address}"
        self._packets = PacketReader()
        self._ended: StreamEnded | None = None
        self._clock = clock
        self._heard_at = clock()
        self._timeout_s = -1.0
        self._chunks: ChunkReader | None = None
        self._connection: Any = connect(address, source=source, scn=scn)
        try:
            with driver_errors(source, scn, f"asking {address} for its binlog"):
                self._prepare(start, is_mariadb, server_id, host)
                self._request(start, is_mariadb, server_id, follows)
        except BaseException:
            self.close()
            raise

    def receive(self, timeout_s: float) -> list[bytes] | None:
        """Return the events that are complete now; None if no byte arrived in time.

        Raises SourceUnavailableError, SourceStoppedError, or StreamEnded when the server ended
        the stream.
        """
        chunk = self._read(timeout_s)
        now = self._clock()
        if chunk is None:
            self._check_silence(now)
            return None
        self._heard_at = now
        if not chunk:
            raise self._closed()
        # Events before the end of the stream are valid: return them first.
        found: list[bytes] = []
        try:
            for event in self._packets.receive(chunk):
                found.append(event)  # noqa: PERF402 - survives if the next one raises
        except StreamEnded as ended:
            if not found:
                raise
            self._ended = ended
        return found

    def receive_chunk(self, timeout_s: float) -> tuple[memoryview, int] | None:
        """Return a chunk of received bytes and its size; None if no byte arrived in time.

        The chunk is valid until the next call. Raises as `receive` does, except for StreamEnded.
        """
        if self._chunks is None:
            self._chunks = ChunkReader(self._connection._sock)
        try:
            chunk = self._chunks.read(timeout_s)
        except OSError:
            with driver_errors(self._source, self._scn, self._doing):
                raise
        now = self._clock()
        if chunk is None:
            self._check_silence(now)
            return None
        self._heard_at = now
        if chunk[1] == 0:
            raise self._closed()
        return chunk

    @property
    def silence_s(self) -> float:
        """Seconds since the last byte arrived."""
        return self._clock() - self._heard_at

    def close(self) -> None:
        """Close the connection without the handshake of a normal end."""
        connection, self._connection = self._connection, None
        chunks, self._chunks = self._chunks, None
        if chunks is not None:
            chunks.end()  # first, because a closed descriptor's number may be reused
        if connection is not None:
            connection._force_close()

    def _check_silence(self, now: float) -> None:
        if now - self._heard_at > SILENCE_S:
            raise SourceUnavailableError(
                f"source {self._source}: {self._doing}: silent for {SILENCE_S:.0f} s"
            )

    def _closed(self) -> SourceUnavailableError:
        return SourceUnavailableError(
            f"source {self._source}: {self._doing}: the connection was closed"
        )

    def _read(self, timeout_s: float) -> bytes | None:
        if self._ended is not None:
            raise self._ended
        socket = self._connection._sock
        if timeout_s != self._timeout_s:
            socket.settimeout(timeout_s)
            self._timeout_s = timeout_s
        with driver_errors(self._source, self._scn, self._doing):
            try:
                chunk: bytes = socket.recv(RECEIVE_BYTES)
            except TimeoutError:
                return None
            return chunk

    def _prepare(self, start: Start, is_mariadb: bool, server_id: int, host: str) -> None:
        with self._connection.cursor() as cursor:
            # Tells the server that this replica can read checksums. Whether a file has them is
            # in its first event.
            cursor.execute("SET @master_binlog_checksum = @@global.binlog_checksum")
            cursor.execute("SET @source_binlog_checksum = @@global.binlog_checksum")
            period = int(HEARTBEAT_S * 1e9)
            cursor.execute(f"SET @master_heartbeat_period = {period}")
            cursor.execute(f"SET @source_heartbeat_period = {period}")
            if is_mariadb:
                # 4: knows GTID events. Otherwise MariaDB replaces them with dummy events.
                cursor.execute("SET @mariadb_slave_capability = 4")
                if start.gtids:
                    cursor.execute("SET @slave_connect_state = %s", (start.gtids,))
                    cursor.execute("SET @slave_gtid_strict_mode = 0")
                    cursor.execute("SET @slave_gtid_ignore_duplicates = 0")
        if host:
            # Registers as a replica, so that SHOW REPLICAS lists the relay with its id.
            replica = ReportSlave({"hostname": host[:60]})
            self._connection._write_bytes(replica.encoded(server_id))
            self._connection._next_seq_id = 1
            self._connection._read_packet()

    def _request(self, start: Start, is_mariadb: bool, server_id: int, follows: bool) -> None:
        flags = 0 if follows else _NON_BLOCKING
        if is_mariadb:
            # MariaDB sends ANNOTATE_ROWS only on request; MySQL sends ROWS_QUERY always.
            flags |= _WITH_STATEMENTS
        if start.gtids and not is_mariadb:
            gtids = MysqlGtidSet.parse(start.gtids).encoded()
            request = struct.pack("<HII", flags | _BY_GTID, server_id, 0)
            request += struct.pack("<QI", FIRST_OFFSET, len(gtids)) + gtids
            self._connection._execute_command(COM_BINLOG_DUMP_GTID, request)
            return
        offset = start.offset or FIRST_OFFSET
        request = struct.pack("<IHI", offset, flags, server_id) + start.file.encode()
        self._connection._execute_command(COM_BINLOG_DUMP, request)

    def explain(self, ended: StreamEnded) -> SourceStoppedError | SourceUnavailableError:
        """Return the error for the end of a stream."""
        if ended.code in FATAL and SAME_ID not in ended.text:
            return SourceStoppedError(self._source, self._scn, f"{self._doing}: {ended.text}")
        # Other codes have the same meaning as on a normal connection.
        error = MySQLError(ended.code, ended.text)
        try:
            with driver_errors(self._source, self._scn, self._doing):
                raise error
        except (SourceStoppedError, SourceUnavailableError) as ours:
            return ours


def chunks_to_the_end(dump: BinlogDump) -> Iterator[tuple[memoryview, int]]:
    """Yield the chunks of a dump, and empty ones while none arrives; raises SourceError."""
    while True:
        yield dump.receive_chunk(_END_WAIT_S) or _NO_CHUNK


def events_to_the_end(dump: BinlogDump) -> Iterator[bytes]:
    """Yield the events of a dump that does not follow the log; raises SourceError."""
    while True:
        try:
            yield from dump.receive(_END_WAIT_S) or ()
        except StreamEnded as ended:
            if ended.code:
                raise dump.explain(ended) from ended
            return
