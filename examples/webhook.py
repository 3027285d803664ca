"""Send each change to a URL, as JSON.

    python examples/webhook.py http://127.0.0.1:11115 http://127.0.0.1:8000/hook checkpoints

A request that fails raises, and the transaction is delivered again: nothing is left out, and the
last ones may come twice. `X-Databus-Id` is the same then, so that the receiver can tell.
"""

from __future__ import annotations

import json
import sys
from urllib.request import Request, urlopen

from databus.client import DatabusClient, DataEvent

TIMEOUT_S = 10.0


def send(url: str, event: DataEvent) -> None:
    """Post one change; raises OSError if it is not taken."""
    change = {"op": event.op, "source": event.source, "row": dict(event.row)}
    headers = {"Content-Type": "application/json", "X-Databus-Id": f"{event.scn}-{event.index}"}
    body = json.dumps(change, default=str).encode()
    with urlopen(Request(url, body, headers), timeout=TIMEOUT_S):
        pass


def main(relay: str, url: str, checkpoints: str) -> None:
    """Send what comes, until Ctrl-C."""
    client = DatabusClient(relay, checkpoint_dir=checkpoints, callback_retries=1000)

    @client.on("shop.customers", "shop.orders")
    def changed(event: DataEvent) -> None:
        send(url, event)

    client.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
