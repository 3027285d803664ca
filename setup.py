"""Map the directories at the root to `databus.<name>`; all else is in pyproject.toml."""

from setuptools import setup

ROOTS = ("schemas", "conf", "registry", "relay", "client", "bootstrap", "demo")
NESTED = ("relay.sources",)

setup(
    packages=["databus", *(f"databus.{name}" for name in ROOTS + NESTED)],
    package_dir={
        "databus": "databus",
        **{f"databus.{name}": name.replace(".", "/") for name in ROOTS + NESTED},
    },
    package_data={
        "databus": ["py.typed"],
        "databus.schemas": ["avro/*.avsc"],
        "databus.conf": ["*.toml"],
    },
)
