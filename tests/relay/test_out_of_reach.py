"""A database that is away: what there is goes on being served, and nothing looks well."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from databus.relay.sources.log_status import Holding, LogStatus
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import SourceUnavailableError
from tests.relay.fakes import (
    ORDERS,
    PERSON,
    FakeLogProbe,
    ServedRelay,
    insert,
    transaction,
    wait_until,
)
from tests.relay.serving.databus.test_http import as_json

ANN = {"x-databus-client": "ann"}
SHOP = {
    "name": "shop",
    "uri": "fake:",
    "sources": [PERSON.source, ORDERS.source],
    "reconnect_min_s": 3600.0,
    "reconnect_max_s": 3600.0,
}


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[ServedRelay]:
    """A relay with one window, a reader who has it, and a database that has just gone."""
    held = FakeLogProbe(LogStatus(Holding.HELD, 0, 0.0, 9.0))
    served = ServedRelay(tmp_path, log_probe=held, physical_sources=[SHOP])
    try:
        served.put(transaction(1, insert(1)))
        asked = {"sources": "1,2", "size": 1 << 20, "checkPoint": Checkpoint.at(1).to_json()}
        served.get("/stream", ANN, **asked)
        (client,) = as_json(served.get("/api/v1/clients"))["clients"]
        assert client["state"] == "live"
        served.source().fail(SourceUnavailableError("connection refused"))
        wait_until(lambda: served.get("/health").status == 503)
        yield served
    finally:
        served.close()


def test_health_says_unreachable_with_the_cause_and_ready_that_the_ring_is_served(
    relay: ServedRelay,
) -> None:
    health: dict[str, Any] = as_json(relay.get("/health"))
    assert health["status"] == "unreachable"
    (trouble,) = health["troubles"]
    assert (trouble["state"], trouble["problem"]) == ("unreachable", "connection refused")
    assert trouble["since"] <= time.time() < trouble["nextTryAt"]
    shop = health["physicalSources"]["shop"]
    assert (shop["connected"], shop["delaySeconds"]) == (False, None)
    assert shop["log"]["behindSeconds"] is None
    assert shop["heardAt"] <= time.time()
    assert relay.get("/ready").status == 200
    assert relay.get("/admin").status == 200


def test_the_api_knows_no_lags_and_says_what_readers_wait_for(relay: ServedRelay) -> None:
    (view,) = as_json(relay.get("/api/v1/physicalSources"))["physicalSources"]
    assert (view["state"], view["isConnected"]) == ("unreachable", False)
    assert (view["delayS"], view["log"]["behindS"]) == (None, None)
    (client,) = as_json(relay.get("/api/v1/clients"))["clients"]
    (position,) = client["positions"]
    assert (client["state"], position["behindS"]) == ("waiting", None)
    assert position["waitsFor"] == {"state": "unreachable", "since": view["since"]}
    (trouble,) = as_json(relay.get("/api/v1/relay"))["troubles"]
    assert (trouble["physicalSource"], trouble["text"]) == ("shop", "connection refused")


def test_metrics_say_not_connected_and_leave_out_what_is_not_known(relay: ServedRelay) -> None:
    told = relay.get("/metrics").body.decode()
    label = 'physical_source="shop"'
    assert f"databus_relay_connected{{{label}}} 0.0" in told
    assert f'databus_relay_source_state{{{label},state="unreachable"}} 1.0' in told
    assert f'databus_relay_source_state{{{label},state="running"}} 0.0' in told
    assert f"databus_relay_heard_seconds{{{label}}}" in told
    for unknown in ("log_behind_seconds", "log_behind_bytes", "lag_seconds"):
        assert f"databus_relay_{unknown}{{" not in told
    assert "databus_relay_client_behind_seconds{" not in told
    assert 'databus_relay_client_state{client="ann",state="waiting"} 1.0' in told


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[ServedRelay]:
    """A relay whose database has let nobody in yet."""
    held = FakeLogProbe(LogStatus(Holding.HELD, 0, 0.0, 9.0))
    served = ServedRelay(tmp_path, log_probe=held, is_frozen=True, physical_sources=[SHOP])
    try:
        yield served
    finally:
        served.source().answers.set()
        served.close()


def test_a_source_that_was_not_opened_yet_is_starting_wherever_states_are_told(
    frozen: ServedRelay,
) -> None:
    answer = frozen.get("/health")
    health = as_json(answer)
    assert (answer.status, health["status"]) == (503, "starting")
    (trouble,) = health["troubles"]
    assert (trouble["physicalSource"], trouble["state"]) == ("shop", "starting")
    assert "not known yet" in trouble["problem"]
    assert trouble["since"] <= time.time()
    assert health["physicalSources"]["shop"]["state"] == "starting"
    assert frozen.get("/ready").status == 503
    (view,) = as_json(frozen.get("/api/v1/physicalSources"))["physicalSources"]
    assert (view["state"], view["isConnected"]) == ("starting", False)
    assert (view["delayS"], view["log"]["behindS"]) == (None, None)
    relay = as_json(frozen.get("/api/v1/relay"))
    assert (relay["isHealthy"], relay["troubles"][0]["state"]) == (False, "starting")
    told = frozen.get("/metrics").body.decode()
    assert 'databus_relay_source_state{physical_source="shop",state="starting"} 1.0' in told
    assert 'databus_relay_source_state{physical_source="shop",state="running"} 0.0' in told


def test_a_source_is_well_once_it_is_open(frozen: ServedRelay) -> None:
    assert frozen.get("/health").status == 503
    frozen.source().answers.set()
    wait_until(lambda: frozen.get("/health").status == 200)
    assert frozen.get("/ready").status == 200


def test_a_source_that_goes_on_after_a_pause_is_starting_until_it_is_open_again(
    tmp_path: Path,
) -> None:
    served = ServedRelay(tmp_path, physical_sources=[SHOP])
    try:
        wait_until(lambda: served.get("/health").status == 200)
        served.post("/controlSources/pause")
        wait_until(
            lambda: as_json(served.get("/health"))["physicalSources"]["shop"]["state"] == "paused"
        )
        served.source().answers.clear()
        served.post("/controlSources/unpause")
        wait_until(lambda: as_json(served.get("/health"))["status"] == "starting")
        served.source().answers.set()
        wait_until(lambda: served.get("/health").status == 200)
    finally:
        served.close()
