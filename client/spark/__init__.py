"""Spark: change streams and tables as DataFrames, and jobs that keep targets up to date.

    from databus.client.spark import register

    register(spark)
    changes = (
        spark.readStream.format("databus")
        .option("relays", "http://127.0.0.1:11115")
        .option("bootstrapServers", "http://127.0.0.1:11116")
        .load("shop.orders")
    )

It needs the extra `spark` of the distribution, and Java 17.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register `format("databus")` in a session.

    Spark finds the format by itself if the package was installed with pip before the
    session started. In a checkout, and in an older session, call this.
    """
    from databus.client.spark.source.data_source import DatabusDataSource

    spark.dataSource.register(DatabusDataSource)
