"""The Spark session of jobs and tests: workers use this process's Python, and UTC."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyspark import SparkConf
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession, functions as sf

from databus.schemas.errors import SettingsError

# Spark searches the text of a query's error with a regular expression whose stack depth grows
# with the text. With Java's default stack a long traceback ends the query's thread with a
# StackOverflowError, and the real error is lost.
STACK = "-Xss8m"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    # Spark lists the files of a read by a task for each file, which tells the driver 3 kB.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
}
_PYTHON = "spark.pyspark.python"
# A line of spark-defaults.conf, which Java reads as properties.
_PAIR = re.compile(r"\s*(?P<key>[^\s#=:][^\s=:]*)[\s=:]+(?P<value>.*)")
# Set by spark-submit, whose JVM runs already.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"


def job_session(name: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return the active session, or a new one with the settings of spark-submit or SPARK_CONF_DIR.

    `settings` come before those, and those before this project's own. Without a master
    it uses all cores of this machine. Workers run this process's Python unless
    PYSPARK_PYTHON or `spark.pyspark.python` is set: Spark's default, the `python3` on
    the PATH, seldom has the packages. With `spark.remote` or SPARK_REMOTE it is a
    session of Spark Connect.

    Raises SettingsError for a Python that is not there.
    """
    given = dict(settings or {})
    known = _submitted() if _SUBMITTED in os.environ else _defaults()
    _choose_python(given.get(_PYTHON) or known.get(_PYTHON))
    own = {key: value for key, value in _SETTINGS.items() if key not in known}
    if _SUBMITTED not in os.environ:
        own[_JAVA_OPTIONS] = _with_stack(given.pop(_JAVA_OPTIONS, known.get(_JAVA_OPTIONS, "")))
    builder = SparkSession.builder.appName(name)
    for key, value in {**own, **given}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is one of Spark Connect, whose driver is another process."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks Spark makes of rows without partitions of their own."""
    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    # Only the server knows, but it cuts a range into as many parts.
    parts = spark.range(10_000).select(sf.spark_partition_id().alias("part")).distinct()
    return max(1, parts.count())


def need_own_driver(spark: SparkSession, what: str) -> None:
    """Raise SettingsError on Spark Connect for what needs Spark's driver in this process."""
    if is_connect(spark):
        raise SettingsError(
            f"{what} needs Spark's driver in its own process, which a session of Spark Connect has "
            "not: give a master (--master, spark-submit), and no spark.remote or SPARK_REMOTE"
        )


def _submitted() -> dict[str, str]:
    return dict(SparkConf().getAll())


def _defaults() -> dict[str, str]:
    """Return the settings of spark-defaults.conf, which what is set here would replace."""
    folder = os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home()) / "conf"
    file = Path(folder) / "spark-defaults.conf"
    return dict(_pairs(file.read_text(encoding="utf-8"))) if file.is_file() else {}


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if found := _PAIR.match(line):
            yield found["key"], found["value"].strip()


def _with_stack(options: str) -> str:
    return options if "-Xss" in options else f"{STACK} {options}".strip()


def _choose_python(configured: str | None) -> None:
    """Set the Python of workers; raise SettingsError if a relative path leads nowhere.

    The driver's own processes that plan queries run it too, from this folder.
    """
    python = configured or os.environ.get("PYSPARK_PYTHON") or sys.executable
    if "/" in python and not python.startswith("/") and not Path(python).exists():
        folder = Path(python).parts[0]
        raise SettingsError(
            f"the workers' Python {python} is not in {Path.cwd()}: Spark's driver runs it, too. "
            f"Unpack the archive here (mkdir {folder} && tar xzf ARCHIVE -C {folder}), and start "
            f"the job with {python}"
        )
    os.environ["PYSPARK_PYTHON"] = python
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
