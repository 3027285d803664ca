"""Spark itself on a stock Databus relay: streams, batches, crashes; each row once."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from databus.client.spark import register
from tests import PATIENCE_S
from tests.client.spark.source.stock_job import DEADLY_BATCH, FEW_BATCHES, Job
from tests.promises.running import wait_until
from tests.promises.stock_databus.recordings import (
    PERSON,
    expected_rows,
    recorded,
    recording,
)
from tests.promises.stock_databus.stock_ends import ENDS
from tests.promises.stock_databus.stock_relay import StockRelay
from tools.repository import ROOT

EVENT_VERSIONS = pytest.mark.parametrize("stream", ["v1.stream.bin", "v2.stream.bin"])
SCNS = sorted({row["scn"] for row in expected_rows()})


@pytest.fixture
def relay() -> Iterator[StockRelay]:
    with StockRelay(recording()) as relay:
        yield relay


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    register(spark)
    yield spark
    for query in spark.streams.active:  # of a test that failed
        query.stop()


@EVENT_VERSIONS
def test_a_stream_has_every_row_once_through_cut_answers_and_crashes(
    session: SparkSession,
    relay: StockRelay,
    tmp_path: Path,
    stream: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    held = recorded(stream)
    relay.recording = replace(relay.recording, streams={0: held, 2: held})
    relay.script += ENDS
    crashed: set[int] = set()

    def crash(batch_id: int) -> None:
        if batch_id in (0, 3) and batch_id not in crashed:
            crashed.add(batch_id)
            raise ValueError(f"batch {batch_id} is lost")

    job = Job(session, tmp_path, relays=relay.url)
    job.fail = crash
    with caplog.at_level(logging.INFO, "databus"):
        for lost in (0, 3):
            with pytest.raises(StreamingQueryException, match=f"batch {lost} is lost"):
                job.run()
        job.run()
    assert job.rows == expected_rows()
    assert len(job.batches) > 4
    assert not relay.script
    assert not [record for record in caplog.records if record.name.startswith("databus")]


def test_a_stream_that_was_killed_goes_on_from_its_checkpoint(
    session: SparkSession, relay: StockRelay, tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "tests.client.spark.source.stock_job", relay.url, str(tmp_path)]
    killed = subprocess.run(words, cwd=ROOT, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]
    job = Job(session, tmp_path, relays=relay.url, **FEW_BATCHES)
    before = job.stored()
    assert 0 < len(before) < len(expected_rows())
    job.run()
    assert min(job.batches) == DEADLY_BATCH
    assert before + job.rows == expected_rows()


def test_a_stream_that_goes_on_follows_new_windows_and_a_restart_of_the_relay(
    session: SparkSession, relay: StockRelay, tmp_path: Path
) -> None:
    relay.held_scn = SCNS[20]
    job = Job(session, tmp_path, relays=relay.url, retrySeconds="30")
    query = job.start(processingTime="0 seconds")
    first = [row for row in expected_rows() if row["scn"] <= SCNS[20]]
    wait_until(lambda: job.rows == first, "the rows", lambda: query.exception(), PATIENCE_S)
    relay.stop()
    relay.held_scn = SCNS[-1]
    relay.start()
    wait_until(
        lambda: job.rows == expected_rows(), "the rest", lambda: query.exception(), PATIENCE_S
    )
    query.stop()
    job.run()
    assert job.rows == expected_rows()


def test_the_relay_filters(session: SparkSession, relay: StockRelay, tmp_path: Path) -> None:
    part = {"numBuckets": 3, "bktRange": {"start": 0, "end": 2}}
    wanted = {PERSON: {"partitionType": "MOD", "filters": [part]}}
    job = Job(session, tmp_path, relays=relay.url, sources=PERSON, filters=json.dumps(wanted))
    job.run()
    of_person = [row for row in expected_rows() if row["src"] == PERSON]
    assert job.rows == [row for row in of_person if abs(row["key"]) % 3 < 2]


def test_evicted_windows_end_the_query_with_their_scn(
    session: SparkSession, relay: StockRelay, tmp_path: Path
) -> None:
    relay.held_scn = SCNS[5]
    job = Job(session, tmp_path, relays=relay.url)
    job.run()
    relay.held_scn, relay.gone_scn = SCNS[-1], SCNS[30]
    with pytest.raises(StreamingQueryException, match=rf"windows after scn {SCNS[5]} any more"):
        job.run()


def test_changes_between_two_scns_are_a_batch(session: SparkSession, relay: StockRelay) -> None:
    reader = session.read.format("databus").options(relays=relay.url, retrySeconds="5")
    changes = reader.option("after", str(SCNS[10])).option("until", str(SCNS[30])).load(PERSON)
    found = sorted(row.scn for row in changes.select("_databus.scn").collect())
    assert found == [
        row["scn"]
        for row in expected_rows()
        if row["src"] == PERSON and SCNS[10] < row["scn"] <= SCNS[30]
    ]
