"""Where packages and compiled modules are found; all else is in pyproject.toml.

The directories at the root are installed as `databus.<name>`. In a checkout the
links in `databus/` say the same, so that Python, editors and type checkers find
`databus.relay` with no help. A source distribution has no links.

The compiled modules are built where there is a C compiler. Each only does
faster what Python code beside it does too, so that an installation without
them works the same.
"""

from pathlib import Path

from setuptools import Extension, find_packages, setup

ROOTS = ("schemas", "conf", "registry", "relay", "client", "bootstrap", "demo")

folders = {f"databus.{root}": root for root in ROOTS} | {"databus": "databus"}
found = {f"{name}.{inner}" for name, folder in folders.items() for inner in find_packages(folder)}

setup(
    packages=sorted({"pyspark_databus", *folders, *found}),
    package_dir=folders,
    ext_modules=[
        Extension(f"databus.{'.'.join(path.with_suffix('').parts)}", [str(path)], optional=True)
        for root in ROOTS
        for path in sorted(Path(root).rglob("*.pyx"))
    ],
    package_data={"": ["*.pyi", "*.avsc", "*.toml", "py.typed", "static/*"]},
    exclude_package_data={"": ["*.pyx", "*.pxi", "*.c"]},
)
