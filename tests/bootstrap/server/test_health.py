"""What a bootstrap server says of itself: health, metrics and status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from databus.bootstrap.pair import Pair
from databus.schemas.errors import SettingsError
from tests.bootstrap.filled import PERSON, FilledStore, gone, put, stored
from tests.bootstrap.serving import FakeWorker, ServedStore, pair_settings
from tests.bootstrap.walking import snapshot_at
from tests.relay.fakes import wait_until

SNAPSHOT = snapshot_at(PERSON.source, 101).to_json()


class TestHealth:
    def test_a_store_that_was_never_made_is_not_well(self, served: ServedStore) -> None:
        wait_until(lambda: "not created" in served.get("/health").body.decode())
        answer = served.get("/health")
        assert answer.status == 503
        assert list(json.loads(answer.body)["problems"]) == ["crm"]

    def test_a_producers_problem_is_told(self, tmp_path: Path) -> None:
        served = ServedStore(tmp_path, FakeWorker)
        crm = FilledStore(served.pair.paths["crm"], {"shop.person": 1})
        try:
            wait_until(lambda: served.get("/health").status == 200)
            producer = served.pair.producers["shop"]
            assert isinstance(producer, FakeWorker)
            assert producer.is_running
            producer.problem = "the disk is full"
            answer = served.get("/health")
            assert answer.status == 503
            body = json.loads(answer.body)
            assert body["problems"] == {"shop": ["producer: the disk is full"]}
            assert body["physicalSources"]["shop"]["producerProblem"] == "the disk is full"
        finally:
            crm.close()
            served.close()

    def test_a_packers_problem_is_told(self, tmp_path: Path) -> None:
        settings = pair_settings(tmp_path)
        pair = Pair(settings, make_packing=FakeWorker)
        pair.start_workers()
        try:
            packer = pair.packings["shop"]
            assert isinstance(packer, FakeWorker)
            packer.problem = "the disk is full"
            assert "packing: the disk is full" in pair.problems()["shop"]
            assert pair.status()["shop"]["packingProblem"] == "the disk is full"
        finally:
            pair.stop()

    def test_what_fell_off_the_relay_is_told(self, served: ServedStore) -> None:
        served.filled.store.fall_off(101, 500)
        wait_until(lambda: "no relay holds" in served.get("/health").body.decode())

    def test_a_store_has_one_producer(self, tmp_path: Path) -> None:
        served = ServedStore(tmp_path, FakeWorker)
        try:
            with pytest.raises(SettingsError, match=r"shop\.db has a producer already"):
                Pair(pair_settings(tmp_path), FakeWorker)
        finally:
            served.close()


class TestFigures:
    def test_positions_sizes_pages_and_refusals_are_counted(self, served: ServedStore) -> None:
        served.filled.apply(110, put(1, 1, 110), gone(1, 2, 110))
        served.page(checkPoint=SNAPSHOT)
        served.page(checkPoint="{")
        wait_until(lambda: "position_scn" in served.get("/metrics").body.decode())
        wait_until(lambda: value_of(served, "position_scn") == 110)
        text = served.get("/metrics").body.decode()
        who = '{physical_source="shop",source="shop.person"'
        for line in (
            f"databus_bootstrap_rows{who}}} ",
            f"databus_bootstrap_tombstones{who}}} ",
            f"databus_bootstrap_log_rows{who}}} ",
            f"databus_bootstrap_log_bytes{who}}} ",
            f'databus_bootstrap_source_status{who},status="active"}} 1.0',
            'databus_bootstrap_lag_seconds{physical_source="shop"} ',
            "databus_bootstrap_pages_total 1.0",
            'databus_bootstrap_refusals_total{error="InvalidRequestParamValueException"} 1.0',
        ):
            assert line in text

    def test_the_status_has_every_source(self, served: ServedStore) -> None:
        wait_until(lambda: status_of(served)["scn"] == 101)
        shop = status_of(served)
        assert shop["storeId"] == served.filled.store.id
        assert shop["sources"]["shop.person"]["rows"] == 10
        assert shop["sources"]["shop.person"]["status"] == "active"
        served.filled.store.reset_source(PERSON.source)
        served.filled.store.begin_seeding(PERSON.source, 101, 4)
        served.filled.store.merge_chunk(PERSON.source, [stored(1, 1, 101)], "1")
        wait_until(lambda: status_of(served)["sources"]["shop.person"]["seededPercent"] == 25)


def value_of(served: ServedStore, name: str) -> float:
    for line in served.get("/metrics").body.decode().splitlines():
        if line.startswith(f'databus_bootstrap_{name}{{physical_source="shop"}}'):
            return float(line.split()[1])
    return -1


def status_of(served: ServedStore) -> dict[str, Any]:
    body = json.loads(served.get("/bootstrapStatus").body)
    found: dict[str, Any] = body["physicalSources"]["shop"]
    return found
