"""Archives the sealed segments of a log, slowly, until it is killed.

Run as `python -m tests.relay.log.archive.child FOLDER URI`. Prints a line for each chunk that is
about to be written, and `all` once nothing is left to archive.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests import PATIENCE_S

CHUNK_BYTES = 700


def main(folder: Path, uri: str) -> None:
    """Archive; the log's source is `shop`."""
    from databus.conf.source_settings import RelayLogSettings
    from databus.relay.clock import SYSTEM_CLOCK
    from databus.relay.log.archive import archiver
    from databus.relay.log.directory import find_segments

    def chunks(path: Path) -> Iterator[bytes]:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                print(path.name, flush=True)
                yield chunk

    archiver._chunks = chunks
    sources = archiver.Sources(tuple, lambda _ring_id: {})
    settings = RelayLogSettings(archive=uri, archive_after_s=0)
    archiving = archiver.Archiver(folder, "shop", settings, sources, _fail, SYSTEM_CLOCK)
    local = find_segments(folder).log
    archiving.follow(local)
    archiving.start()
    while archiving.status(local).waiting:
        time.sleep(0.001)
    print("all", flush=True)
    archiving.stop(PATIENCE_S)
    archiving.close()


def _fail(error: Exception) -> None:
    print(f"failed: {error}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
