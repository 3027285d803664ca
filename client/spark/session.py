"""The Spark session of jobs and tests: this process's Python everywhere, and UTC."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

# Spark looks for an interruption in the text of a query's error with a regular expression
# that needs stack for each character: with Java's default a long traceback ends the query's
# thread with a StackOverflowError, and the error is never seen.
STACK = "-Xss8m"
_SETTINGS = {
    "spark.driver.extraJavaOptions": STACK,
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}


def job_session(name: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return the running session, or a new one as `spark-submit` or SPARK_CONF_DIR set it up.

    Without a master it is all cores of this machine. Workers run this process's
    Python, unless PYSPARK_PYTHON says another: `python3` of the PATH, which
    Spark takes by itself, is seldom the one with the packages.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    for key, value in {**_SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
