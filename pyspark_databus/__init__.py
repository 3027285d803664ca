"""What lets Spark find `format("databus")` by itself.

When a session first uses a Python data source, Spark imports every top-level
module named `pyspark_…` and takes its `DefaultSource`. That is done in a worker,
whatever source was asked for: nothing is imported here but PySpark's own
classes, and a PySpark that is too old for ours must not lose the others.
"""

from contextlib import suppress

__all__ = ["DefaultSource"]

# Without the name, as before PySpark 4.3, Spark passes this module over.
with suppress(ImportError):
    from databus.client.spark.source.data_source import DatabusDataSource as DefaultSource
