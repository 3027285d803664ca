"""The relay that takes over goes on at the server that was read last, and in its epoch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.promises.running import Remembering, RunningRelay, consuming, wait_until
from tests.promises.standby.pair import Pair, is_active, paired, role
from tests.promises.switching.server_pair import Load, ServerPair
from tests.promises.switching.test_switch import pair, source_of

pytest_plugins = ["tests.mysql"]

__all__ = ["pair"]  # the fixture


def relays_of(pair: ServerPair, folder: Path) -> Pair:
    return Pair(folder, source_of(pair, folder), f"file:{folder / 'leases'}")


def epochs(relay: RunningRelay) -> list[tuple[int, str, int]]:
    found = relay.get("/api/v1/physicalSources/shop/epochs").json()["epochs"]
    return [(one["number"], one["uri"], one["firstScn"]) for one in found]


def wait_for_rows(consumer: Remembering, wanted: Sequence[int], *relays: RunningRelay) -> None:
    def tell() -> str:
        return "\n".join(one.child.log_tail() for one in relays)

    def ids() -> list[int]:
        return [event.row["id"] for event in consumer.events]

    wait_until(lambda: ids()[-1:] == list(wanted[-1:]), f"row {wanted[-1]}", tell)
    assert ids() == list(wanted)


def test_a_standby_takes_over_at_the_server_to_which_the_other_one_had_gone(
    pair: ServerPair, tmp_path: Path
) -> None:
    relays, consumer, load = relays_of(pair, tmp_path), Remembering(), Load(pair)
    with paired(relays):
        active = relays.wait_for_active()
        standby = relays.other(active)
        with consuming([standby.url, active.url], ["shop.orders"], consumer):
            wanted = load.write(10)
            wait_for_rows(consumer, wanted, active, standby)
            pair.catch_up()
            first = pair.primary.uri
            pair.fail_over()
            wanted += load.write(10)
            wait_for_rows(consumer, wanted, active, standby)
            assert [number for number, *_ in epochs(active)] == [0, 1]
            wait_until(lambda: epochs(standby) == epochs(active), "the epochs", standby.tell)
            # The server of before is back, with all that it had: nobody goes there.
            active.child.kill()
            wanted += load.write(10)
            relays.wait_for_active(standby)
            wait_for_rows(consumer, wanted, standby)
            assert epochs(standby)[-1][:2] == (1, pair.primary.uri)
            assert standby.get("/health").status == 200
            active.serve()
            wait_until(lambda: role(active).get("owner") == standby.url, "to stand by", active.tell)
            active.wait_for_scn(standby.max_scn())
            wait_until(lambda: epochs(active) == epochs(standby), "the epochs", active.tell)
            assert epochs(active)[0][1] == first
            wait_until(lambda: active.windows() == standby.windows(), "the same", active.tell)


def test_a_standby_goes_to_the_other_server_when_relay_and_server_die_together(
    pair: ServerPair, tmp_path: Path
) -> None:
    relays, consumer, load = relays_of(pair, tmp_path), Remembering(), Load(pair)
    with paired(relays):
        active = relays.wait_for_active()
        standby = relays.other(active)
        with consuming([active.url, standby.url], ["shop.orders"], consumer):
            wanted = load.write(10)
            wait_for_rows(consumer, wanted, active, standby)
            standby.wait_for_scn(active.max_scn())
            pair.catch_up()
            active.child.kill()
            pair.fail_over()
            wanted += load.write(10)
            relays.wait_for_active(standby)
            wait_for_rows(consumer, wanted, standby)
            assert [number for number, *_ in epochs(standby)] == [0, 1]
            assert standby.get("/health").status == 200
            # The one that comes back has not heard of that: it takes the epochs over.
            active.serve()
            wait_until(lambda: role(active).get("owner") == standby.url, "to stand by", active.tell)
            active.wait_for_scn(standby.max_scn())
            wait_until(lambda: epochs(active) == epochs(standby), "the epochs", active.tell)
            standby.child.stop()
            relays.wait_for_active(active)
            assert is_active(active)
            wanted += load.write(10)
            wait_for_rows(consumer, wanted, active)
