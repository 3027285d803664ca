"""The log that was read is known again, and a stream that lacks something is broken."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.adversity.proxy import WireProxy
from databus.relay.sources.mysql.binlog.packets import PacketReader, StreamBrokenError
from databus.relay.sources.mysql.replication.assembler import Assembler
from databus.relay.sources.mysql.replication.compiled_assembler import CompiledAssembler
from databus.relay.sources.mysql.replication.log_identities import Expected, Identities
from databus.relay.sources.mysql.replication.log_identity import (
    AnotherLogError,
    Identity,
    Proof,
    digest_of,
    first_event_crc,
)
from databus.relay.sources.source import ReadItem, Transaction
from databus.schemas.errors import SourceStoppedError, SourceUnavailableError
from databus.schemas.log_mark import LogMark
from databus.schemas.scn import BinlogPosition
from databus.schemas.windows import WindowBatch
from tests.mariadb_server import Database
from tests.relay.sources.mysql.binlog import events_made as made
from tests.relay.sources.mysql.reading import opened, read_changes, read_full, watching
from tests.relay.sources.mysql.replication.test_decoder import (
    DIALECT,
    TYPES,
    WRITE,
    compiled_assembler,
    image,
    packets,
    rows,
    stream,
    tables,
    transaction,
)
from tests.relay.sources.read_back import ReadSource

pytest_plugins = ["tests.mariadb", "tests.mysql", "tests.both_servers"]


def a_transaction(number: int = 7, *more: int) -> list[bytes]:
    return transaction(TYPES, *(rows(WRITE, image(n)) for n in (number, *more)))


def a_stream(*transactions: list[bytes]) -> list[bytes]:
    return stream(*itertools.chain(*transactions))


def strict(identities: Identities | None = None) -> Assembler:
    return Assembler(tables(), DIALECT, has_gaps=False, identities=identities)


def read_all(
    target: Assembler, events: Iterable[bytes], found: list[Transaction] | None = None
) -> list[Transaction]:
    """Feed a stream; return its transactions, into `found` if that is given."""
    found = [] if found is None else found
    for event in events:
        transaction = target.receive(event)
        if transaction is not None:
            found.append(transaction)
    return found


def pass_through(
    compiled: CompiledAssembler, data: bytes, found: list[ReadItem] | None = None
) -> None:
    found = [] if found is None else found
    for item in compiled.receive_bytes(data, len(data)):
        found.append(item)


def identities_of(events: list[bytes]) -> list[Identity]:
    """Return what the log is at each transaction of a stream."""
    target, found = strict(Identities("42")), []
    for made_one in read_all(target, events):
        identity = target.identities.at(made_one.scn)
        assert identity is not None
        found.append(identity)
    return found


def proving(kept: Identity) -> Assembler:
    return strict(Identities("42", Proof(kept, kept.place, "42")))


def test_the_transaction_that_is_there_is_not_yielded_again_but_what_follows_is() -> None:
    (kept, later) = identities_of(a_stream(a_transaction(), a_transaction(8)))
    target = proving(kept)
    found = [
        t for event in a_stream(a_transaction(), a_transaction(8)) if (t := target.receive(event))
    ]
    assert [t.scn for t in found] == [later.scn]


def test_other_rows_at_the_same_place_with_the_same_gtid_and_time_are_another_log() -> None:
    (kept,) = identities_of(a_stream(a_transaction(7)))
    target = proving(kept)
    with pytest.raises(AnotherLogError, match="digest") as caught:
        read_all(target, a_stream(a_transaction(8)))
    assert str(kept) in str(caught.value)
    assert caught.value.found.count("digest") == 1


def test_a_log_in_which_no_transaction_ends_there_is_another() -> None:
    (kept,) = identities_of(a_stream(a_transaction()))
    target = proving(kept)
    with pytest.raises(AnotherLogError):
        read_all(target, a_stream(a_transaction(7, 8)))


def test_a_file_that_was_begun_at_another_time_or_by_another_server_is_another() -> None:
    (kept,) = identities_of(a_stream(a_transaction()))
    younger = bytearray(made.format_description())
    younger[0] ^= 1
    with pytest.raises(AnotherLogError, match="begun"):
        feed_head(proving(kept), bytes(younger))
    other = strict(Identities("43", Proof(kept, kept.place, "43")))
    with pytest.raises(AnotherLogError, match=r"server_id 42.*server_id 43"):
        feed_head(other, made.format_description())


def feed_head(target: Assembler, format_description: bytes) -> None:
    target.receive(made.rotate(offset=500))
    target.receive(format_description)


def test_the_first_event_is_the_same_in_the_file_and_in_a_copy_of_it() -> None:
    in_file, copied = made.format_description(end_offset=256), made.format_description()
    assert first_event_crc(in_file) == first_event_crc(copied)
    in_use = bytearray(in_file)
    in_use[17] |= 1
    in_use[19 + 52 : 19 + 56] = b"\1\2\3\4"  # when the server was started
    assert first_event_crc(bytes(in_use)) == first_event_crc(copied)


def test_the_decoder_and_python_know_the_log_by_the_same_digests() -> None:
    events = a_stream(a_transaction(), a_transaction(8), a_transaction(9))
    wanted = identities_of(events)
    compiled = compiled_assembler()
    pass_through(compiled, packets(events))
    found = compiled.identities.at(wanted[-1].scn)
    assert found is not None
    assert (found.begin, found.digest, found.gtid) == (
        wanted[-1].begin,
        wanted[-1].digest,
        wanted[-1].gtid,
    )
    assert digest_of(0, 1, 2) != digest_of(0, 2, 1)


@pytest.mark.parametrize("number", [0, 1])
def test_a_later_transaction_that_was_kept_is_compared_as_it_is_passed(number: int) -> None:
    read = a_stream(a_transaction(), a_transaction(8), a_transaction(9))
    kept = identities_of(read)[number]
    other = a_stream(*[a_transaction(5 if at == number else 7 + at) for at in range(3)])
    for events, is_same in ((read, True), (other, False)):
        compiled = compiled_assembler()
        compiled.identities = Identities("42", expected=[Expected(kept.scn, kept)])
        with contextlib.nullcontext() if is_same else pytest.raises(AnotherLogError):
            pass_through(compiled, packets(events))
        target = strict(Identities("42", expected=[Expected(kept.scn, kept)]))
        with contextlib.nullcontext() if is_same else pytest.raises(AnotherLogError):
            read_all(target, events)


def test_a_newest_window_without_a_kept_log_is_known_by_its_place_and_time() -> None:
    events = a_stream(a_transaction(), a_transaction(8))
    scn, time_ns = identities_of(events)[0].scn, 1_700_000_000_123_456_000
    for expected in (Expected(scn + 1, None, time_ns), Expected(scn, None, time_ns + 1000)):
        target = strict(Identities("42", expected=[expected]))
        with pytest.raises(AnotherLogError):
            read_all(target, events)
    target = strict(Identities("42", expected=[Expected(scn, None, time_ns)]))
    assert len(read_all(target, events)) == 2


def test_a_file_that_is_younger_than_what_was_read_of_it_is_another() -> None:
    target = strict(Identities("42", born_before_ns=1_600_000_000 * 10**9))
    with pytest.raises(AnotherLogError, match="begun 2023"):
        feed_head(target, made.format_description())


def test_what_is_kept_is_read_again_and_anything_else_is_refused() -> None:
    (kept,) = identities_of(a_stream(a_transaction()))
    assert Identity.of(LogMark.decode(kept.mark().encode())) == kept
    strange = replace(kept, server='"\\', file="bin\u00e9.000001", gtid="0-1-2")
    assert Identity.of(LogMark.decode(strange.mark().encode())) == strange
    for text in ("{}", '{"digest":7}', "[]", "{"):
        with pytest.raises(ValueError, match=r"."):
            Identity.of(LogMark(1, text))


def test_a_gap_a_rotation_to_another_file_and_a_heartbeat_from_further_on_break_the_stream() -> (
    None
):
    whole = a_stream(a_transaction(), a_transaction(8))
    for missing in range(2, len(whole) - 1):
        found: list[Transaction] = []
        with pytest.raises(StreamBrokenError):
            read_all(strict(), [*whole[:missing], *whole[missing + 1 :]], found)
        assert len(found) == (missing - 2) // 5
    for file, offset in (("binlog.000009", 4), ("binlog.000007", 4), ("binlog.000001", 4)):
        target = strict()
        feed_head(target, made.format_description())
        with pytest.raises(StreamBrokenError, match="continues at"):
            target.receive(made.rotate(file, offset))
    target = strict()
    read_all(target, a_stream(a_transaction()))
    target.receive(made.heartbeat(made.FILE, 9000))
    with pytest.raises(StreamBrokenError, match="waits at"):
        target.receive(made.heartbeat(made.FILE, 9000))


def test_a_stream_asked_for_by_gtid_may_lack_whole_transactions_and_no_part_of_one() -> None:
    whole = a_stream(*[a_transaction(number) for number in range(4)])
    assert len(read_all(Assembler(tables(), DIALECT), [*whole[:7], *whole[12:]])) == 3
    for missing in range(8, 12):
        found: list[Transaction] = []
        left = [*whole[:missing], *whole[missing + 1 :]]
        with pytest.raises(StreamBrokenError):
            read_all(Assembler(tables(), DIALECT), left, found)
        assert len(found) == 1


@pytest.mark.parametrize("change", ["dropped", "doubled", "swapped"])
def test_packets_that_do_not_follow_each_other_break_the_stream_both_ways(change: str) -> None:
    events = a_stream(*[a_transaction(number) for number in range(20)])
    cut = [packets([event], number) for number, event in enumerate(events, 1)]
    at = 40
    new = {"dropped": [], "doubled": [cut[at]] * 2, "swapped": [cut[at + 1], cut[at]]}[change]
    data = b"".join([*cut[:at], *new, *cut[at + (2 if change == "swapped" else 1) :]])
    found: list[ReadItem] = []
    with pytest.raises(StreamBrokenError):
        pass_through(compiled_assembler(), data, found)
    # The table's first window goes alone: with it its rows' schema is registered.
    assert [batch.window_count for batch in found if isinstance(batch, WindowBatch)] == [1, 6]
    reading = PacketReader().receive(data)
    at += change == "doubled"
    assert [next(reading) for _ in range(at)] == events[:at]
    with pytest.raises(StreamBrokenError):
        next(reading)


@pytest.mark.parametrize("length", [0x00FFFE, 0x800000, 0xFFFFFF])
def test_a_packet_longer_than_its_event_breaks_the_stream_and_waits_for_no_more(
    length: int,
) -> None:
    events = a_stream(*[a_transaction(number) for number in range(4)])
    cut = [packets([event], number) for number, event in enumerate(events, 1)]
    at = 20
    bad = length.to_bytes(3, "little") + cut[at][3:]
    data = b"".join([*cut[:at], bad, *cut[at + 1 :]])
    with pytest.raises(StreamBrokenError):
        pass_through(compiled_assembler(), data, [])
    with pytest.raises(StreamBrokenError):
        list(PacketReader().receive(data))


@pytest.mark.parametrize("first", [1, 4, 5, 17, 18, 19, 40])
def test_a_packet_that_comes_in_pieces_is_waited_for(first: int) -> None:
    (event, *_) = a_stream(a_transaction(1))
    packet, reader = packets([event]), PacketReader()
    assert list(reader.receive(packet[:first])) == []
    assert list(reader.receive(packet[first:])) == [event]


# With servers.


@pytest.fixture
def shop(either_database: Database) -> Database:
    either_database.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    return either_database


class Dropping:
    """Leaves out so many packets of a dump, from the n-th on."""

    def __init__(self, after: int, count: int) -> None:
        self._left = after
        self._count = count

    def __call__(self, packet: bytes) -> list[bytes]:
        self._left -= 1
        return [] if -self._count <= self._left < 0 else [packet]


@pytest.mark.parametrize("count", [1, 5, 256])
def test_packets_that_are_lost_on_the_way_are_a_broken_connection(
    shop: Database, tmp_path: Path, count: int
) -> None:
    with WireProxy(shop.server.port) as proxy:
        uri = f"mysql://{shop.server.user}@127.0.0.1:{proxy.port}"
        settings = watching(shop, tmp_path, "t").model_copy(update={"uri": uri})
        with opened(settings) as source:
            begin = read_until_first(shop, source)
        proxy.tamper = Dropping(12, count)
        with opened(settings, begin) as source:
            shop.run(*(f"INSERT INTO t VALUES ({number}, 1)" for number in range(100, 180)))
            with pytest.raises(SourceUnavailableError, match="broken"):
                read_full(source, 80)


def read_until_first(shop: Database, source: ReadSource) -> int:
    shop.run("INSERT INTO t VALUES (1, 1)")
    (first,) = read_full(source, 1)
    return first.scn


def kept_of(source: ReadSource, scn: int) -> LogMark:
    found = source.mark_of(scn)
    assert found is not None
    return found


def test_a_quiet_log_is_at_its_end_once_the_server_says_so_and_no_sooner(
    shop: Database, tmp_path: Path
) -> None:
    with WireProxy(shop.server.port) as proxy:
        uri = f"mysql://{shop.server.user}@127.0.0.1:{proxy.port}"
        settings = watching(shop, tmp_path, "t").model_copy(update={"uri": uri})
        with opened(settings) as source:
            begin = read_until_first(shop, source)
            kept = kept_of(source, begin)
        # The answer to the request for the log never comes; after that, it does.
        proxy.tamper = lambda _packet: []
        for is_silent in (True, False):
            source = ReadSource(settings)
            source.expect([kept])
            source.open(begin)
            reads = [(list(source.read_transactions()), source.is_at_end) for _ in range(5)]
            source.close()
            assert [found for found, _ in reads] == [[]] * 5
            assert any(is_at_end for _, is_at_end in reads) is not is_silent


def test_a_log_that_is_the_same_goes_on_behind_what_was_read(
    shop: Database, tmp_path: Path
) -> None:
    settings = watching(shop, tmp_path, "t")
    with opened(settings) as source:
        begin = read_until_first(shop, source)
        kept = kept_of(source, begin)
    shop.run("FLUSH BINARY LOGS", "INSERT INTO t VALUES (2, 1)", "INSERT INTO t VALUES (3, 1)")
    source = ReadSource(settings)
    source.expect([kept])
    source.open(begin)
    assert [c.row["id"] for c in read_changes(source, 2)] == [2, 3]
    source.close()


def test_what_stands_between_a_rotation_and_a_stop_is_handed_over(
    shop: Database, tmp_path: Path
) -> None:
    settings = watching(shop, tmp_path, "t")
    with opened(settings) as source:
        begin = read_until_first(shop, source)
    shop.run("INSERT INTO t VALUES (2, 1)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (3, 1)")
    shop.run("SET SESSION binlog_format = 'STATEMENT'", "UPDATE t SET v = 2")
    with opened(settings, begin) as source:
        assert [c.row["id"] for c in read_changes(source, 2)] == [2, 3]
        with pytest.raises(SourceStoppedError):
            read_full(source, 1)


def refuse_any_end(source: ReadSource) -> None:
    """Read until it raises; nothing comes before that, and it is never the end of the log."""
    for _ in range(100):
        assert (list(source.read_transactions()), source.is_at_end) == ([], False)


def test_a_kept_transaction_with_another_digest_stops_with_both(
    shop: Database, tmp_path: Path
) -> None:
    settings = watching(shop, tmp_path, "t")
    with opened(settings) as source:
        begin = read_until_first(shop, source)
        kept = kept_of(source, begin)
    identity = Identity.of(kept)
    digest = f"{identity.digest:016x}"
    source = ReadSource(settings)
    source.expect([LogMark(kept.scn, kept.text.replace(digest, f"{identity.digest ^ 1:016x}"))])
    source.open(begin)
    with pytest.raises(SourceStoppedError) as caught:
        refuse_any_end(source)
    source.close()
    for word in ("Kept: ", "Found: ", digest, identity.server, "epoch", "begin anew"):
        assert word in str(caught.value)
    assert digest.encode() in caught.value.evidence


def test_a_place_behind_the_end_of_the_log_stops_with_what_was_kept(
    shop: Database, tmp_path: Path
) -> None:
    settings = watching(shop, tmp_path, "t")
    with opened(settings) as source:
        begin = read_until_first(shop, source)
        identity = Identity.of(kept_of(source, begin))
    place = identity.place
    later = BinlogPosition(place.epoch, place.file_number, place.offset + 1_000_000).to_scn()
    source = ReadSource(settings)
    source.expect([LogMark(later, identity.mark().text)])
    with pytest.raises(SourceStoppedError, match=r"is not in the server's log.* Kept: .* Found: "):
        source.open(later)
