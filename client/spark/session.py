"""The Spark session of jobs and tests: workers use this process's Python, and UTC."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

# Spark searches the text of a query's error with a regular expression whose stack depth grows
# with the text. With Java's default stack a long traceback ends the query's thread with a
# StackOverflowError, and the real error is lost.
STACK = "-Xss8m"
_SETTINGS = {
    "spark.driver.extraJavaOptions": STACK,
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}


def job_session(name: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return the active session, or a new one with the settings of spark-submit or SPARK_CONF_DIR.

    Without a master it uses all cores of this machine. Workers run this process's
    Python unless PYSPARK_PYTHON is set: Spark's default, the `python3` on the PATH,
    seldom has the packages.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    for key, value in {**_SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
