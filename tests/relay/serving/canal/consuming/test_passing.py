"""Which entries a consumer gets: by its filter, and after a rollback inside a transaction."""

from __future__ import annotations

from hypothesis import given, strategies as st

from databus.relay.ring.event_selector import WINDOW_DONE
from databus.relay.serving.canal.consuming.batches import Place
from databus.relay.serving.canal.consuming.passing import Item, Passing
from databus.relay.serving.canal.entries import Entry, Kind
from databus.relay.serving.canal.protocol.filters import TableFilter

BEGIN = Place((0, WINDOW_DONE))


def entry(kind: Kind, scn: int, offset: int, *tables: str) -> Entry:
    return Entry(f"{kind.value} {scn} {offset} {tables}".encode(), 10, kind, tables, scn, offset)


def window(scn: int, *tables: str) -> list[Entry]:
    rows = [entry(Kind.ROWS, scn, n, table) for n, table in enumerate(tables, 1)]
    return [entry(Kind.BEGIN, scn, 0), *rows, entry(Kind.END, scn, WINDOW_DONE)]


def kinds(items: list[Item]) -> list[str]:
    return [item.kind.value for item in items]


def passing(text: str = "", place: Place = BEGIN) -> Passing:
    return Passing("shop", TableFilter(text), place)


def test_rows_that_the_filter_rejects_are_left_out_and_transactions_without_any() -> None:
    selects = passing(r"a\.x")
    found = selects.take([*window(1, "a.y"), *window(2, "a.x", "a.y", "a.x"), *window(3, "a.y")])
    assert kinds(found) == ["begin", "rows", "rows", "end"]
    assert found[-1].place.settled == (2, WINDOW_DONE)
    assert selects.place.settled == (3, WINDOW_DONE)
    assert selects.place.rows_scn == 3


def test_empty_windows_move_the_place_only() -> None:
    selects = passing()
    assert selects.take(window(4)) == []
    assert selects.place == Place((4, WINDOW_DONE))
    selects.reach((9, WINDOW_DONE))
    selects.reach((11, 3))
    assert selects.place == Place((9, WINDOW_DONE))


def test_statements_pass_by_any_of_their_tables_or_without_one() -> None:
    selects = passing(r"a\.new")
    ddl = [
        entry(Kind.DDL, 1, WINDOW_DONE, "a.old", "a.new"),
        entry(Kind.DDL, 2, WINDOW_DONE, "b.t"),
        entry(Kind.DDL, 3, WINDOW_DONE),
    ]
    found = selects.take(ddl)
    assert [item.place.settled[0] for item in found] == [1, 3]
    assert selects.place.rows_scn == -1


@given(st.data())
def test_whatever_was_acknowledged_is_not_sent_again_and_all_else_is(data: st.DataObject) -> None:
    tables = st.lists(st.sampled_from(["a.x", "a.y"]), max_size=4)
    entries = [
        one
        for scn in range(1, data.draw(st.integers(2, 5)))
        for one in window(scn, *data.draw(tables))
    ]
    # Two statements may end at one event: what emptied tables makes such.
    entries += [entry(Kind.DDL, 9, 2, "a.x"), entry(Kind.DDL, 9, 2, "a.x")]
    entries += [entry(Kind.DDL, 9, WINDOW_DONE, "a.x")]
    text = data.draw(st.sampled_from(["", r"a\.x"]))
    everything = passing(text).take(entries)
    cut = data.draw(st.integers(1, len(everything)))
    place = everything[cut - 1].place
    # The relay reads again from the last whole window.
    again = [one for one in entries if one.scn > place.settled[0]]
    found = passing(text, place).take(again)
    assert [item.data for item in found] == [item.data for item in everything[cut:]]
