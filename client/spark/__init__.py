"""Spark: the change stream and the tables behind it as DataFrames, and jobs on them.

    from databus.client.spark import register

    register(spark)
    changes = (
        spark.readStream.format("databus")
        .option("relays", "http://127.0.0.1:11115")
        .option("bootstrapServers", "http://127.0.0.1:11116")
        .load("shop.orders")
    )

It needs the extra: `pip install 'databus-cdc[spark]'`, and Java 17.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("databus")` known to a session.

    Where the package is installed with pip Spark finds it by itself; from a
    checkout, and in a session that was begun before, this is needed.
    """
    from databus.client.spark.source.data_source import DatabusDataSource

    spark.dataSource.register(DatabusDataSource)
