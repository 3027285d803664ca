"""Map the directories at the root to `databus.<name>`; all else is in pyproject.toml.

The compiled modules are built where there is a C compiler. Each only does
faster what Python code beside it does too, so that an installation without
them works the same.
"""

from setuptools import Extension, setup

ROOTS = ("schemas", "conf", "registry", "relay", "client", "bootstrap", "demo")
NESTED = (
    "client.spark",
    "client.spark.jobs",
    "client.spark.sql",
    "client.spark.targets",
    "client.spark.verify",
    "relay.sources",
    "relay.sources.mysql",
    "relay.sources.mysql.rows",
    "relay.sources.mysql.scan",
    "relay.sources.mysql.server",
    "relay.sources.mysql.stream",
    "relay.sources.mysql.tables",
    "relay.sources.sqlite",
)
COMPILED = (
    "schemas/row_cutter.pyx",
    "relay/ring_core.pyx",
    "relay/sources/mysql/stream/lane.pyx",
    "client/spark/column_cutter.pyx",
)

setup(
    packages=["databus", "pyspark_databus", *(f"databus.{name}" for name in ROOTS + NESTED)],
    package_dir={
        "databus": "databus",
        # Where Spark looks for data sources: see there.
        "pyspark_databus": "pyspark_databus",
        **{f"databus.{name}": name.replace(".", "/") for name in ROOTS + NESTED},
    },
    ext_modules=[
        Extension(f"databus.{path.removesuffix('.pyx').replace('/', '.')}", [path], optional=True)
        for path in COMPILED
    ],
    exclude_package_data={"": ["*.pyx", "*.pxi", "*.c"]},
    package_data={
        "databus": ["py.typed"],
        "databus.schemas": ["avro/*.avsc", "*.pyi"],
        "databus.client.spark": ["*.pyi"],
        "databus.relay": ["*.pyi", "page/*"],
        "databus.relay.sources.mysql.stream": ["*.pyi"],
        "databus.conf": ["*.toml"],
    },
)
