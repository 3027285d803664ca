"""Asks a server and its log what `server/succession.py` decides by."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from databus.conf.named_places import GtidPlace
from databus.relay.sources.epochs import Executed, Lineage, NoOverlapError, ServerRefusedError
from databus.relay.sources.mysql.binlog.executed import ExecutedGtids
from databus.relay.sources.mysql.binlog.packets import StreamBrokenError
from databus.relay.sources.mysql.replication.dump import BinlogDump
from databus.relay.sources.mysql.replication.log_identity import AnotherLogError, Identity
from databus.relay.sources.mysql.replication.same_log import SameLog
from databus.relay.sources.mysql.search.executed_search import executed_before
from databus.relay.sources.mysql.search.log_order import LogOrder, gtids_of, has_strangers
from databus.relay.sources.mysql.search.start_search import Preceding, StartSearch
from databus.relay.sources.mysql.server.catalog import ServerCatalog
from databus.relay.sources.mysql.server.start_position import LogFile, Start
from databus.relay.sources.mysql.server.succession import (
    MariadbState,
    MysqlState,
    Turn,
    judge_mariadb,
    judge_mysql,
    newest_by_pair,
    turn_at,
)
from databus.relay.sources.source import Newest, TellSearch
from databus.schemas.errors import SourceError, SourceStoppedError
from databus.schemas.log_mark import LogMark
from databus.schemas.scn import binlog_position

log = logging.getLogger(__name__)

_OF_MARIADB = "SELECT @@GLOBAL.gtid_binlog_state, @@GLOBAL.gtid_current_pos"
_OF_MYSQL = "SELECT @@GLOBAL.gtid_mode, @@GLOBAL.gtid_executed, @@GLOBAL.gtid_purged"
_WAYS_OF_ORDER = (
    "No epoch begins there. Resume capture once a server of `uri` has them in order. To go on here "
    "anyway, set `epoch` to {epoch} and `start` to the gtid-set of what must not come (again), and "
    "start the relay anew; then make consumers equal to the database where rows differ"
)
_WAYS = (
    "No epoch begins there. Resume capture once a server of `uri` has what is missing. If that is "
    "lost for good, consumers have rows that no server has: begin anew"
)
_UNKNOWN = "which transactions were delivered is not known, so nothing proves that it has them"
_NO_TABLE = (
    "the other relays of this source read its server as epoch {epoch}, and this relay has windows "
    "of another epoch, without its table of epochs. Remove its data_dir, and start it again: it "
    "takes over what the others have"
)
_WAYS_OF_LOG = (
    "Nothing is read: its SCNs would name other transactions. If the server was reset or restored, "
    "follow the same steps at all relays of this source"
)
_WAYS_BACK = "Capture goes on at the server before, once that answers"
_MARGIN_S = 60


class Begin(NamedTuple):
    """Where an epoch begins: at `start`, after `gtids`, all that was delivered up to `scn`."""

    start: str
    gtids: str | None
    scn: int


class Succession:
    """Asks one server, when capture is to go on there."""

    def __init__(
        self,
        catalog: ServerCatalog,
        files: Sequence[LogFile],
        open_dump: Callable[[Start], BinlogDump],
        tell: TellSearch,
        *,
        is_mariadb: bool,
    ) -> None:
        self._catalog = catalog
        self._files = files
        self._open_dump = open_dump
        self._tell = tell
        self._is_mariadb = is_mariadb

    def turn(
        self,
        lineage: Lineage | None,
        configured: int,
        after_scn: int | None,
        server: str,
        source: str,
        newest: Newest | None = None,
    ) -> tuple[int, Begin | None]:
        """Return the epoch to read and, where it begins here, after what.

        Where that is not known, it is the epoch before: then the log does not prove to be the
        same. `newest` is the newest window of the relay, for advice. Raises ServerRefusedError,
        SourceError, and ValueError.
        """
        lineage = lineage or Lineage()
        turn = turn_at(lineage.newest, configured, after_scn, server)
        if lineage.agree is not None:
            turn = self._agree(turn, lineage, after_scn, server, source)
        if turn.begins:
            turn, begin = self._prove(turn, lineage, after_scn or 0, server, source, newest)
        else:
            begin = None
        self._catalog.epoch = turn.epoch
        return turn.epoch, begin

    def _agree(
        self, turn: Turn, lineage: Lineage, after_scn: int | None, server: str, source: str
    ) -> Turn:
        """Return the turn on which all relays of the source agree."""
        assert lineage.agree is not None
        agreed = lineage.agree(turn.epoch, server)
        if agreed.number != turn.epoch:
            if after_scn is not None and lineage.newest is None:
                text = _NO_TABLE.format(epoch=agreed.number)
                raise SourceStoppedError(source, after_scn, text)
            turn = Turn(agreed.number, begins=after_scn is not None)
        if turn.begins or after_scn is None:
            self._compare(agreed.marks, turn.epoch, after_scn or 0, server, source)
        return turn

    def _compare(
        self, marks: Sequence[LogMark], epoch: int, after_scn: int, server: str, source: str
    ) -> None:
        """Raise SourceStoppedError if other relays have read another log of the server."""
        log_before = SameLog(source, epoch)
        log_before.server = server
        for mark in marks:
            try:
                log_before.look_behind(Identity.of(mark), self._files, self._open_dump)
            except AnotherLogError as error:
                raise SourceStoppedError(
                    source,
                    after_scn,
                    f"another relay of this source has read another log as epoch {epoch}. "
                    f"There: {error.kept}. Here: {error.found}. {_WAYS_OF_LOG}",
                    evidence=error.found.encode(),
                ) from error

    def _prove(
        self,
        turn: Turn,
        lineage: Lineage,
        after_scn: int,
        server: str,
        source: str,
        captured: Newest | None,
    ) -> tuple[Turn, Begin | None]:
        newest = lineage.newest
        assert newest is not None  # a turn begins after an epoch
        delivered, epoch = self._delivered(lineage, after_scn, server), _epoch_of(after_scn)
        # Only the log itself can still prove that it is the same.
        is_alone = lineage.agree is None and not lineage.has_others
        if not delivered and is_alone and epoch == newest.number:
            return Turn(epoch, begins=False), None
        problem, ways = _UNKNOWN, f"{_WAYS_BACK}. {_ways_on(turn.epoch, captured)}"
        begin = None
        if delivered is not None:
            begin = Begin(f"gtid-set:{delivered.gtids}", delivered.gtids, delivered.scn)
        if not delivered and lineage.find_overlap is not None and self._has_no_gtids():
            try:
                begin = Begin(str(lineage.find_overlap(turn.epoch)), None, after_scn)
                problem = ""
            except NoOverlapError as error:
                problem = f"{error}, so nothing proves that it has what was delivered"
        elif delivered:
            state = self._state()
            problem, ways = self._problem(delivered.gtids, state), _WAYS
            if not problem:
                problem = self._disorder(delivered.gtids, state)
                ways = _WAYS_OF_ORDER.format(epoch=turn.epoch)
        if problem:
            text = f"another server ({server}) answers instead of {newest.server}, and {problem}"
            raise ServerRefusedError(
                source, after_scn, f"{text}. {ways}", evidence=problem.encode()
            )
        log.info("%s: epoch %d begins at server %s", source, turn.epoch, server)
        return turn, begin

    def _has_no_gtids(self) -> bool:
        state = self._state()
        return isinstance(state, MysqlState) and state.mode.upper() != "ON"

    def executed_at(
        self, lineage: Lineage | None, after_scn: int | None, start: Start, *, is_first: bool
    ) -> ExecutedGtids | None:
        """Return what was executed before the first transaction that is read.

        `is_first` tells that `start` is not where the relay has read before. None if nobody follows
        the servers of the source.
        """
        if lineage is None:
            return None
        known: str | None = start.gtids
        if not known and not is_first and lineage.executed is not None:
            known = lineage.executed.gtids
        if not known:
            place = start if is_first or after_scn is None else self._place_of(after_scn)
            known = self._executed_before(place)
        return ExecutedGtids(is_mariadb=self._is_mariadb, text=known)

    def _executed_before(self, place: Start) -> str | None:
        # Without them capture goes on, but not at another server.
        try:
            return executed_before(
                place, self._catalog, self._open_dump, self._tell, is_mariadb=self._is_mariadb
            )
        except (SourceError, StreamBrokenError, ValueError) as error:
            log.warning("what was executed before %s is not known: %s", place, error)
            return None

    def _place_of(self, scn: int) -> Start:
        """Return the file and offset of an SCN of this log."""
        position = binlog_position(scn)
        names = {file.number: file.name for file in self._files}
        return Start(names[position.file_number], position.offset)

    def _delivered(self, lineage: Lineage, after_scn: int, server: str) -> Executed | None:
        newest, known = lineage.newest, lineage.executed
        if known is None:
            # All of the newest epoch was lost, as by a power failure: it begins once more.
            is_lost = newest is not None and (newest.server, newest.after_scn) == (
                server,
                after_scn,
            )
            if newest is None or not is_lost or newest.executed is None:
                return None
            return Executed(after_scn, newest.executed)
        executed = ExecutedGtids(is_mariadb=self._is_mariadb, text=known.gtids)
        for gtid in lineage.more:
            executed.add(gtid)
        return None if executed.text is None else Executed(known.scn, executed.text)

    def _state(self) -> MariadbState | MysqlState:
        """Ask the server for its GTIDs."""
        if self._is_mariadb:
            ((logged, current),) = self._catalog.ask(_OF_MARIADB)
            return MariadbState(str(logged), str(current))
        return MysqlState(*map(str, self._catalog.ask(_OF_MYSQL)[0]))

    def _disorder(self, delivered: str, state: MariadbState | MysqlState) -> str:
        """Return which transaction would be delivered in another order than here; "" without."""
        known = gtids_of(delivered, is_mariadb=self._is_mariadb)
        executed: Preceding
        if isinstance(state, MariadbState):
            # Of each domain, whichever server wrote it: what is logged, not what counts as applied.
            pairs = sorted(newest_by_pair(state.logged).items(), key=lambda pair: pair[1])
            executed = {domain: number for (domain, _), number in pairs}
        else:
            executed = gtids_of(state.executed, is_mariadb=False)
        if not has_strangers(known, executed):
            return ""
        order = LogOrder(self._files, self._open_dump, self._tell, self._catalog.names)
        return order.problem(known)

    def _problem(self, delivered: str, state: MariadbState | MysqlState) -> str:
        """Return why capture cannot go on here; "" if it can."""
        if isinstance(state, MariadbState):
            verdict = judge_mariadb(delivered, state)
        else:
            verdict = judge_mysql(delivered, state)
        search = StartSearch(self._files, self._open_dump, self._tell)
        for gtid in () if verdict.problem else verdict.to_find:
            try:
                search.find(GtidPlace(gtid))
            except ValueError as error:
                return f"its log does not have {gtid}, which was delivered: {error}"
        return verdict.problem


def _epoch_of(scn: int) -> int:
    return binlog_position(scn).epoch


def _ways_on(epoch: int, captured: Newest | None) -> str:
    """Return how to go on anyway after the newest window, and what comes twice then."""
    if captured is None:
        return "If that is gone for good, begin anew"
    begin_s = captured.timestamp_ns // 1_000_000_000 - _MARGIN_S
    start = f"time:{datetime.fromtimestamp(begin_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return (
        f"If that is gone for good, set `uri` to this server alone, `epoch = {epoch}` and `start = "
        f'"{start}"`, {_MARGIN_S} s before the newest transaction that was captured: all that '
        "was committed since then comes, what was delivered of it a second time. Nothing else is "
        "lost or repeated if this server has all that was delivered"
    )
