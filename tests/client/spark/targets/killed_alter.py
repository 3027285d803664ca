"""Alter a target's table and die before that is committed, or noted.

python -m tests.client.spark.targets.killed_alter <file with target URI, table, batch>
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from databus.client.spark.targets import delta, iceberg, sql
from databus.client.spark.targets.target import open_target
from tests.client.spark.targets.altered_table import bring


def die(*_given: Any, **_named: Any) -> NoReturn:
    """End the process as a power cut does."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still here")


def main(path: str) -> None:
    """Bring a batch to a target whose last step before the note kills the process."""
    uri, table, batch = pickle.loads(Path(path).read_bytes())
    target = open_target(uri)
    # MySQL has committed the ALTER by the last one; elsewhere it is in that transaction.
    for place, name in (
        (delta, "write_deltalake"),
        (iceberg, "_replace_files"),
        (sql.SqlTarget, "_write"),
    ):
        setattr(place, name, die)
    bring(target, table, 1, batch)


if __name__ == "__main__":
    main(sys.argv[1])
