"""What starting a daemon does not import, though it is installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from databus.demo.processes import child_environment

NEEDLESS = ("pandas", "numpy", "pyarrow", "pyspark")


def printed_by(code: str) -> str:
    """Return what a new Python prints."""
    command = [sys.executable, "-c", code]
    return subprocess.check_output(command, env=child_environment(), text=True).strip()


@pytest.mark.parametrize(
    "module", ["databus.relay.service", "databus.relay.cli.relay", "databus.bootstrap.service"]
)
def test_a_daemon_starts_without_what_only_spark_needs(module: str) -> None:
    code = f"import sys, {module}; print([n for n in {NEEDLESS} if n in sys.modules])"
    shown = subprocess.check_output(
        [sys.executable, "-c", code], env=child_environment(), text=True
    )
    assert shown.strip() == "[]"


def test_pandas_is_found_afterwards() -> None:
    code = (
        "import databus.daemon.sqlite_tables as ours, importlib.util, sys; "
        "print('pandas' in sys.modules, importlib.util.find_spec('pandas') is not None)"
    )
    shown = subprocess.check_output(
        [sys.executable, "-c", code], env=child_environment(), text=True
    )
    assert shown.split() == ["False", "True"]
