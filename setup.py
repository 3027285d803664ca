"""Where packages and compiled modules are found; all else is in pyproject.toml.

The directories at the root are installed as `databus.<name>`. In a checkout the
links in `databus/` say the same, so that Python, editors and type checkers find
`databus.relay` with no help. A source distribution has no links.

The compiled modules are built where there is a C compiler. Each only does
faster what Python code beside it does too, so that an installation without
them works the same.

`DATABUS_COMPILE=no` leaves them out where there is a compiler: for an installation in seconds,
and for a wheel of every platform.

Cython writes their C code one after the other, and then compilers run on every core. With
CYTHON_CACHE_DIR what it wrote is kept there, and taken for the same source again.
What helps a debugger would be half of a compiler's work: who wants it sets CFLAGS.
"""

import os
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOTS = (
    "schemas",
    "conf",
    "registry",
    "relay",
    "client",
    "bootstrap",
    "standalone",
    "demo",
    "testing",
)

COMPILED = [] if "CFLAGS" in os.environ else ["-g0"]
COMPILES = os.environ.get("DATABUS_COMPILE", "yes") != "no"


class CompileOnEveryCore(build_ext):  # type: ignore[misc]
    """Builds the compiled modules."""

    def build_extensions(self) -> None:
        """Write the C code of all, and compile it."""
        from Cython.Build import cythonize  # only where something is built

        # Not in threads, as the compilers are: Cython is not made for that.
        every = [Extension(one.name, one.sources) for one in self.extensions]
        kept = os.environ.get("CYTHON_CACHE_DIR")
        cythonize(every, quiet=True, cache=kept)  # type: ignore[no-untyped-call]
        super().build_extensions()


folders = {f"databus.{root}": root for root in ROOTS} | {"databus": "databus"}
found = {f"{name}.{inner}" for name, folder in folders.items() for inner in find_packages(folder)}

setup(
    cmdclass={"build_ext": CompileOnEveryCore},
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
    packages=sorted({"pyspark_databus", *folders, *found}),
    package_dir=folders,
    ext_modules=[
        Extension(
            f"databus.{'.'.join(path.with_suffix('').parts)}",
            [str(path)],
            extra_compile_args=COMPILED,
            optional=True,
        )
        for root in ROOTS
        for path in sorted(Path(root).rglob("*.pyx"))
        if COMPILES
    ],
    package_data={"": ["*.pyi", "*.avsc", "*.toml", "*.properties", "py.typed", "static/*"]},
    exclude_package_data={"": ["*.pyx", "*.pxi", "*.c"]},
)
