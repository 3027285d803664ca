"""What a failure of a query means: a restart, at once or later, or the end of the job."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from deltalake import write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, SchemaMismatchError
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import AnalysisException, PySparkRuntimeError
from pyspark.serializers import read_int
from pyspark.sql import SparkSession

from databus.client.machines.backoff import BackOff
from databus.client.spark.consuming import restart_policy
from databus.client.spark.consuming.restart_policy import Restarts, passes, read_failure
from databus.conf.settings import BackOffSettings
from databus.schemas.errors import (
    ConsumerError,
    NoAnswerError,
    RowError,
    SchemaNotFoundError,
    SettingsError,
)
from tests.full_disk import small_disk

CRASHED = (
    "[STREAM_FAILED] Query [id = 1a, runId = 2b] terminated with exception: Job aborted due to "
    "stage failure: Task 0 in stage 2.0 failed 4 times, most recent failure: Lost task 0.3 in "
    "stage 2.0 (TID 9) (127.0.0.1 executor 0): org.apache.spark.SparkException: Python worker "
    "exited unexpectedly (crashed)\n\tat org.apache.spark.api.python.BasePythonRunner"
)
FOREIGN = (
    "[STREAM_FAILED] Query [id = 1a, runId = 2b] terminated with exception: An exception was "
    "thrown from the Python worker. Please see the stack trace below.\n"
    "Traceback (most recent call last):\n"
    '  File "x.py", line 3, in read\n'
    "    raise ArrowInvalid\n"
    "pyarrow.lib.ArrowInvalid: column a has 3 rows\n\tat org.apache.spark"
)


def caught(call: Callable[[], object]) -> BaseException:
    """Return what a call raises, with its traceback."""
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("it raised nothing")


class Ended:
    """A stream of a process that has ended."""

    def read(self, _: int) -> bytes:
        return b""


def test_a_worker_that_ended_while_it_was_read_is_a_failure_of_spark_and_passes() -> None:
    read: Callable[[object], int] = read_int
    error = caught(lambda: read(Ended()))
    assert isinstance(error, EOFError)
    failure = read_failure(error)
    assert (failure.kind, failure.problem, failure.is_final) == (None, "EOFError", False)


def test_a_defect_of_another_s_code_is_not_taken_for_a_failure_of_spark() -> None:
    error = caught(lambda: [][1])
    with pytest.raises(IndexError):
        read_failure(error)


def test_a_crashed_worker_and_a_foreign_error_are_named_without_what_stands_before_them() -> None:
    assert read_failure(PySparkRuntimeError(CRASHED)) == (
        None,
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
        False,
    )
    assert read_failure(FOREIGN).problem == "pyarrow.lib.ArrowInvalid: column a has 3 rows"


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [
        (
            DeltaError("Generic LocalFileSystem error: No space left (os error 28)"),
            True,
        ),
        (DeltaError("Generic S3 error: Error after 10 retries"), True),
        (CommitFailedError("a concurrent transaction"), True),
        (DeltaError("Generic DataFusion error: cannot cast"), False),
        (SchemaMismatchError("number of fields does not match"), False),
        (OSError(28, "No space left on device"), True),
        (ValueError("a defect"), False),
    ],
    ids=lambda value: f"{value!r}"[:30],
)
def test_an_error_of_a_full_or_absent_storage_passes_and_one_of_what_is_written_does_not(
    error: Exception, may_pass: bool
) -> None:
    assert passes(error) is may_pass


def test_a_disk_that_a_delta_table_cannot_be_written_to_is_an_error_that_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delta_runtime: None
) -> None:
    with small_disk(tmp_path / "disk", monkeypatch, errno.EROFS) as disk:
        disk.spoil()
        with pytest.raises(DeltaError, match=r"Read-only|denied") as found:
            write_deltalake(str(disk.folder / "table"), pa.table({"id": [1]}))
        disk.mend()
    assert passes(found.value)


def test_two_queries_of_one_checkpoint_folder_do_not_take_turns() -> None:
    failure = read_failure(
        "[STREAM_FAILED] Query [id = 1a, runId = 2b] terminated with exception: "
        "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs "
        "detected for 0.\nPlease make sure only one streaming job runs. SQLSTATE: 40000"
    )
    assert failure.is_final
    assert "another query uses this checkpoint folder" in failure.problem


def test_an_error_of_this_package_is_read_by_its_class() -> None:
    away = NoAnswerError("http://a", "none has answered for 60 s")
    assert not read_failure(away).is_final
    assert read_failure(away).is_a(NoAnswerError)
    assert read_failure(SettingsError("option x is odd")).is_final
    # Another server, which sends the rows, has the version already.
    assert not read_failure(SchemaNotFoundError("version 3 of shop.orders is not listed")).is_final


def test_an_error_of_a_target_s_library_is_a_line_and_passes_if_the_target_is_away() -> None:
    def ask() -> None:
        with sa.create_engine("mysql+pymysql://root@127.0.0.1:1/x").connect():
            pass

    failure = read_failure(caught(ask))
    assert not failure.is_final
    assert "Can't connect to MySQL server on '127.0.0.1'" in failure.problem
    assert "\n" not in failure.problem
    assert read_failure(SchemaMismatchError("number of fields does not match")).is_final


def test_a_request_that_spark_cannot_analyse_is_final_but_not_a_worker_lost_meanwhile(
    spark: SparkSession,
) -> None:
    assert read_failure(caught(lambda: spark.sql("SELECT nothing FROM nowhere"))).is_final
    lost = AnalysisException("[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source: EOF")
    assert not read_failure(lost).is_final


def test_an_error_of_the_gateway_is_final_if_the_jvm_has_ended_and_passes_if_it_runs(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = Py4JNetworkError("Answer from Java side is empty")
    assert not read_failure(error).is_final
    monkeypatch.setattr(restart_policy, "has_spark", lambda: False)
    for one in (error, Py4JError("An error occurred while calling o41.awaitTermination")):
        failure = read_failure(one)
        assert failure.is_final
        assert failure.problem.startswith("Spark's own process (the JVM of the driver) has ended")


def test_an_exception_of_java_is_a_failure_of_spark_that_passes(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    nothing = jvm.java.util.ArrayDeque()
    error = caught(lambda: nothing.removeFirst())
    assert isinstance(error, Py4JJavaError)
    assert not read_failure(error).is_final
    assert read_failure(error).problem == "java.util.NoSuchElementException"


def test_the_log_has_a_line_for_each_restart_and_the_whole_text_at_a_lower_level(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rules = Restarts(1, BackOff(BackOffSettings(first_s=1, factor=2, jitter=0), Random()))
    with caplog.at_level(logging.INFO):
        assert rules.wait_s(CRASHED, "shop.orders", 7) == 1
    whole, line = caplog.records
    assert (whole.levelno, CRASHED in whole.getMessage()) == (logging.INFO, True)
    assert line.getMessage() == (
        "shop.orders: the query is restarted in 1.0 s: org.apache.spark.SparkException: "
        "Python worker exited unexpectedly (crashed)"
    )
    final = RowError("shop.orders", "x", "it is odd")
    with pytest.raises(ConsumerError, match=r"window 7: shop\.orders: .*column 'x'"):
        rules.wait_s(final, "shop.orders", 7)


def test_an_outage_is_one_line_for_each_try_and_names_no_scn_before_the_first_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rules = Restarts(2, BackOff(BackOffSettings(first_s=1, factor=2, jitter=0), Random()))
    away = (
        "Traceback (most recent call last):\n  File\ndatabus.schemas.errors.NoAnswerError: s: away"
    )
    with caplog.at_level(logging.INFO, restart_policy.__name__):
        assert rules.wait_s(away, "shop.*", 0) == 1
    # Py4J logs, too, when there is a session.
    said = [one for one in caplog.records if one.name == restart_policy.__name__]
    assert [(one.levelno, one.getMessage()) for one in said] == [
        (logging.WARNING, "shop.*: the query is restarted in 1.0 s: s: away")
    ]
    with caplog.at_level(logging.DEBUG, restart_policy.__name__):
        rules.wait_s(away, "shop.*", 0)
    assert f"shop.*: s: away\n{away}" in caplog.messages
