"""MaxSCN: what was saved is read, what is damaged is refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from databus.daemon.faults import is_transient
from databus.leases.errors import StaleTermError
from databus.leases.places import open_records
from databus.leases.records import Records
from databus.relay.capture.max_scn import FencedMaxScnStore, FileMaxScn, RecordMaxScn, SqliteMaxScn
from databus.schemas.errors import RingError
from databus.schemas.log_mark import LogMark

pytest_plugins = ["tests.record_stores"]

AT_NS = 1_700_000_000_123_456_789
LARGEST = (1 << 63) - 1


@pytest.fixture(params=["file", "sqlite", "records"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FencedMaxScnStore]:
    if request.param == "records":
        records = open_records(f"sqlite:///{tmp_path / 'records.db'}")
        yield RecordMaxScn(records, "shop")
        records.close()
    elif request.param == "file":
        yield FileMaxScn(tmp_path / "shop.maxscn")
    else:
        yield SqliteMaxScn(tmp_path / "maxscn.db", "shop")


def test_nothing_saved_is_none_and_not_zero(store: FencedMaxScnStore) -> None:
    assert store.load() is None


@pytest.mark.parametrize("scn", [0, 1, 4_294_967_300, LARGEST])
def test_what_was_saved_is_loaded(store: FencedMaxScnStore, scn: int) -> None:
    store.save(7, AT_NS)
    store.save(scn, AT_NS)
    assert store.load() == scn


def test_the_file_reads_as_scn_colon_date(tmp_path: Path) -> None:
    FileMaxScn(tmp_path / "shop.maxscn").save(42, AT_NS)
    text = (tmp_path / "shop.maxscn").read_text()
    assert text.startswith("42:2023-11-14T22:13:20Z crc=")
    assert [file.name for file in tmp_path.iterdir()] == ["shop.maxscn"]


def test_an_operator_may_write_the_file_by_hand(tmp_path: Path) -> None:
    (tmp_path / "shop.maxscn").write_text("42:2023-11-14\n")
    assert FileMaxScn(tmp_path / "shop.maxscn").load() == 42


def test_a_file_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "shop.maxscn"
    FileMaxScn(file).save(1234567, AT_NS)
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(RingError, match="write the SCN to continue from"):
            FileMaxScn(file).load()


def test_a_file_damaged_at_any_byte_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "shop.maxscn"
    FileMaxScn(file).save(1234567, AT_NS)
    whole = file.read_bytes()
    for at in range(len(whole)):
        for flipped in (0x01, 0x80, 0xFF):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ flipped]) + whole[at + 1 :])
            with pytest.raises(RingError):
                FileMaxScn(file).load()


def test_a_number_beyond_63_bits_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shop.maxscn").write_text(f"{LARGEST + 1}:2023-11-14\n")
    with pytest.raises(RingError):
        FileMaxScn(tmp_path / "shop.maxscn").load()


def test_what_a_killed_save_left_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "shop.maxscn.new").write_text("99")
    store = FileMaxScn(tmp_path / "shop.maxscn")
    store.save(5, AT_NS)
    assert store.load() == 5


def test_a_folder_that_cannot_be_written_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(RingError, match="cannot be saved"):
        FileMaxScn(tmp_path / "missing" / "shop.maxscn").save(1, AT_NS)


def test_sources_share_one_sqlite_file_without_mixing(tmp_path: Path) -> None:
    shop, bank = (SqliteMaxScn(tmp_path / "maxscn.db", name) for name in ("shop", "bank"))
    shop.save(1, AT_NS)
    assert bank.load() is None
    bank.save(2, AT_NS)
    assert (shop.load(), bank.load()) == (1, 2)


def test_a_damaged_sqlite_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "maxscn.db").write_bytes(b"not a database, " * 100)
    with pytest.raises(RingError, match=r"maxscn\.db"):
        SqliteMaxScn(tmp_path / "maxscn.db", "shop").load()


def test_an_sqlite_file_whose_definition_is_damaged_at_any_byte_is_read_right_or_refused(
    tmp_path: Path,
) -> None:
    file = tmp_path / "maxscn.db"
    SqliteMaxScn(file, "shop").save(42, AT_NS)
    whole = file.read_bytes()
    begin = whole.index(b"tablemax_scn")
    refused = 0
    for at in range(begin - 12, begin + 200):
        # No byte of UTF-8: SQLite quotes it in what it says.
        file.write_bytes(whole[:at] + b"\xfe" + whole[at + 1 :])
        try:
            assert SqliteMaxScn(file, "shop").load() == 42
        except RingError as error:
            refused += "maxscn.db" in str(error)
    assert refused > 100


def test_a_text_for_an_scn_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "maxscn.db"
    database = sqlite3.connect(file)
    database.execute("CREATE TABLE max_scn (source TEXT PRIMARY KEY, scn, timestamp_ns)")
    database.execute("INSERT INTO max_scn VALUES ('shop', 'many', 0)")
    database.commit()
    database.close()
    with pytest.raises(RingError, match="is no SCN"):
        SqliteMaxScn(file, "shop").load()


def test_what_the_log_was_is_saved_with_the_scn(store: FencedMaxScnStore) -> None:
    mark = LogMark(41, '{"server":"1"}')
    store.save(42, AT_NS, mark)
    assert (store.load(), store.mark()) == (42, mark)
    store.save(43, AT_NS)
    assert (store.load(), store.mark()) == (43, None)


def test_a_flipped_bit_in_a_row_is_damage(tmp_path: Path) -> None:
    file = tmp_path / "maxscn.db"
    SqliteMaxScn(file, "shop").save(42, AT_NS, LogMark(41, "{}"))
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE max_scn SET scn = 43")
    with pytest.raises(RingError, match="checksum of shop's row is wrong"):
        SqliteMaxScn(file, "shop").load()


def test_a_file_of_before_opens_and_gets_its_checksums(tmp_path: Path) -> None:
    file = tmp_path / "maxscn.db"
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(
            "CREATE TABLE max_scn (source TEXT PRIMARY KEY, scn INTEGER NOT NULL, "
            "timestamp_ns INTEGER NOT NULL)"
        )
        database.execute("INSERT INTO max_scn VALUES ('shop', 42, 7)")
    store = SqliteMaxScn(file, "shop")
    assert (store.load(), store.mark()) == (42, None)
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE max_scn SET crc = NULL")
    with pytest.raises(RingError, match="damaged"):
        store.load()


def test_what_the_log_was_is_believed_with_a_checksum_only(tmp_path: Path) -> None:
    (tmp_path / "shop.maxscn").write_text("42:2023-11-14 log=41:{}\n")
    with pytest.raises(RingError, match="damaged"):
        FileMaxScn(tmp_path / "shop.maxscn").mark()


def test_a_smaller_term_than_the_greatest_is_refused(store: FencedMaxScnStore) -> None:
    mark = LogMark(41, '{"server":"1"}')
    for term in (3, 3, 5):
        store.save_under(40 + term, AT_NS, term, mark)
    with pytest.raises(StaleTermError, match="term is 4, and term 5 has begun") as caught:
        store.save_under(99, AT_NS, 4)
    assert not is_transient(caught.value)
    assert (store.load(), store.mark()) == (45, mark)


def test_a_term_that_begins_gets_what_is_saved_and_shuts_out_the_one_before(
    store: FencedMaxScnStore,
) -> None:
    assert store.begin_term(1) is None
    assert (store.load(), store.mark()) == (None, None)
    store.save_under(42, AT_NS, 1, LogMark(41, "{}"))
    assert store.begin_term(2) == 42
    for _ in range(2):
        with pytest.raises(StaleTermError):
            store.save_under(43, AT_NS, 1)
    with pytest.raises(StaleTermError):
        store.begin_term(1)
    assert (store.load(), store.mark()) == (42, LogMark(41, "{}"))
    store.save_under(44, AT_NS, 2)
    assert store.load() == 44


def test_a_relay_without_a_lease_may_not_save_over_a_term(store: FencedMaxScnStore) -> None:
    store.save(41, AT_NS)
    assert store.begin_term(7) == 41
    with pytest.raises(RingError, match="under a lease, term 7"):
        store.save(42, AT_NS)
    assert store.load() == 41


def test_relays_share_max_scn_in_every_kind_of_store(open_store: Callable[[], Records]) -> None:
    old, new = (RecordMaxScn(open_store(), "shop") for _ in range(2))
    assert old.begin_term(1) is None
    old.save_under(42, AT_NS, 1, LogMark(41, "{}"))
    assert new.begin_term(2) == 42
    with pytest.raises(StaleTermError):
        old.save_under(43, AT_NS, 1)
    assert (old.load(), new.mark()) == (42, LogMark(41, "{}"))
    assert RecordMaxScn(open_store(), "bank").load() is None


def test_a_line_with_a_term_cut_or_damaged_anywhere_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "shop.maxscn"
    FileMaxScn(file).save_under(1234567, AT_NS, 8, LogMark(41, "{}"))
    whole = file.read_bytes()
    assert b" term=8 crc=" in whole
    damaged = [whole[:at] for at in range(len(whole))]
    damaged += [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
    damaged += [b"none:- term=8\n", b"none:-\n", b"42:2023-11-14 term=8\n"]
    for content in damaged:
        file.write_bytes(content)
        with pytest.raises(RingError, match="damaged"):
            FileMaxScn(file).load()
        with pytest.raises(RingError, match="damaged"):
            FileMaxScn(file).save_under(1, AT_NS, 9)


def test_a_damaged_term_in_an_sqlite_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "maxscn.db"
    SqliteMaxScn(file, "shop").save_under(42, AT_NS, 8)
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE max_scn_terms SET term = 3")
    with pytest.raises(RingError, match="checksum of shop's term is wrong"):
        SqliteMaxScn(file, "shop").save_under(43, AT_NS, 8)


def test_without_a_lease_an_sqlite_file_is_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "maxscn.db"
    SqliteMaxScn(file, "shop").save(42, AT_NS)
    with closing(sqlite3.connect(file)) as database:
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    assert tables == [("max_scn",)]
