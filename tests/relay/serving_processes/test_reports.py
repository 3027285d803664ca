"""What serving processes say of their readers is added up."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from databus.relay.capture.notifier import Notifier
from databus.relay.monitoring.clients import Caller, StreamKey
from databus.relay.monitoring.monitor import Monitor
from databus.relay.monitoring.traffic import Traffic
from databus.relay.serving_processes.reports import ReadersElsewhere, Reporter

KEY = StreamKey("shop", None, "")
CALLER = Caller("billing", "10.1.1.1", "databus/1")


def served_relay() -> Any:
    return SimpleNamespace(
        traffic=Traffic(), monitor=Monitor.of(["shop"]), passed_on=Counter(), waiting={"shop": 0}
    )


def capturing_relay() -> Any:
    return SimpleNamespace(
        traffic=Traffic(),
        monitor=Monitor.of(["shop"]),
        physical_sources={"shop": SimpleNamespace(notifier=Notifier())},
        clock=SimpleNamespace(monotonic_s=lambda: 50.0),
    )


def server(connections: int = 3) -> Any:
    return SimpleNamespace(open_connections=connections, turned_away=Counter(), most=10)


def read(relay: Any, now_s: float, position: int, size_bytes: int) -> None:
    """Do what a request does."""
    clients = relay.monitor.clients
    client = clients.begin(CALLER, now_s)
    client.stream(KEY, now_s).position = position
    client.served_bytes += size_bytes
    relay.traffic.asked()
    relay.traffic.served(size_bytes)
    clients.end(client, now_s)


def test_readers_of_two_processes_are_one_client_at_its_last_place() -> None:
    relay, children = capturing_relay(), [served_relay(), served_relay()]
    reporters = [Reporter(one, server()) for one in children]
    readers = [ReadersElsewhere(relay), ReadersElsewhere(relay)]
    read(children[0], 1.0, 100, 10)
    read(children[1], 2.0, 200, 20)
    for _ in range(2):  # the second time there is nothing new
        for reporter, one in reversed(list(zip(reporters, readers, strict=True))):
            one.take(reporter.report(3.0))
    (client,) = relay.monitor.clients
    assert (client.requests, client.served_bytes, client.open_requests) == (2, 30, 0)
    assert client.streams[KEY].position == 200
    assert client.last_seen_s == 2.0
    assert (relay.traffic.stream_requests, relay.traffic.stream_bytes) == (2, 30)
    read(children[0], 4.0, 300, 5)
    readers[0].take(reporters[0].report(5.0))
    assert (client.requests, client.served_bytes) == (3, 35)
    assert client.streams[KEY].position == 300


def test_a_request_that_was_passed_on_is_not_counted_twice() -> None:
    relay, child = capturing_relay(), served_relay()
    read(child, 1.0, 100, 10)
    read(child, 1.5, 100, 0)
    child.passed_on["billing"] += 1
    ReadersElsewhere(relay).take(Reporter(child, server()).report(2.0))
    assert [client.requests for client in relay.monitor.clients] == [1]


def test_a_process_that_has_ended_holds_nothing_open() -> None:
    relay, child = capturing_relay(), served_relay()
    readers, reporter = ReadersElsewhere(relay), Reporter(child, server())
    child.monitor.clients.begin(CALLER, 1.0)
    child.traffic.held_requests = 1
    child.waiting["shop"] = 1
    notifier = relay.physical_sources["shop"].notifier
    for _ in range(2):
        readers.take(reporter.report(2.0))
        assert relay.traffic.held_requests == notifier.waiting == 1
        assert [client.open_requests for client in relay.monitor.clients] == [1]
    readers.forget()
    assert relay.traffic.held_requests == notifier.waiting == 0
    assert [client.open_requests for client in relay.monitor.clients] == [0]
    assert readers.last.open_connections == 0
