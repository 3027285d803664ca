"""Going on exactly where reading ended: after any event, and after any GTID, on both servers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from databus.conf.loading import build_settings
from databus.conf.settings import PhysicalSourceSettings, RelaySettings
from databus.demo.private_mariadb import PrivateMariaDB
from databus.relay.relay import Relay
from databus.relay.sources.mysql.binlog.gtid_set import MysqlGtidSet
from databus.relay.sources.mysql.source import MysqlSource
from databus.relay.sources.source import Transaction
from databus.schemas.errors import SettingsError, SourceStoppedError, SourceUnavailableError
from databus.schemas.event.event import Event
from databus.schemas.stream.stream_reader import walk
from tests.mariadb_server import Database, fresh_database
from tests.mysql_server import PrivateMySQL
from tests.relay.fakes import wait_until
from tests.relay.sources.mysql.binlog.cutting import CuttingProxy
from tests.relay.sources.mysql.reading import opened, read_full, watching

pytest_plugins = ["tests.mariadb", "tests.mysql", "tests.both_servers"]

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "4e11fa47-71ca-11e1-9e33-c80aa9429562"
# One statement each, or several in a transaction; what is not watched is in between.
TRANSACTIONS: Sequence[Sequence[str]] = (
    ("INSERT INTO a VALUES (1, 'x'), (2, 'y')",),
    (
        "INSERT INTO a VALUES (3, 'z')",
        "INSERT INTO b VALUES ('k', 1)",
        "INSERT INTO unwatched VALUES (1)",
        "UPDATE a SET v = 'w' WHERE id < 3",
        "DELETE FROM b",
    ),
    ("INSERT INTO unwatched VALUES (2)",),
    # Some rows of several events, of 8 KB each.
    ("INSERT INTO a VALUES " + ", ".join(f"({n}, REPEAT('v', 3000))" for n in range(10, 19)),),
    ("DELETE FROM a WHERE id = 1", "REPLACE INTO b VALUES ('k', 2)"),
)


@pytest.fixture
def shop(either_database: Database) -> Database:
    """Two watched tables and one that is not, with rows that no start here asks for."""
    either_database.run(
        "CREATE TABLE a (id INT PRIMARY KEY, v TEXT)",
        "CREATE TABLE b (k VARCHAR(10) PRIMARY KEY, v INT)",
        "CREATE TABLE unwatched (id INT PRIMARY KEY)",
        "INSERT INTO a VALUES (99, 'before')",
    )
    return either_database


def position(database: Database) -> str:
    """Return the GTIDs of everything that was committed, as a start is written."""
    is_mysql = isinstance(database.server, PrivateMySQL)
    variable = "gtid_executed" if is_mysql else "gtid_binlog_pos"
    text = str(database.run(f"SELECT @@GLOBAL.{variable}")[0][0])
    return "gtid-set:" + text.replace("\n", "")


def commit(database: Database, statements: Sequence[str]) -> None:
    database.run("BEGIN", *statements, "COMMIT")


def test_a_stream_cut_after_any_event_goes_on_without_a_gap_and_without_a_double(
    shop: Database, tmp_path: Path
) -> None:
    settings = watching(shop, tmp_path, "a", "b", start=position(shop))
    for statements in TRANSACTIONS:
        commit(shop, statements)
    with opened(settings) as source:
        expected = read_full(source, 4)
    with CuttingProxy(shop.server.port) as proxy:
        through = settings.model_copy(update={"uri": f"mysql://databus@127.0.0.1:{proxy.port}"})
        for cut in range(1, 200):
            cuts = itertools.chain([cut], itertools.repeat(None))
            proxy.next_cut, proxy.cuts_inside, proxy.was_cut = cuts.__next__, cut % 2 == 1, False
            assert read_over_a_cut(MysqlSource(through), len(expected)) == expected
            if not proxy.was_cut:
                break
    assert not proxy.was_cut
    assert cut > 25  # there were so many places


def read_over_a_cut(source: MysqlSource, count: int) -> list[Transaction]:
    found: list[Transaction] = []

    def read_on() -> None:
        source.open(found[-1].scn if found else None)
        while sum(bool(t.changes) for t in found) < count:
            found.extend(t for t in source.read_transactions() if isinstance(t, Transaction))

    with closing(source):
        try:
            read_on()
        except SourceUnavailableError:
            read_on()
    return [t for t in found if t.changes]


def test_a_relay_that_is_cut_off_after_every_event_has_each_window_once(
    shop: Database, tmp_path: Path
) -> None:
    settings = watching(shop, tmp_path, "a", "b", start=position(shop))
    for statements in TRANSACTIONS:
        commit(shop, statements)
    with CuttingProxy(shop.server.port) as proxy:
        through = {
            "uri": f"mysql://databus@127.0.0.1:{proxy.port}",
            "reconnect_min_s": 0.001,
            "reconnect_max_s": 0.001,
        }
        expected = rows_of_a_relay(settings, tmp_path / "whole", proxy, 4)
        assert not proxy.was_cut
        cut_off = settings.model_copy(update=through)
        assert rows_of_a_relay(cut_off, tmp_path / "cut", proxy, 4) == expected
        assert proxy.was_cut


def rows_of_a_relay(
    settings: PhysicalSourceSettings, folder: Path, proxy: CuttingProxy, windows: int
) -> list[Event]:
    """Return the row events of a relay's ring, and the ends of their windows."""
    raw = {"data_dir": folder, "physical_sources": [settings.model_dump()]}
    relay = Relay(build_settings(raw, RelaySettings))
    shop = relay.physical_sources["shop"]
    lengths = after_progress(lambda: shop.ring.max_scn)
    proxy.next_cut = lengths.__next__
    relay.start()
    try:
        wait_until(lambda: shop.capture.status.windows >= windows)
        events = list(walk(shop.reader.read(shop.reader.head, shop.reader.capacity_bytes)))
    finally:
        relay.stop()
    scns = {event.scn for event in events if event.src_id > 0}
    assert len(scns) == windows
    return [event for event in events if event.scn in scns]


def after_progress(scn: Callable[[], int]) -> Iterator[int]:
    """Yield 1, 2, 3 … packets, from 1 again whenever the SCN has moved on."""
    while True:
        begun = scn()
        for length in itertools.count(1):
            yield length
            if scn() != begun:
                break


def check_every_start(
    database: Database, folder: Path, before: Sequence[Callable[[], None]]
) -> list[Transaction]:
    """Commit a row after each preparation, then read from the GTIDs before each row on."""
    starts = []
    for number, prepare in enumerate(before):
        starts.append(position(database))
        if number % 4 == 3:
            database.run("FLUSH BINARY LOGS")
        prepare()
        commit(database, [f"REPLACE INTO b VALUES ('{number}', {number})"])
        database.run(*after_each(database))
    found: list[Transaction] = []
    for number, start in enumerate(starts):
        with opened(watching(database, folder, "b", start=start)) as source:
            rest = read_full(source, len(starts) - number)
        found = found or rest
        assert rest == found[number:], start
    assert [t.changes[0].row["v"] for t in found] == list(range(len(starts)))
    return found


def after_each(database: Database) -> list[str]:
    if isinstance(database.server, PrivateMySQL):
        return ["SET gtid_next = 'AUTOMATIC'"]
    return ["SET gtid_domain_id = 0", "SET server_id = 1"]


@pytest.fixture
def own_mariadb() -> Iterator[Database]:
    """A database on a server whose GTIDs are this test's only."""
    with PrivateMariaDB() as server, fresh_database(server) as made:
        yield made


@pytest.fixture
def own_mysql(new_mysql: Callable[..., PrivateMySQL]) -> Iterator[Database]:
    """A database on a server whose GTIDs are this test's only."""
    with new_mysql() as server, fresh_database(server) as made:
        yield made


@pytest.mark.mariadb
def test_a_start_after_any_position_of_several_domains_gives_exactly_the_rest(
    own_mariadb: Database, tmp_path: Path
) -> None:
    database = own_mariadb
    database.run("CREATE TABLE b (k VARCHAR(10) PRIMARY KEY, v INT)")
    domains = [0, 11, 0, 12, 11, 11, 0, 12, 12, 0]

    def in_domain(domain: int, server: int) -> Callable[[], None]:
        return lambda: (
            database.run(f"SET gtid_domain_id = {domain}", f"SET server_id = {server}"),
            None,
        )[1]

    before = [in_domain(domain, 1 + number % 2) for number, domain in enumerate(domains)]
    found = check_every_start(database, tmp_path, before)
    gtids = [str(t.origin.gtid) for t in found]
    assert [int(gtid.split("-")[0]) for gtid in gtids] == domains
    # A domain that a position does not name is read from its beginning.
    without_11 = f"gtid-set:{gtids[6]},{gtids[7]}"
    with opened(watching(database, tmp_path, "b", start=without_11)) as source:
        rest = read_full(source, 5)
    assert [t.changes[0].row["v"] for t in rest] == [1, 4, 5, 8, 9]


@pytest.mark.mysql
def test_a_start_after_any_set_with_holes_gives_exactly_the_rest(
    own_mysql: Database, tmp_path: Path
) -> None:
    own_mysql.run("CREATE TABLE b (k VARCHAR(10) PRIMARY KEY, v INT)")
    names = ["AUTOMATIC", f"{A}:1", f"{A}:9", f"{B}:4", "AUTOMATIC", f"{A}:5", f"{B}:3"]
    names += [f"{A}:6", "AUTOMATIC", f"{A}:2"]
    if knows_tags(own_mysql):
        names += [f"{A}:red:7", f"{A}:red:2", f"{A}:3", f"{B}:blue:1", "AUTOMATIC:red"]

    def named(name: str) -> Callable[[], None]:
        return lambda: (own_mysql.run(f"SET gtid_next = '{name}'"), None)[1]

    found = check_every_start(own_mysql, tmp_path, [named(name) for name in names])
    for name, transaction in zip(names, found, strict=True):
        if not name.startswith("AUTOMATIC"):
            assert transaction.origin.gtid == name
    # One out of the middle comes again, and nothing else.
    held = MysqlGtidSet.parse(position(own_mysql).removeprefix("gtid-set:"))
    without = f"gtid-set:{held - MysqlGtidSet.parse(f'{A}:5')}"
    with opened(watching(own_mysql, tmp_path, "b", start=without)) as source:
        assert read_full(source, 1) == [found[5]]


def knows_tags(database: Database) -> bool:
    version = str(database.run("SELECT VERSION()")[0][0]).split("-")[0]
    return tuple(int(part) for part in version.split(".")) >= (8, 3)


@pytest.mark.parametrize("start", ["gtid-set:0-1-5,0-2-6", "gtid-set:0-1", f"gtid-set:{A}:1-5"])
@pytest.mark.mariadb
def test_a_position_that_is_none_is_refused_with_what_is_wrong(
    database: Database, tmp_path: Path, start: str
) -> None:
    database.run("CREATE TABLE a (id INT PRIMARY KEY)")
    with (
        pytest.raises(SettingsError, match=r"a GTID set of MariaDB looks like gtid-set:0-1-100"),
        opened(watching(database, tmp_path, "a", start=start)),
    ):
        pass


@pytest.mark.parametrize("start", ["gtid-set:0-1-5", f"gtid-set:{A}", f"gtid-set:{A}:5-1"])
@pytest.mark.mysql
def test_a_set_that_is_none_is_refused_with_what_is_wrong(
    mysql_database: Database, tmp_path: Path, start: str
) -> None:
    mysql_database.run("CREATE TABLE a (id INT PRIMARY KEY)")
    with (
        pytest.raises(SettingsError, match=r"a GTID set of MySQL looks like gtid-set:<uuid>"),
        opened(watching(mysql_database, tmp_path, "a", start=start)),
    ):
        pass


@pytest.mark.mariadb
def test_a_position_that_the_server_lacks_stops_with_what_was_asked_and_what_there_is(
    database: Database, tmp_path: Path
) -> None:
    database.run("CREATE TABLE a (id INT PRIMARY KEY)")
    settings = watching(database, tmp_path, "a", start="gtid-set:0-99-100000")
    says = (
        r"asked for the server's log from gtid-set:0-99-100000 on, which reaches from binlog\.\d+:4"
    )
    with opened(settings) as source, pytest.raises(SourceStoppedError, match=says):
        read_full(source, 1)
