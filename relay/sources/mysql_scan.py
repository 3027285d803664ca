"""Looking ahead in the binlog for statements that change columns of watched tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pymysqlreplication.constants import BINLOG as B

from databus.relay.sources.mysql_ddl import Effect, read_statement
from databus.relay.sources.mysql_dump import BinlogDump
from databus.relay.sources.mysql_events import EventReader, parse_query, parse_rotate
from databus.relay.sources.mysql_packets import StreamEnded
from databus.relay.sources.mysql_position import file_number
from databus.relay.sources.mysql_tables import Names
from databus.schemas.scn import BinlogPosition

_WAIT_S = 10.0


def events_to_the_end(dump: BinlogDump) -> Iterator[bytes]:
    """Yield what a dump that does not follow has; raises SourceError when it breaks."""
    while True:
        try:
            yield from dump.receive(_WAIT_S) or ()
        except StreamEnded as ended:
            if ended.code:
                raise dump.explain(ended) from ended
            return


def last_column_changes(
    stream: Iterable[bytes], names: Names, collations: Mapping[int, str], epoch: int, end: int
) -> dict[str, int]:
    """Return the SCN of the last statement that may have changed each table's columns.

    Reads up to the SCN `end`; raises ValueError on damage.
    """
    reader = EventReader()
    number = 0
    found: dict[str, int] = {}
    for data in stream:
        event = reader.read(data)
        if event.type_code == B.ROTATE_EVENT:
            number = file_number(parse_rotate(event.body)[0])
            continue
        scn = BinlogPosition(epoch, number, event.end_offset).to_scn()
        if not event.is_artificial and scn > end:
            break
        if event.type_code == B.QUERY_EVENT:
            query = parse_query(event.body, collations)
            statement = read_statement(query.text, query.database, ansi_quotes=query.ansi_quotes)
            if statement.effect is not Effect.NONE:
                found.update(dict.fromkeys(names.touched_by(statement), scn))
    return found
