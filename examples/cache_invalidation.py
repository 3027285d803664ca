"""Purge a row's page from an HTTP cache when the row changes.

    python examples/cache_invalidation.py http://127.0.0.1:11115 http://127.0.0.1:6081 checkpoints

A cache such as Varnish takes PURGE requests. The cache is always purged after the commit, so that
no reader can put the old row back. Purging twice does no harm.
"""

from __future__ import annotations

import sys
from urllib.request import Request, urlopen

from databus.client import DatabusClient, DataEvent

TIMEOUT_S = 10.0


def purge(cache: str, path: str) -> None:
    """Purge one page; raises OSError if the cache does not do it."""
    with urlopen(Request(f"{cache}{path}", method="PURGE"), timeout=TIMEOUT_S):
        pass


def main(relay: str, cache: str, checkpoints: str) -> None:
    """Purge until Ctrl-C."""
    client = DatabusClient(relay, checkpoint_dir=checkpoints, callback_retries=1000)

    @client.on("shop.orders")
    def changed(event: DataEvent) -> None:
        purge(cache, "/orders/" if event.is_truncate else f"/orders/{event.row['id']}")

    client.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
