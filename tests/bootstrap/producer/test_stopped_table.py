"""A table that the relay has stopped alone: a producer reads the others on, and seeds it later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from databus.bootstrap.producer import producer as producing
from databus.bootstrap.producer.producer import Producer
from databus.bootstrap.server.checks import check_served
from databus.bootstrap.store.store import Store
from databus.bootstrap.store.values import SourceStatus
from databus.conf.named_places import ScnPlace
from databus.relay.sources.source import RowChange
from databus.schemas.errors import BootstrapTooOldError
from databus.schemas.event.metadata import Op
from tests import PATIENCE_S
from tests.bootstrap.producer.child import settings_for
from tests.relay.fakes import ORDERS, PERSON, ServedRelay, insert, transaction, wait_until
from tests.relay.test_stopped_table import UNFIT, of_both

BOTH = ("shop.person", "shop.orders")


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[ServedRelay]:
    with closing(ServedRelay(tmp_path / "relay", is_reread=True)) as relay:
        relay.put(of_both(1), of_both(2))
        yield relay


def serve_all(store: Store, scn: int) -> None:
    wait_until(lambda: store.position().scn == scn)
    for name in BOTH:
        store.begin_seeding(name, scn, 0)
        store.end_seeding(name, scn)
    store.activate_caught_up()


def status_of(store: Store, name: str) -> SourceStatus:
    return store.source(name).status


@pytest.mark.parametrize("is_repaired", [False, True], ids=["restart", "repair"])
def test_the_others_are_read_on_and_the_table_is_seeded_again(
    tmp_path: Path, relay: ServedRelay, monkeypatch: pytest.MonkeyPatch, is_repaired: bool
) -> None:
    monkeypatch.setattr(producing, "LOOK_EVERY_S", 0.05)
    path = tmp_path / "shop.db"
    producer = Producer(*settings_for(path, relay.url, sources=BOTH), path)
    producer.start()
    with closing(Store.open(path)) as store:
        serve_all(store, 2)
        relay.put(transaction(3, insert(3, "x", PERSON), UNFIT), of_both(4))
        wait_until(lambda: store.position().scn == 4)
        assert status_of(store, "shop.person") is SourceStatus.ACTIVE
        stopped = store.source("shop.orders")
        assert stopped.status is SourceStatus.INACTIVE
        assert "shop.orders is stopped after scn 2" in stopped.problem
        with pytest.raises(BootstrapTooOldError, match="stopped after scn 2"):
            check_served(stopped)
        assert "shop.orders is stopped after scn 2" in producer.problem
        # The row is mended, and the table taken in again, or capture begins again there.
        relay.source()._log[2] = of_both(3)
        shop = relay.relay.physical_sources["shop"]
        if is_repaired:
            relay.relay.control.repair(shop, "shop.orders", None, None)
        else:
            relay.relay.control.restart(shop, ScnPlace(2))
        wait_until(lambda: status_of(store, "shop.orders") is SourceStatus.NEW)
        relay.put(of_both(5))
        wait_until(lambda: store.position().scn == 5)
        wait_until(lambda: producer.is_healthy)
        assert status_of(store, "shop.person") is SourceStatus.ACTIVE
        assert store.source("shop.orders").log_floor_scn >= 4
    assert producer.stop(PATIENCE_S)


def test_a_pair_of_that_table_alone_waits_with_all_that_it_has(
    tmp_path: Path, relay: ServedRelay
) -> None:
    path = tmp_path / "shop.db"
    producer = Producer(*settings_for(path, relay.url, sources=BOTH[1:]), path)
    producer.start()
    with closing(Store.open(path)) as store:
        wait_until(lambda: store.position().scn == 2)
        relay.put(transaction(3, RowChange(ORDERS, Op.INSERT, {"id": 3})), of_both(4))
        wait_until(lambda: "shop.orders is stopped after scn 2" in producer.problem)
        assert (store.position().scn, status_of(store, "shop.orders")) == (2, SourceStatus.NEW)
    assert producer.stop(PATIENCE_S)
