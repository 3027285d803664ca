"""The outbox pattern: publish the messages that an application inserted in its own transactions.

    python examples/outbox.py http://127.0.0.1:11115 http://127.0.0.1:8000 checkpoints

The application inserts (id, topic, payload) into its table `outbox`, in the transaction whose news
it is, and may delete the row in the same transaction: the insert is in the log all the same. So no
message is sent for what was rolled back, and none is lost. Messages go to URL/TOPIC in the order of
the commits; the id lets the receiver tell one that comes twice.
"""

from __future__ import annotations

import sys
from urllib.request import Request, urlopen

from databus.client import DatabusClient, DataEvent

TIMEOUT_S = 10.0


def publish(url: str, topic: str, number: int, payload: str) -> None:
    """Send one message; raises OSError if it is not taken."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": str(number)}
    with urlopen(Request(f"{url}/{topic}", payload.encode(), headers), timeout=TIMEOUT_S):
        pass


def main(relay: str, url: str, checkpoints: str) -> None:
    """Publish until Ctrl-C."""
    client = DatabusClient(relay, checkpoint_dir=checkpoints, callback_retries=1000)

    @client.on("shop.outbox")
    def changed(event: DataEvent) -> None:
        if event.op == "insert":
            publish(url, event.row["topic"], event.row["id"], event.row["payload"])

    client.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
