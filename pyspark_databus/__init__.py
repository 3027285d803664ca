"""The entry point through which Spark finds `format("databus")`.

When a session first uses a Python data source, Spark imports every top-level module
named `pyspark_…` and registers its `DefaultSource`. It does so in a worker and for
any data source. So this module imports only what the class needs, and fails
silently on a PySpark that is too old, so that other data sources still load.
"""

from contextlib import suppress

__all__ = ["DefaultSource"]

# The import fails before PySpark 4.3; Spark skips a module without `DefaultSource`.
with suppress(ImportError):
    from databus.client.spark.source.data_source import DatabusDataSource as DefaultSource
