"""While the coordinator is away nobody takes over, and nothing is lost when it is back."""

from __future__ import annotations

from pathlib import Path

from tests.promises.running import RunningRelay, Shop, wait_until
from tests.promises.standby.pair import Pair, is_active, paired, role
from tests.promises.standby.test_take_over import rows_of
from tests.zookeeper_server import PrivateZookeeper


def wait_for_rows(count: int, *relays: RunningRelay) -> None:
    for relay in relays:
        wait_until(lambda r=relay: rows_of(r) == count, f"{count} rows", relay.tell)  # type: ignore[misc]


def test_the_owner_goes_on_until_its_lease_has_run_out_and_then_when_zookeeper_is_back(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path / "shop.db")
    with PrivateZookeeper() as zookeeper:
        pair = Pair(tmp_path, shop.settings(capture_lease_s=6.0), zookeeper.url())
        with paired(pair):
            active = pair.wait_for_active()
            standby = pair.other(active)
            shop.insert(*range(10))
            wait_for_rows(10, active, standby)
            zookeeper.kill()
            shop.insert(*range(10, 20))
            wait_for_rows(20, active, standby)  # the lease lasts, and the other one follows
            wait_until(lambda: not is_active(active), "the lease to run out", active.tell)
            for relay in pair.relays:
                wait_until(lambda r=relay: role(r)["problem"], "the problem", relay.tell)  # type: ignore[misc]
                assert relay.get("/health").status == 503
                assert not is_active(relay)
                assert rows_of(relay) == 20  # what is there is served
            shop.insert(*range(20, 30))
            zookeeper.start()
            pair.wait_for_active()
            shop.insert(*range(30, 40))
            wait_for_rows(40, active, standby)
            assert sum(map(is_active, pair.relays)) == 1
            wait_until(lambda: active.windows() == standby.windows(), "the same windows")
    shop.close()
