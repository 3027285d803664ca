"""Figures of the business for Prometheus, counted from the changes.

    python examples/business_metrics.py http://127.0.0.1:11115 9101
    curl -s http://127.0.0.1:9101/metrics | grep shop_

The client's own figures (lag, events, retries) come with `http={"port": …}`; these are others.
"""

from __future__ import annotations

import sys

from prometheus_client import Counter, start_http_server

from databus.client import DatabusClient, DataEvent

CHANGES = Counter("shop_changes", "Changes of orders", ["op"])
STEPS = Counter("shop_steps", "Orders that went from one status to another", ["before", "after"])


def count(event: DataEvent) -> None:
    """Count one change, and the step of an order if it is one."""
    CHANGES.labels(event.op).inc()
    if event.before and event.before["status"] != event.row["status"]:
        STEPS.labels(event.before["status"], event.row["status"]).inc()


def main(relay: str, port: str) -> None:
    """Count until Ctrl-C."""
    start_http_server(int(port), "127.0.0.1")
    client = DatabusClient(relay, start="latest")
    client.on("shop.orders")(count)
    client.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
