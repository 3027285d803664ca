"""`format("databus")` in Spark itself: streams, batches, refusals, workers without the package."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from databus.client.spark import register
from tests import PATIENCE_S
from tests.client.spark.source.stream_job import StreamJob
from tests.promises.running import RunningRelay, Shop, running, wait_until


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    found = Shop(tmp_path / "shop.db")
    yield found
    found.close()


@pytest.fixture
def relay(tmp_path: Path, shop: Shop) -> Iterator[RunningRelay]:
    with running(RunningRelay(tmp_path, shop.settings()).start()) as relay:
        shop.insert(*range(1, 101), each=10)
        relay.wait_for_scn(100)  # the number of the last change
        yield relay


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


class Job(StreamJob):
    """A foreachBatch query that keeps what its batches had."""

    def __init__(self, session: SparkSession, folder: Path, **options: str) -> None:
        self.ids: list[int] = []
        self.batch_ids: list[int] = []
        given = {"start": "earliest", "shards": "1", "retrySeconds": "1"}
        super().__init__(session, folder, **(given | options))

    def _take(self, batch: DataFrame, batch_id: int) -> None:
        rows = batch.select("id").collect()
        self.fail(batch_id)
        self.ids += [row.id for row in rows]
        self.batch_ids.append(batch_id)


def test_available_now_reads_what_there_is_and_the_next_run_goes_on(
    session: SparkSession, relay: RunningRelay, shop: Shop, tmp_path: Path
) -> None:
    job = Job(session, tmp_path, relays=relay.url, sources="shop.orders", maxRowsPerTrigger="40")
    scn = relay.max_scn()
    job.run()
    assert sorted(job.ids) == list(range(1, 101))
    job.ids.clear()
    shop.insert(101, 102)
    relay.wait_for_scn(scn + 2)
    job.run()
    assert sorted(job.ids) == [101, 102]


def test_a_batch_that_failed_comes_again_with_its_number_and_its_rows(
    session: SparkSession, relay: RunningRelay, tmp_path: Path
) -> None:
    def fail(batch_id: int) -> None:
        raise ValueError(f"batch {batch_id} is too much")

    job = Job(session, tmp_path, relays=relay.url, sources="shop.orders")
    job.fail = fail
    with pytest.raises(StreamingQueryException, match="batch 0 is too much"):
        job.run()
    job.fail = lambda _: None
    job.run()
    assert sorted(job.ids) == list(range(1, 101))
    assert job.batch_ids[0] == 0


def test_a_relay_that_goes_away_ends_the_query_with_its_address_and_a_restart_goes_on(
    session: SparkSession, relay: RunningRelay, shop: Shop, tmp_path: Path
) -> None:
    job = Job(session, tmp_path, relays=relay.url, sources="shop.orders")
    query = job.start(processingTime="0 seconds")
    wait_until(lambda: len(job.ids) == 100, "the rows", lambda: query.exception(), PATIENCE_S)
    relay.child.stop()
    with pytest.raises(StreamingQueryException, match=relay.url):
        query.awaitTermination(int(PATIENCE_S))
    shop.insert(101)
    relay.start()
    relay.wait_for_scn(101)
    job.run()
    assert job.ids[100:] == [101]


def test_a_wrong_option_is_refused_with_the_right_ones(session: SparkSession) -> None:
    with pytest.raises(PySparkException, match=r"no option relay; its options are sources, relays"):
        session.readStream.format("databus").option("relay", "http://x").load("shop.orders")


def test_a_source_that_was_renamed_is_named_with_those_there_are(
    session: SparkSession, relay: RunningRelay
) -> None:
    with pytest.raises(PySparkException, match=r"shop\.sales.*shop\.orders"):
        session.read.format("databus").options(relays=relay.url, after="0").load("shop.sales")


def test_changes_between_two_scns_are_a_batch(
    session: SparkSession, relay: RunningRelay, shop: Shop
) -> None:
    shop.insert(101)
    relay.wait_for_scn(101)
    scn = relay.max_scn()
    reader = session.read.format("databus").options(relays=relay.url, shards="2")
    changes = reader.option("after", str(scn - 1)).option("until", str(scn)).load("shop.orders")
    assert {row["scn"] for row in changes.select("_databus.scn").collect()} == {scn}


def test_a_batch_of_changes_where_nothing_is_new_has_no_rows(
    session: SparkSession, relay: RunningRelay, shop: Shop
) -> None:
    newest = relay.max_scn()
    reader = session.read.format("databus").options(relays=relay.url, mode="changes")
    for layout in ("columns", "structs", "events"):
        for until in ({}, {"until": str(newest)}):
            given = {"after": str(newest), "layout": layout, **until}
            assert reader.options(**given).load("shop.orders").collect() == []
    assert reader.option("after", str(newest)).load("shop.orders").count() == 0
    # As an hourly job does: nothing, and then what has come.
    shop.insert(101)
    relay.wait_for_scn(newest + 1)
    rows = session.read.format("databus").options(relays=relay.url, mode="changes")
    assert rows.option("after", str(newest)).load("shop.orders").count() == 1


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"after": "50", "until": "49"}, "option until = 49 is before option after = 50"),
        ({"after": "101"}, "shop: scn 101 is in the future, the newest is 100"),
        ({"after": "100", "until": "101"}, "shop: scn 101 is in the future, the newest is 100"),
    ],
)
def test_a_batch_of_changes_that_cannot_be_is_refused_in_a_sentence(
    session: SparkSession, relay: RunningRelay, more: dict[str, str], text: str
) -> None:
    reader = session.read.format("databus").options(relays=relay.url, mode="changes", **more)
    with pytest.raises(PySparkException, match=text):
        reader.load("shop.orders").count()


def test_a_source_with_a_name_of_its_own_is_read_by_that_name(
    session: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    own = "com.example.shop.Orders"
    place = shop.settings() | {"sources": [{"name": own, "table": "orders"}]}
    with running(RunningRelay(tmp_path, place).start()) as relay:
        shop.insert(*range(1, 11))
        relay.wait_for_scn(10)
        job = Job(session, tmp_path, relays=relay.url, sources=own)
        job.run()
        shop.insert(11)
        relay.wait_for_scn(11)
        job.run()
        assert job.ids == list(range(1, 12))
        changes = session.read.format("databus").options(relays=relay.url, after="10").load(own)
        assert {row["source"] for row in changes.select("_databus.source").collect()} == {own}
        structs = session.read.format("databus").options(relays=relay.url, layout="structs")
        columns = structs.option("after", "10").load(own)
        assert columns.columns == [own, "_databus"]
        assert [row["id"] for row in columns.select(f"`{own}`.id").collect()] == [11]
        with pytest.raises(PySparkException, match=r"shop\.orders.*com\.example\.shop\.Orders"):
            session.read.format("databus").options(relays=relay.url, after="0").load("shop.orders")


def test_a_worker_without_the_package_says_how_to_install_it(tmp_path: Path) -> None:
    """The class is pickled by value here, and read by a Python that has PySpark alone."""
    spec = Path(sys.modules["pyspark"].__file__ or "").parent.parent
    text = (
        "import sys, importlib.abc\n"
        "class Hidden(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name.split('.')[0] == 'databus':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Hidden())\n"
        f"sys.path.append({str(spec)!r})\n"
        "from pyspark import cloudpickle\n"
        "kind = cloudpickle.loads(sys.stdin.buffer.read())\n"
        "try:\n"
        "    kind({'sources': 'shop.orders'}).schema()\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    from pyspark import cloudpickle

    from databus.client.spark.source.data_source import DatabusDataSource

    done = subprocess.run(
        [sys.executable, "-c", text],
        input=cloudpickle.dumps(DatabusDataSource),  # type: ignore[no-untyped-call]
        capture_output=True,
        cwd=tmp_path,
        check=False,
    )
    said = done.stdout.decode()
    assert "lacks databus" in said, done.stderr.decode()
    assert "pip install '.[spark]'" in said
    assert "PYSPARK_PYTHON" in said
