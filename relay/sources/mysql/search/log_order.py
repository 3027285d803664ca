"""Finds out whether a server has its transactions in the order in which they would be delivered.

Where capture goes on at another server, that one sends what was not delivered yet. A replica may
have such a transaction *before* ones that were delivered: somebody wrote to it. What its rows are
now was decided by the later ones, and a consumer that got the earlier one last would keep other
rows than any server has, for ever.

    delivered    A:1-100
    its log      A:1-90  B:1  A:91-100       B:1 would come after A:100

Transactions that go on with the numbers of one server or domain come after those before them. So
only others are looked for, along the log from the first file that can have one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing

from pymysqlreplication.constants import BINLOG as B

from databus.relay.sources.mysql.binlog.events import Event, parse_query
from databus.relay.sources.mysql.binlog.gtid_set import MysqlGtidSet, parse_mariadb_position
from databus.relay.sources.mysql.replication.dump import BinlogDump, events_to_the_end
from databus.relay.sources.mysql.rows.columns import parse_table_name
from databus.relay.sources.mysql.search.placed_events import placed
from databus.relay.sources.mysql.search.search_progress import SearchProgress
from databus.relay.sources.mysql.search.start_search import Preceding, gtids_before, has_gtid
from databus.relay.sources.mysql.search.transaction_walk import gtid_of
from databus.relay.sources.mysql.server.start_position import FIRST_OFFSET, LogFile, Start
from databus.relay.sources.mysql.tables.names import Names
from databus.relay.sources.source import TellSearch

_PURPOSE = "in which order the other server has its transactions"
_NO_COLLATIONS: Mapping[int, str] = {}


def gtids_of(text: str, *, is_mariadb: bool) -> Preceding:
    """Return the GTIDs of a set of MySQL or a position of MariaDB; raises ValueError."""
    if is_mariadb:
        return {domain: number for domain, (_, number) in parse_mariadb_position(text).items()}
    return MysqlGtidSet.parse(text)


def has_strangers(delivered: Preceding, executed: Preceding) -> bool:
    """Return whether a server has transactions that do not go on with delivered numbers."""
    if isinstance(delivered, dict):
        assert isinstance(executed, dict)
        return not executed.keys() <= delivered.keys()
    assert isinstance(executed, MysqlGtidSet)
    known = delivered.intervals
    return any(
        key not in known or runs[0][0] < known[key][-1][1]
        for key, runs in (executed - delivered).intervals.items()
    )


class LogOrder:
    """Looks along one server's log."""

    def __init__(
        self,
        files: Sequence[LogFile],
        open_dump: Callable[[Start], BinlogDump],
        tell: TellSearch,
        names: Names,
    ) -> None:
        self._files, self._open_dump, self._tell = files, open_dump, tell
        self._names = names
        self._texts = [table.lower() for _, table in names.keys.values()]

    def problem(self, delivered: Preceding) -> str:
        """Return which transaction lies before a delivered one; "" without one.

        Both have changes of watched tables: others are in nobody's way. Raises SourceError,
        StreamBrokenError, and ValueError on damage.
        """
        # What was before the first file says nothing of what is in it.
        known = bisect_right(
            self._files[1:], False, key=lambda file: not self._holds_only(delivered, file)
        )
        wanted = self._files[known:]
        progress = SearchProgress(self._tell, _PURPOSE, sum(file.size_bytes for file in wanted))
        try:
            with closing(self._open_dump(Start(wanted[0].name, FIRST_OFFSET))) as dump:
                return self._first(progress.of_events(events_to_the_end(dump)), delivered)
        finally:
            progress.end()

    def _holds_only(self, delivered: Preceding, file: LogFile) -> bool:
        """Return whether everything before a file was delivered."""
        with closing(self._open_dump(Start(file.name, FIRST_OFFSET))) as dump:
            before = gtids_before(events_to_the_end(dump), file.name)
        if isinstance(before, MysqlGtidSet):
            assert isinstance(delivered, MysqlGtidSet)
            return not (before - delivered).intervals
        assert isinstance(delivered, dict)
        return all(number <= delivered.get(domain, 0) for domain, number in before.items())

    def _first(self, stream: Iterable[bytes], delivered: Preceding) -> str:
        stranger = ""
        for gtid in self._with_changes(stream):
            if not has_gtid(delivered, gtid):
                stranger = stranger or gtid
            elif stranger:
                return (
                    f"its log has {stranger}, which was not delivered, before {gtid}, which was: "
                    "consumers would get its changes after those that came later"
                )
        return ""

    def _with_changes(self, stream: Iterable[bytes]) -> Iterator[str]:
        """Yield the GTIDs of transactions with changes of watched tables, in the log's order."""
        gtid: str | None = None
        for _, event in placed(stream, 0):
            opened = gtid_of(event)
            if opened is not None:
                gtid = opened.text
            elif gtid is not None and self._is_watched(event):
                yield gtid
                gtid = None

    def _is_watched(self, event: Event) -> bool:
        if event.type_code == B.TABLE_MAP_EVENT:
            return self._names.find(*parse_table_name(event.body)) is not None
        if event.type_code == B.QUERY_EVENT:
            text = parse_query(event, _NO_COLLATIONS).text.lower()
            return any(table in text for table in self._texts)
        return False
