"""What Prometheus is told of a relay."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from databus.relay.admin.metrics import MOST_NAMES
from databus.relay.monitoring.clients import Caller
from databus.schemas.checkpoint import Checkpoint
from tests.relay.admin.test_api import post, put_some, report
from tests.relay.fakes import ServedRelay


def figures(relay: ServedRelay) -> dict[tuple[str, ...], float]:
    """Return every sample by its name and label values."""
    text = relay.get("/metrics").body.decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_process_and_the_ring_are_told_of(relay: ServedRelay) -> None:
    put_some(relay)
    found = figures(relay)
    assert found["process_resident_memory_bytes",] > 1_000_000
    assert found["process_open_fds",] > 3
    assert ("python_gc_collections_total", "0") in found
    assert any(key[0] == "python_info" for key in found)
    assert found["databus_relay_ring_oldest_age_seconds", "shop"] > 1e9, "its clock is of 1970"
    assert found["databus_relay_captured_bytes_per_second", "shop"] >= 0
    used = relay.relay.physical_sources["shop"].ring.tail
    assert found["databus_relay_ring_used_bytes", "shop"] == used


def test_a_client_is_told_of_by_its_name(relay: ServedRelay) -> None:
    put_some(relay)
    headers = {"x-databus-client": "ann-1"}
    answer = relay.get("/stream", headers, sources="1,2", size=1 << 20, maxev=2)
    checkpoint = Checkpoint.at(2).to_json()
    relay.get("/stream", headers, sources="1,2", size=1, checkPoint=checkpoint)
    found = figures(relay)
    assert found["databus_relay_client_served_bytes", "ann-1"] == len(answer.body)
    assert found["databus_relay_client_behind_seconds", "ann-1"] == 2.0
    assert found["databus_relay_client_state", "ann-1", "live"] == 1
    assert found["databus_relay_clients", "live"] == 1
    assert found["databus_relay_clients", "fallen"] == 0


def test_a_client_that_hangs_is_late_in_the_metrics_too(relay: ServedRelay) -> None:
    put_some(relay)
    headers = {"x-databus-client": "ann-1"}
    checkpoint = Checkpoint.at(5).to_json()
    relay.get("/stream", headers, sources="1,2", size=1 << 20, checkPoint=checkpoint)
    assert figures(relay)["databus_relay_client_edge_share", "ann-1"] == 1.0
    told = report()
    told["registrations"][0]["keptScn"] = "1"
    assert post(relay, "/clients/ann-1", told).status == 200
    found = figures(relay)
    assert found["databus_relay_client_behind_seconds", "Ann's consumer"] == 3.0
    assert found["databus_relay_client_behind_bytes", "Ann's consumer"] > 0
    assert found["databus_relay_client_edge_share", "Ann's consumer"] < 1.0


def test_clients_beyond_so_many_names_are_one(relay: ServedRelay) -> None:
    clients = relay.relay.monitor.clients
    for number in range(MOST_NAMES + 50):
        client = clients.begin(Caller(f"c{number}", "10.0.0.1", ""), float(number))
        clients.end(client, float(number), 10)
    found = figures(relay)
    names = {key[1] for key in found if key[0] == "databus_relay_client_served_bytes"}
    assert len(names) == MOST_NAMES + 1
    assert found["databus_relay_client_served_bytes", "other"] == 500
    assert sum(v for key, v in found.items() if key[0] == "databus_relay_clients") == 250


def test_a_name_with_quotes_and_line_ends_stays_one_label(relay: ServedRelay) -> None:
    clients = relay.relay.monitor.clients
    caller = Caller('a"b\\c\nd', "10.0.0.1", "")
    clients.end(clients.begin(caller, 0.0), 0.0)
    assert ("databus_relay_client_served_bytes", caller.id) in figures(relay)
