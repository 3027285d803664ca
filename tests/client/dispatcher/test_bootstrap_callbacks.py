"""The callbacks of a bootstrap: their order, their budget, what is made of their results."""

from __future__ import annotations

from typing import Any

import pytest

from databus.client.consumer import Consumer, DataEvent, Result
from databus.client.dispatcher.callbacks import Dispatch
from databus.client.dispatcher.data_window import DataWindow
from databus.client.puller.buffer_items import BootstrapPage, Phase, empty_page
from databus.client.puller.page_decoder import PageDecoder
from databus.schemas.event.control import checkpoint_event
from databus.schemas.event.event import Event
from databus.schemas.event.v2 import encode
from tests.client.dispatcher.test_callbacks import Batches, Recorder
from tests.client.puller.test_page_decoder import CATCH_UP, SNAPSHOT
from tests.client.shop import (
    CUSTOMERS_ID,
    ORDERS_ID,
    FakeClock,
    customer,
    order,
    read,
    shop_bindings,
)

AFTER = SNAPSHOT.after_snapshot_row(7)


def page(*events: Event) -> BootstrapPage:
    """Return a page as the decoder hands it on."""
    decoder = PageDecoder(1 << 20)
    decoder.use(shop_bindings())
    decoder.begin((ORDERS_ID, CUSTOMERS_ID), SNAPSHOT)
    decoder.receive(b"".join(map(encode, (*events, checkpoint_event(AFTER)))))
    decoder.end()
    return decoder.take(AFTER, 10)


def make_dispatch(*consumers: Consumer, clock: FakeClock | None = None) -> Dispatch:
    return Dispatch(consumers, 1.0, 2, clock or FakeClock())


def test_callbacks_of_a_page_come_in_the_protocols_order() -> None:
    consumer = Recorder()
    outcome = make_dispatch(consumer).deliver_page(page(order(7, 1), order(5, 2), customer(6, 3)))
    assert outcome == (Result.SUCCESS, None)
    assert consumer.calls == [
        ("on_start_bootstrap_sequence", 10),
        ("on_start_bootstrap_source", "shop.orders"),
        ("on_bootstrap_event", ("shop.orders", 1)),
        ("on_bootstrap_event", ("shop.orders", 2)),
        ("on_end_bootstrap_source", "shop.orders"),
        ("on_start_bootstrap_source", "shop.customers"),
        ("on_bootstrap_event", ("shop.customers", 3)),
        ("on_end_bootstrap_source", "shop.customers"),
        ("on_end_bootstrap_sequence", 10),
        ("on_bootstrap_checkpoint", 10),
    ]


def test_an_empty_page_is_a_checkpoint_alone() -> None:
    consumer = Recorder()
    make_dispatch(consumer).deliver_page(empty_page(AFTER, 10))
    assert consumer.calls == [("on_bootstrap_checkpoint", 10)]


def test_one_who_does_not_tell_old_rows_from_new_ones_gets_both_the_same_way() -> None:
    class Live(Consumer):
        def __init__(self) -> None:
            self.calls: list[Any] = []

        def on_start_data_event_sequence(self, scn: int) -> None:
            self.calls.append(("start", scn))

        def on_data_event(self, event: DataEvent) -> None:
            self.calls.append(event.wire_key)

        def on_checkpoint(self, scn: int) -> None:
            self.calls.append(("done", scn))

    consumer = Live()
    make_dispatch(consumer).deliver_page(page(order(7, 1)))
    assert consumer.calls == [("start", 10), 1, ("done", 10)]


def test_a_page_has_the_budget_and_the_replays_of_a_window() -> None:
    clock = FakeClock()

    def dawdle(_event: DataEvent) -> None:
        clock.now_s += 2

    dispatch = make_dispatch(Recorder(on_bootstrap_event=dawdle), clock=clock)
    judged = []
    for _ in range(3):
        failure = dispatch.deliver_page(page(order(7, 1))).failure
        assert failure is not None
        assert "callback_budget_s" in failure.problem
        judged.append(dispatch.judge(failure))
    assert judged[:2] == [None, None]
    assert judged[2] is not None


@pytest.mark.parametrize("result", [Result.CHECKPOINT, Result.SKIP_CHECKPOINT])
def test_a_wish_about_the_checkpoint_counts_for_a_page(result: Result) -> None:
    dispatch = make_dispatch(Recorder(on_bootstrap_event=result))
    assert dispatch.deliver_page(page(order(7, 1))).result is result


def test_the_beginning_the_end_and_a_rollback_are_told_to_every_consumer() -> None:
    one, other = Recorder(on_start_bootstrap=Result.ERROR), Recorder()
    dispatch = make_dispatch(one, other)
    assert dispatch.start_bootstrap().failure is not None
    dispatch.roll_back_bootstrap(-1)
    dispatch.stop_bootstrap()
    assert one.calls == other.calls
    assert other.calls == [
        ("on_start_bootstrap",),
        ("on_bootstrap_rollback", -1),
        ("on_stop_bootstrap",),
    ]


def test_those_who_iterate_see_what_phase_a_window_is_of() -> None:
    shown = DataWindow(page(order(7, 1), order(5, 2)), begins_bootstrap=True)
    assert (shown.scn, shown.phase, shown.begins_bootstrap) == (10, Phase.SNAPSHOT, True)
    assert [(e.scn, e.index) for e in shown.events] == [(7, 0), (5, 1)]
    live = DataWindow(read(7, order(7)))
    assert (live.phase, live.begins_bootstrap) == (Phase.LIVE, False)
    log = page(order(11))._replace(after=CATCH_UP.after_log_rows(11, -1))
    assert DataWindow(log).phase is Phase.CATCH_UP


def test_a_page_is_taken_like_a_window_unless_its_events_are_taken_one_by_one() -> None:
    together, alone = Batches(), _PageOneByOne()
    make_dispatch(together, alone).deliver_page(page(order(7, 1), order(5, 2)))
    assert together.runs == [("shop.orders", [1, 2])]
    assert (alone.runs, alone.keys) == ([], [1, 2])


class _PageOneByOne(Batches):
    def __init__(self) -> None:
        super().__init__()
        self.keys: list[object] = []

    def on_bootstrap_event(self, event: DataEvent) -> None:
        self.keys.append(event.wire_key)
