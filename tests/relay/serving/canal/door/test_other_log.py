"""A cursor whose log is another one now: the client is never served what lies behind by chance."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from databus.relay.serving.canal.consuming import consumer as consumer_module
from databus.relay.sources.source import Transaction
from tests.relay.fakes import ORDERS, insert, transaction, wait_until
from tests.relay.serving.canal.door.served_canal import ServedCanal, drain, rows
from tests.relay.serving.canal.raw_client import RefusedError

PEOPLE = r"shop\.person"


@pytest.fixture
def canal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedCanal]:
    monkeypatch.setattr(consumer_module, "PASSED_EVERY_S", 0.0)
    found = ServedCanal(tmp_path)
    yield found
    found.close()


def orders(scn: int) -> Transaction:
    return transaction(scn, insert(scn * 10, "x", ORDERS))


def begin_another_log(canal: ServedCanal) -> None:
    """Take everything from the relay but the cursors; its source has nothing of before."""
    canal.close()
    for path in canal.settings.data_dir.iterdir():
        if path.name != "canal":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    canal.sources.clear()
    canal.open()


def view(canal: ServedCanal) -> dict[str, Any]:
    (found,) = canal.view()["destinations"][0]["consumers"]
    return dict(found)


def acked_scn(canal: ServedCanal) -> str | None:
    scn: str | None = view(canal)["places"][0]["ackedScn"]
    return scn


def kept(canal: ServedCanal) -> str:
    path = canal.settings.data_dir / "canal" / "example" / "1001.json"
    return path.read_text() if path.exists() else ""


def test_a_cursor_that_only_rows_of_others_have_moved_is_refused_on_another_log(
    canal: ServedCanal,
) -> None:
    canal.put(orders(10), orders(20))
    client = canal.client(filter_text=PEOPLE)
    assert client.get().id == -1
    assert acked_scn(canal) == "20"
    wait_until(lambda: '"databus_mark_scn": 20' in kept(canal))
    begin_another_log(canal)
    canal.put(rows(5), orders(15), rows(25))
    with pytest.raises(RefusedError, match="another log"):
        canal.client(filter_text=PEOPLE).get()
    client = canal.client(filter_text=PEOPLE)
    client.unsubscribe()
    assert drain(canal.client(filter_text=PEOPLE)) == [50, 250]


def test_a_cursor_before_anything_was_acknowledged_is_refused_on_another_log(
    canal: ServedCanal,
) -> None:
    canal.put(rows(10))
    assert canal.client().get().keys == [100]
    wait_until(lambda: '"databus_mark_scn": 10' in kept(canal))
    begin_another_log(canal)
    canal.put(rows(5), rows(11), rows(15))
    with pytest.raises(RefusedError, match="another log"):
        canal.client().get()


def test_a_cursor_without_any_row_before_it_begins_with_the_oldest_of_another_log(
    canal: ServedCanal,
) -> None:
    canal.put(transaction(10))
    assert canal.client().get().id == -1
    wait_until(lambda: '"windowScn": 10' in kept(canal))
    assert "mark" not in kept(canal)
    begin_another_log(canal)
    canal.put(rows(5), rows(15))
    assert drain(canal.client()) == [50, 150]


def test_a_cursor_without_any_row_before_it_goes_on_at_its_own_relay(
    canal: ServedCanal,
) -> None:
    canal.put(transaction(10))
    canal.client().get()
    wait_until(lambda: '"windowScn": 10' in kept(canal))
    canal.close_and_open_again()
    canal.put(rows(20))
    assert drain(canal.client()) == [200]


def test_a_cursor_that_is_ahead_is_shown_and_refused_once_another_log_has_come_so_far(
    canal: ServedCanal,
) -> None:
    canal.put(rows(10), rows(20))
    drain(canal.client())
    wait_until(lambda: '"databus_mark_scn": 20' in kept(canal))
    begin_another_log(canal)
    canal.put(rows(5))
    client = canal.client()
    assert client.get().id == -1
    (place,) = view(canal)["places"]
    assert (place["behindS"], place["ackedScn"], place["newestScn"]) == (None, "20", "5")
    assert "is ahead of scn 5" in place["problem"]
    canal.put(rows(25))
    with pytest.raises(RefusedError, match="another log"):
        client.get()
