"""For the tests of applications: events and windows, deliveries without a relay, a real relay.

    from databus.testing import change, deliver, make_event, make_window, running_relay

`make_event(change("shop.orders", {"id": 7}))` is a `DataEvent` as a relay sends it. `deliver` makes
the callbacks of a consumer as the client does, with its retries. `running_relay` starts a relay of
its own on an SQLite file. docs/testing.md has an example of each. A `Recorder` is the
target of a sink: docs/sinks.md.
"""

from databus.testing.delivering import Delivery, deliver
from databus.testing.making import Change, change, make_event, make_window
from databus.testing.recorder import Recorder
from databus.testing.relays import RelayForTests, running_relay

__all__ = [
    "Change",
    "Delivery",
    "Recorder",
    "RelayForTests",
    "change",
    "deliver",
    "make_event",
    "make_window",
    "running_relay",
]
