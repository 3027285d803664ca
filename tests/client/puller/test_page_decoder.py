"""From a bootstrap answer's bytes to a page."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from databus.client.dispatcher.data_window import DataWindow
from databus.client.puller.buffer_items import Phase
from databus.client.puller.page_decoder import PageDecoder
from databus.client.puller.unknown_schemas import UnknownSchemaError
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import ProtocolError, WindowTooLargeError
from databus.schemas.event.control import checkpoint_event, end_of_period, error_event
from databus.schemas.event.event import Event
from databus.schemas.event.v1 import encode as encode_v1
from databus.schemas.event.v2 import encode
from databus.schemas.stream.row_event import KEY, SCN, SRC_ID, row_bytes
from tests.client.shop import (
    CUSTOMERS_ID,
    ORDERS_ID,
    WIDER_ORDERS,
    change,
    customer,
    emptied,
    order,
    shop_bindings,
)

SNAPSHOT = Checkpoint.at(3).start_bootstrap().with_start_scn(10).start_snapshot("shop.orders", 0)
CATCH_UP = SNAPSHOT.end_snapshot().with_target_scn(20).start_catch_up("shop.orders", 0)
END = encode(checkpoint_event(SNAPSHOT.after_snapshot_row(7)))


def make_decoder(
    since: Checkpoint = SNAPSHOT,
    src_ids: tuple[int, ...] = (ORDERS_ID, CUSTOMERS_ID),
    max_window_bytes: int = 1 << 20,
) -> PageDecoder:
    decoder = PageDecoder(max_window_bytes)
    decoder.use(shop_bindings())
    decoder.begin(src_ids, since)
    return decoder


def bytes_of(*events: Event) -> bytes:
    return b"".join(map(encode, events))


@given(st.lists(st.tuples(st.integers(4, 10), st.booleans()), max_size=12), st.integers(1, 90))
def test_a_page_has_its_events_in_order_whatever_their_scns_and_the_chunks(
    rows: list[tuple[int, bool]], chunk_bytes: int
) -> None:
    events = [customer(scn, n) if other else order(scn, n) for n, (scn, other) in enumerate(rows)]
    data = bytes_of(*events) + END
    decoder = make_decoder()
    for at in range(0, len(data), chunk_bytes):
        decoder.receive(data[at : at + chunk_bytes])
    facts = decoder.end()
    assert facts is not None
    assert (facts.event_count, facts.checkpoint.snapshot_offset) == (len(rows), 7)
    page = decoder.take(SNAPSHOT.after_snapshot_row(7), 10)
    seen = [(e[SCN], e[SRC_ID], e[KEY], row_bytes(e)) for e in page.window.events]
    assert seen == [(e.scn, e.src_id, e.key, e.value) for e in events]
    assert page.size_bytes == len(data)
    assert (page.window.scn, page.phase) == (10, Phase.SNAPSHOT)


def test_a_page_may_say_that_a_table_was_emptied() -> None:
    decoder = make_decoder()
    decoder.receive(bytes_of(emptied(5), order(6)) + END)
    assert decoder.end() is not None
    page = decoder.take(SNAPSHOT.after_snapshot_row(7), 10)
    assert [event.is_truncate for event in DataWindow(page).events] == [True, False]


def test_events_of_version_1_are_read_as_well() -> None:
    decoder = make_decoder()
    decoder.receive(encode_v1(order(5)) + encode_v1(order(4)) + END)
    assert decoder.end() is not None


def test_a_page_of_the_log_leads_to_its_window() -> None:
    decoder = make_decoder(CATCH_UP)
    decoder.receive(bytes_of(order(11), order(12)) + END)
    facts = decoder.end()
    assert facts is not None
    assert facts.timestamp_ns == 1012
    page = decoder.take(CATCH_UP.after_log_rows(12, 1), 10)
    assert (page.window.scn, page.window.timestamp_ns, page.phase) == (12, 1012, Phase.CATCH_UP)


@pytest.mark.parametrize("scns", [(12, 11), (11, 12, 11), (9, 11), (10, 11), (11, 21)])
def test_log_rows_out_of_order_are_refused(scns: tuple[int, ...]) -> None:
    decoder = make_decoder(CATCH_UP)
    decoder.receive(bytes_of(*map(order, scns)) + END)
    with pytest.raises(ProtocolError, match="11 to 20 were requested"):
        decoder.end()


def test_a_window_may_go_on_in_the_next_page() -> None:
    decoder = make_decoder(CATCH_UP.after_log_rows(12, 1))
    decoder.receive(bytes_of(order(12), order(13)) + END)
    assert decoder.end() is not None


def test_an_empty_answer_is_no_page() -> None:
    assert make_decoder().end() is None


def test_a_page_without_its_checkpoint_is_damage() -> None:
    decoder = make_decoder()
    decoder.receive(bytes_of(order(5)))
    with pytest.raises(ProtocolError, match="without the checkpoint"):
        decoder.end()


def test_a_page_that_ends_inside_an_event_is_damage() -> None:
    decoder = make_decoder()
    decoder.receive(bytes_of(order(5)) + END[:-3])
    with pytest.raises(ProtocolError, match="into an event"):
        decoder.end()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (END + END, "two checkpoints"),
        (encode(end_of_period(5, 6)), "end of window 5"),
        (encode(error_event(-4, "out of memory")), "error event -4: out of memory"),
    ],
)
def test_what_has_no_place_in_a_page_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem):
        make_decoder().receive(data)


def test_bytes_after_the_checkpoint_are_refused() -> None:
    decoder = make_decoder()
    decoder.receive(END)
    with pytest.raises(ProtocolError, match="after the page's checkpoint"):
        decoder.receive(b"\x02")


def test_events_of_a_source_that_was_not_asked_for_are_refused() -> None:
    decoder = make_decoder(src_ids=(ORDERS_ID,))
    decoder.receive(bytes_of(order(5), customer(5)) + END)
    with pytest.raises(ProtocolError, match="source 41, which was not asked for"):
        decoder.end()


def test_an_unknown_schema_is_told_apart_from_damage() -> None:
    decoder = make_decoder()
    wide = change(5, {"id": 1, "item": "tea", "note": None}, WIDER_ORDERS)
    decoder.receive(bytes_of(order(5), wide) + END)
    with pytest.raises(UnknownSchemaError):
        decoder.end()


def test_an_event_without_a_row_is_refused() -> None:
    decoder = make_decoder()
    decoder.receive(bytes_of(order(5)._replace(payload=None)) + END)
    with pytest.raises(ProtocolError, match="without a row"):
        decoder.end()


def test_a_page_beyond_the_limit_is_refused_by_its_own_error() -> None:
    decoder = make_decoder(max_window_bytes=300)
    with pytest.raises(WindowTooLargeError):
        decoder.receive(bytes_of(*(order(5, n) for n in range(10))))


def test_nothing_of_a_broken_answer_is_in_the_next_page() -> None:
    decoder = make_decoder()
    decoder.receive(bytes_of(order(5)))
    decoder.begin((ORDERS_ID,), SNAPSHOT)
    decoder.receive(bytes_of(order(6)) + END)
    decoder.end()
    (event,) = decoder.take(SNAPSHOT.after_snapshot_row(7), 10).window.events
    assert event[SCN] == 6
