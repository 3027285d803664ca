"""The door: what clients of Canal get over real sockets."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.relay.serving.canal.door import door as module
from databus.relay.serving.canal.protocol.packets import PacketType
from databus.relay.serving.canal.protocol.passwords import hash_of
from databus.schemas.errors import SettingsError
from tests.relay.fakes import ORDERS, insert, transaction, wait_until
from tests.relay.serving.canal.door.served_canal import ServedCanal, drain, kinds, rows
from tests.relay.serving.canal.raw_client import RawClient, RefusedError

SECONDS = 3  # Canal's unit


@pytest.fixture
def canal(tmp_path: Path) -> Iterator[ServedCanal]:
    found = ServedCanal(tmp_path)
    yield found
    found.close()


def test_transactions_come_in_order_and_once(canal: ServedCanal) -> None:
    canal.put(*(rows(scn, 2) for scn in range(1, 4)))
    client = canal.client()
    batch = client.get()
    assert (batch.id, kinds(batch)) == (1, "BIEBIEBIE")
    assert batch.keys == [10, 11, 20, 21, 30, 31]
    assert (client.get().id, client.get().entries) == (-1, [])
    client.ack(1)
    client.ack(-1)
    canal.put(rows(4))
    assert drain(client) == [40]


def test_several_batches_are_outstanding_and_a_rollback_sends_them_again(
    canal: ServedCanal,
) -> None:
    canal.put(*(rows(scn) for scn in range(1, 7)))
    client = canal.client()
    client.close()
    canal.close_and_open_again(batch_mode="itemsize")
    client = canal.client()
    assert [client.get(3).keys for _ in range(4)] == [[10], [20], [30], [40]]
    client.ack(1)
    client.ack(2)
    client.roll_back(3)
    batches = [client.get(3) for _ in range(2)]
    assert [(one.id, one.keys) for one in batches] == [(5, [30]), (6, [40])]
    client.roll_back()
    assert drain(client, 3) == [30, 40, 50, 60]


def test_a_batch_may_end_inside_a_transaction_and_a_rollback_goes_on_there(
    tmp_path: Path,
) -> None:
    canal = ServedCanal(tmp_path, batch_mode="itemsize")
    try:
        changes = [insert(n) if n % 2 else insert(n, table=ORDERS) for n in range(6)]
        canal.put(transaction(1, *changes), rows(2))
        client = canal.client()
        first = client.get(3)
        assert (kinds(first), first.keys) == ("BII", [0, 1])
        client.ack(first.id)
        assert client.get(2).keys == [2, 3]
        client.roll_back()
        assert client.get(2).keys == [2, 3]
        client.close()
        canal.close_and_open_again(batch_mode="itemsize")
        # What is kept are whole transactions.
        assert drain(canal.client(), 3) == [0, 1, 2, 3, 4, 5, 20]
    finally:
        canal.close()


def test_memsize_counts_bytes_of_the_log_and_one_entry_is_always_sent(canal: ServedCanal) -> None:
    canal.put(*(rows(scn, 1, "y" * 3000) for scn in range(1, 4)))
    client = canal.client()
    assert [client.get(1).keys for _ in range(3)] == [[10], [20], [30]]
    assert kinds(client.get(1)) == "E"


def test_a_cursor_outlives_the_relay_and_a_restart_sends_what_was_not_acknowledged(
    canal: ServedCanal,
) -> None:
    canal.put(rows(1), rows(2))
    client = canal.client()
    client.ack(client.get().id)
    canal.put(rows(3))
    assert client.get().keys == [30]
    kept = canal.settings.data_dir / "canal" / "example" / "1001.json"
    wait_until(lambda: json.loads(kept.read_text())["sources"]["shop"]["windowScn"] == 2)
    canal.close_and_open_again()
    again = canal.connect().login()
    # It has not subscribed again: a subscription outlives connections, too.
    assert again.get().keys == [30]


def test_a_client_that_has_not_subscribed_is_told_so(canal: ServedCanal) -> None:
    client = canal.connect().login()
    client.roll_back()
    with pytest.raises(RefusedError, match="should subscribe first"):
        client.get()
    client.ack(1)
    with pytest.raises(RefusedError, match="should subscribe first"):
        client.get()
    client.subscribe()
    client.unsubscribe()
    with pytest.raises(RefusedError, match="should subscribe first"):
        client.get()
    assert not list((canal.settings.data_dir / "canal" / "example").iterdir())


def test_an_unknown_destination_is_refused(canal: ServedCanal) -> None:
    client = canal.connect("other").login()
    with pytest.raises(RefusedError, match=r"destination:other should start first.*has example"):
        client.subscribe()


def test_client_ids_have_cursors_and_filters_of_their_own(canal: ServedCanal) -> None:
    canal.put(transaction(1, insert(1), insert(2, table=ORDERS)))
    everything, orders = canal.client("1"), canal.client("-2", r"SHOP\.orders")
    assert everything.get().keys == [1, 2]
    assert orders.get().keys == [2]
    orders.ack(1)
    canal.put(rows(2), transaction(3, insert(3, table=ORDERS)))
    assert orders.get().keys == [3]
    everything.roll_back()
    assert everything.get().keys == [1, 2, 20, 3]
    # Another filter holds for what was not sent yet.
    orders.subscribe(r"shop\.person")
    canal.put(rows(4), transaction(5, insert(5, table=ORDERS)))
    assert orders.get().keys == [40]


def test_a_filter_that_passes_nothing_moves_the_cursor(canal: ServedCanal) -> None:
    canal.put(rows(1), rows(2))
    client = canal.client(filter_text=r"other\..*")
    assert client.get().id == -1
    wait_until(lambda: place_of(canal)["ackedScn"] == "2")


def place_of(canal: ServedCanal) -> dict[str, object]:
    (destination,) = canal.view()["destinations"]
    (consumer,) = destination["consumers"]
    (place,) = consumer["places"]
    assert isinstance(place, dict)
    return place


def test_a_bad_filter_is_an_error_and_the_client_stays_as_it_was(canal: ServedCanal) -> None:
    canal.put(rows(1))
    client = canal.client(filter_text=r"shop\..*")
    with pytest.raises(RefusedError, match="cannot be used"):
        client.subscribe("(")
    assert client.get().keys == [10]


def test_a_request_waits_for_a_full_batch_until_its_time_is_over(canal: ServedCanal) -> None:
    client = canal.client()
    client.ask(1, timeout=20, unit=SECONDS)
    canal.put(rows(1, 1, "y" * 3000))
    assert client.batch().keys == [10]
    client.ask(1000, timeout=50)
    canal.put(rows(2))
    assert client.batch().keys in ([], [20])


def test_a_wait_without_an_end_ends(tmp_path: Path) -> None:
    canal = ServedCanal(tmp_path, max_wait_s=0.05)
    try:
        assert canal.client().get(timeout=0).id == -1
    finally:
        canal.close()


def test_a_rollback_from_another_connection_ends_a_wait(canal: ServedCanal) -> None:
    gone, client = canal.client(), canal.connect().login()
    gone.ask(timeout=20, unit=SECONDS)
    wait_until(lambda: canal.relay.traffic.held_requests == 1)
    client.roll_back()
    assert gone.batch().id == -1
    canal.put(rows(1))
    assert client.get().keys == [10]


def test_a_killed_client_loses_nothing(canal: ServedCanal) -> None:
    canal.put(rows(1))
    client = canal.client()
    assert client.get().keys == [10]
    client.ask(timeout=20, unit=SECONDS)
    wait_until(lambda: canal.relay.traffic.held_requests == 1)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    wait_until(lambda: canal.relay.traffic.held_requests == 0)
    canal.put(rows(2))
    assert drain(canal.client()) == [10, 20]


def test_a_cursor_that_no_rung_reaches_is_an_error_with_a_way_on(tmp_path: Path) -> None:
    source = {"name": "shop", "uri": "fake:", "ring_bytes": 64 << 10}
    source["sources"] = ["shop.person", "shop.orders"]
    canal = ServedCanal(tmp_path, relay={"physical_sources": [source]})
    try:
        canal.put(rows(1))
        client = canal.client()
        client.ack(client.get().id)
        canal.put(*(rows(scn, 1, "y" * 4000) for scn in range(2, 40)))
        with pytest.raises(RefusedError, match=r"no longer held: scn 1 is gone.*Unsubscribe"):
            client.get()
        assert "is gone" in canal.view()["destinations"][0]["consumers"][0]["problem"]
        client.unsubscribe()
        client.subscribe()
        assert client.get().keys[-1] == 390
    finally:
        canal.close()


def test_a_cursor_of_another_log_is_refused(canal: ServedCanal) -> None:
    canal.put(rows(1), rows(2))
    client = canal.client()
    client.ack(client.get().id)
    kept = canal.settings.data_dir / "canal" / "example" / "1001.json"
    wait_until(lambda: "mark_ts" in kept.read_text())
    canal.close()
    cursor = json.loads(kept.read_text())
    cursor["sources"]["shop"]["databus_mark_ts"] += 1
    kept.write_text(json.dumps(cursor))
    canal.open()
    with pytest.raises(RefusedError, match=r"checkpoint is of another log of shop.*unsubscribe"):
        canal.connect().login().get()


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"version":1,"destination":"x","clientId":1}'])
def test_a_cursor_that_cannot_be_read_is_an_error(canal: ServedCanal, text: str) -> None:
    canal.client().close()
    kept = canal.settings.data_dir / "canal" / "example" / "1001.json"
    canal.close()
    kept.write_text(text)
    canal.open()
    with pytest.raises(RefusedError, match=r"cursor .*1001.json cannot be used.*remove it"):
        canal.connect().login().get()


def test_nobody_is_served_without_the_password(tmp_path: Path, monkeypatch: object) -> None:
    hash_file = tmp_path / "canal.hash"
    hash_file.write_text(hash_of(b"secret").hex())
    hash_file.chmod(0o600)
    canal = ServedCanal(tmp_path, user="canal", password_hash_file=str(hash_file))
    try:
        for user, password in (("canal", b"x"), ("other", b"secret"), ("canal", None)):
            client = canal.connect()
            with pytest.raises(RefusedError, match=f"auth failed for user:{user}"):
                client.login(user, password)
            client.is_closed()
        with pytest.raises(RefusedError, match=r"in clear text.*plain_passwords = true"):
            canal.connect().login("canal", plain=b"secret")
        for kind in (PacketType.SUBSCRIPTION, PacketType.GET, PacketType.CLIENT_ACK):
            client = canal.connect()
            client.send(kind, client.identity())
            client.is_closed()
        assert canal.view()["destinations"][0]["consumers"] == []
        assert canal.view()["refusedLogins"] == 7
        canal.connect().login("canal", b"secret").subscribe()
    finally:
        canal.close()


def test_an_address_that_others_reach_needs_a_password(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="password_hash_file"):
        ServedCanal(tmp_path, host="0.0.0.0")


def test_a_malformed_frame_closes_its_connection_only(canal: ServedCanal) -> None:
    canal.put(rows(1))
    client = canal.client()
    for data in (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", struct.pack(">i", 3) + b"\xff" * 3):
        other = canal.connect()
        other.socket.sendall(data)
        other.is_closed()
    assert canal.view()["badFrames"] == 3
    assert client.get().keys == [10]


def test_connections_are_limited(tmp_path: Path) -> None:
    canal = ServedCanal(tmp_path, max_connections=2)
    try:
        first, _ = canal.client(), canal.client()
        with pytest.raises(ConnectionError):
            canal.connect()
        assert canal.view()["refusedConnections"] == 1
        first.close()
        wait_until(lambda: canal.view()["connections"] == 1)
        canal.client()
    finally:
        canal.close()


def test_connections_without_a_login_keep_no_client_out(tmp_path: Path) -> None:
    canal = ServedCanal(tmp_path, max_connections=3)
    try:
        one = canal.client()
        silent = [canal.connect() for _ in range(5)]
        canal.put(rows(1))
        canal.client(client_id="1002")
        assert one.get().keys == [10]
        assert silent[0].is_closed()
        assert canal.view()["connections"] == 3
        assert canal.view()["refusedConnections"] == 4
    finally:
        canal.close()


def test_a_silent_connection_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOGIN_S", 2.0)
    canal = ServedCanal(tmp_path, idle_connection_s=2.0)
    try:
        canal.connect().is_closed()
        canal.client().is_closed()
    finally:
        canal.close()


def test_requests_that_are_sent_at_once_are_answered_in_order(canal: ServedCanal) -> None:
    canal.put(rows(1))
    client = canal.client()
    for _ in range(300):
        client.ask(1)
    ids = [client.batch().id for _ in range(300)]
    assert ids[:3] == [1, -1, -1]


def test_a_new_client_may_begin_with_the_next_change(tmp_path: Path) -> None:
    destination = {"name": "example", "physical_sources": ["shop"], "start": "latest"}
    canal = ServedCanal(tmp_path, destinations=[destination])
    try:
        canal.put(rows(1))
        client = canal.client()
        assert client.get().id == -1
        canal.put(rows(2))
        assert client.get().keys == [20]
        client.roll_back()
        assert client.get().keys == [20]
    finally:
        canal.close()


def test_what_was_read_before_the_first_acknowledgement_comes_again_after_a_restart(
    tmp_path: Path,
) -> None:
    source = {"name": "shop", "uri": "fake:", "ring_bytes": 64 << 10}
    source["sources"] = ["shop.person", "shop.orders"]
    canal = ServedCanal(tmp_path, relay={"physical_sources": [source]})
    try:
        canal.put(rows(1))
        client = canal.client()
        assert client.get().keys == [10]
        canal.put(*(rows(scn, 1, "y" * 4000) for scn in range(2, 40)))
        client.roll_back()
        # Not the oldest window that is left: the ones before it were never acknowledged.
        with pytest.raises(RefusedError, match="no longer held"):
            client.get()
    finally:
        canal.close()


def test_the_door_is_in_metrics(canal: ServedCanal) -> None:
    canal.put(rows(1))
    canal.client().get()
    text = canal.get("/metrics").body.decode()
    labels = '{client_id="1001",destination="example"}'
    assert f"databus_canal_outstanding_batches{labels} 1.0" in text
    assert f"databus_canal_entries_total{labels} 3.0" in text
    assert "databus_canal_connections 1.0" in text


def test_a_relay_that_closes_ends_a_wait_at_once(tmp_path: Path) -> None:
    canal = ServedCanal(tmp_path)
    client = canal.client()
    client.ask(timeout=20, unit=SECONDS)
    wait_until(lambda: canal.relay.traffic.held_requests == 1)
    began = time.monotonic()
    canal.close()
    assert time.monotonic() - began < 20  # the time for which it was asked to wait
    assert isinstance(client, RawClient)
