"""A packer as a process, without a pause: `python -m tests.bootstrap.packs.child STORE`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from databus.bootstrap.packs.packer import Packer
from databus.bootstrap.store.store import Store
from tests.bootstrap.packs.reading import FEW, MOST_BYTES


def main(path: Path) -> None:
    """Pack until killed."""
    packer = Packer(Store.open(path), MOST_BYTES, FEW)
    print("begun", flush=True)
    while True:
        if not packer.step():
            time.sleep(0.001)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
