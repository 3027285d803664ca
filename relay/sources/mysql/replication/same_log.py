"""Proves that the server's log is the one that was read before.

This module decides from where to read for the proof, and which error to raise if it fails. The
rules of comparison are in `log_identity.py`. A byte damaged in transit does not mean another
log: the error contains what was found, and the capture loop stops only if the next connection
finds the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from pymysqlreplication.constants import BINLOG as B

from databus.relay.sources.mysql.binlog.events import EventReader
from databus.relay.sources.mysql.binlog.packets import StreamBrokenError
from databus.relay.sources.mysql.replication.dump import BinlogDump, events_to_the_end
from databus.relay.sources.mysql.replication.log_cursor import LogCursor, is_made_up
from databus.relay.sources.mysql.replication.log_identities import Expected, Identities
from databus.relay.sources.mysql.replication.log_identity import AnotherLogError, Identity, Proof
from databus.relay.sources.mysql.server.start_position import (
    FIRST_OFFSET,
    LogFile,
    Start,
    reach_of,
    start_at_position,
)
from databus.relay.sources.source import Newest
from databus.schemas.errors import SourceStoppedError, SourceUnavailableError
from databus.schemas.log_mark import LogMark
from databus.schemas.scn import binlog_position

log = logging.getLogger(__name__)

_WAYS = (
    "The log was reset, restored or replaced, and changes may be missing between the two. Where "
    "the server has all that was captured, raise `epoch` of this physical source, with `start` = "
    "gtid-set:… or an SCN of the new epoch where the new log is to be read from. Otherwise begin "
    "anew: remove its ring and MaxSCN files, the stores of bootstrap servers, and what consumers "
    "keep, with their checkpoints"
)
_NEWEST_UNKNOWN = Newest(-1, 0)


class SameLog:
    """The stored identities of one physical source's log. Used by one thread."""

    def __init__(self, source: str, epoch: int) -> None:
        self._source = source
        self.epoch = epoch
        self._of_all_epochs: list[Identity] = []
        self.server = ""

    def expect(self, marks: Sequence[LogMark]) -> None:
        """Set the stored marks."""
        self._of_all_epochs = []
        for mark in sorted(marks):
            try:
                self._of_all_epochs.append(Identity.of(mark))
            except ValueError as error:
                log.warning("%s: %s", self._source, error)

    @property
    def _kept(self) -> list[Identity]:
        """The stored identities of this log; those of another epoch belong to another one."""
        return [kept for kept in self._of_all_epochs if kept.place.epoch == self.epoch]

    @property
    def newest(self) -> Identity | None:
        """The newest stored identity."""
        kept = self._kept
        return kept[-1] if kept else None

    def begin(
        self, after_scn: int, files: Sequence[LogFile], newest: Newest | None
    ) -> tuple[Start, Identities]:
        """Return where to begin reading, so that the log after an SCN is proved to be the same.

        Raises ValueError if the log does not have that position.
        """
        newest = newest or _NEWEST_UNKNOWN
        try:
            start = start_at_position(binlog_position(after_scn), self.epoch, files)
            if newest.scn > after_scn:
                start_at_position(binlog_position(newest.scn), self.epoch, files)
        except ValueError as error:
            raise ValueError(self.not_there(str(error), files)) from error
        names = {file.number: file.name for file in files}
        earlier = [kept for kept in self._kept if kept.scn <= after_scn]
        expected = self._expected(after_scn, newest)
        if not earlier or earlier[-1].place.file_number not in names:
            return start, self._unproved(after_scn, newest, expected)
        kept = earlier[-1]
        proof = Proof(kept, binlog_position(after_scn), self.server)
        start = Start(names[kept.place.file_number], kept.begin)
        return start, Identities(self.server, proof, expected)

    def prove_newest(
        self,
        after_scn: int,
        files: Sequence[LogFile],
        open_dump: Callable[[Start], BinlogDump],
    ) -> None:
        """Prove the newest stored identity, if none is there to begin with at an SCN.

        Otherwise transactions would be yielded before one was compared. Raises SourceStoppedError
        for another log, and other errors as `look_behind`.
        """
        held = {file.number for file in files}
        earlier = [kept for kept in self._kept if kept.scn <= after_scn]
        is_proved = bool(earlier) and earlier[-1].place.file_number in held
        if self.newest is not None and not is_proved:
            try:
                self.look_behind(self.newest, files, open_dump)
            except AnotherLogError as error:
                raise self.another(error, after_scn) from error

    def not_there(self, problem: str, files: Sequence[LogFile] = ()) -> str:
        """Return the text of an error: the log does not have a position."""
        kept = self.newest
        if kept is None:
            return problem
        end = f", up to {files[-1].name}:{files[-1].size_bytes}" if files else ""
        return f"{problem}. {_both(kept, f'server {self.server}{end}')}"

    def another(self, error: AnotherLogError, scn: int) -> SourceStoppedError:
        """Return the error for a log that is not the one that was read before."""
        problem = f"its log is not the one that was read. {_both(error.kept, error.found)}"
        return SourceStoppedError(self._source, scn, problem, evidence=error.found.encode())

    def look_behind(
        self,
        rotated_from: Identity,
        files: Sequence[LogFile],
        open_dump: Callable[[Start], BinlogDump],
    ) -> None:
        """Prove that the file before a rotation is still the one that was read.

        Then the log was not replaced before the rotation. Raises AnotherLogError,
        StreamBrokenError, ValueError, SourceError.
        """
        number = rotated_from.place.file_number
        if files and files[0].number > number:
            return  # purged, which is usual for a file that was read
        held = [file for file in files if file.number == number]
        if not held:
            raise AnotherLogError(rotated_from, f"server {self.server}, without file {number}")
        if held[0].size_bytes < rotated_from.place.offset:
            # Asked for it, the server would name neither the place nor what it has.
            raise AnotherLogError(rotated_from, f"server {self.server}, {reach_of(files)}")
        dump = open_dump(Start(held[0].name, max(rotated_from.begin, FIRST_OFFSET)))
        try:
            prove(events_to_the_end(dump), Proof(rotated_from, rotated_from.place, self.server))
        finally:
            dump.close()

    def _expected(self, after_scn: int, newest: Newest) -> list[Expected]:
        found = [
            Expected(kept.scn, kept)
            for kept in self._kept
            if kept.scn > after_scn and not kept.is_point
        ]
        # After a kill between the two writes, the ring's newest window is newer than the stored
        # identities. It is known by its commit time only. The time of transactions beyond 4 GiB,
        # whose window is at the beginning of the next file, is not that of an event there.
        is_kept = any(kept.scn == newest.scn for kept in self._kept)
        offset = binlog_position(max(newest.scn, 0)).offset
        if newest.scn > after_scn and newest.timestamp_ns and not is_kept and offset > FIRST_OFFSET:
            found.append(Expected(newest.scn, None, newest.timestamp_ns))
        return found

    def _unproved(self, after_scn: int, newest: Newest, expected: Sequence[Expected]) -> Identities:
        """Check without a stored transaction: the server, and the age of its file.

        The file with the newest window must have been begun before that window's commit.
        """
        kept = self.newest
        if kept is not None and kept.server != self.server:
            raise ValueError(self.not_there("its server is another one"))
        log.info(
            "%s: no identity of its log is stored at scn %d; it is stored from now on",
            self._source,
            after_scn,
        )
        before_ns = newest.timestamp_ns if newest.scn >= after_scn else 0
        return Identities(self.server, expected=expected, born_before_ns=before_ns)


def wrong_connection(error: StreamBrokenError, source: str, doing: str) -> SourceUnavailableError:
    """Return the error of a broken stream for the capture loop."""
    return SourceUnavailableError(f"source {source}: {doing}: the stream is broken: {error}")


def _both(kept: Identity | str, found: str) -> str:
    return f"Kept: {kept}. Found: {found}. {_WAYS}"


def prove(stream: Iterable[bytes], proof: Proof) -> None:
    """Compare a stream until the proof is complete; raises as `Proof.take` and `place` do."""
    reader, cursor = EventReader(), LogCursor(has_gaps=False)
    for data in stream:
        event = cursor.place(reader.read(data), is_inside=True)
        stands = event.type_code != B.ROTATE_EVENT and not is_made_up(event)
        place = (cursor.file, cursor.file_number, cursor.offset)
        proof.take(event, data, place, stands=stands)
        if proof.is_over:
            return
    found = f"{proof.describe()}, which ends at {cursor.file}:{cursor.offset}"
    raise AnotherLogError(proof.kept, found)
