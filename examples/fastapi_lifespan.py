"""A FastAPI service that answers from memory, and follows the shop while it runs.

    RELAY=http://127.0.0.1:11115 uvicorn --app-dir examples fastapi_lifespan:app

The client begins and ends with the application. It reads from the oldest change that the relay
holds; give it `bootstrap_servers` and `start="beginning"`, and it has every row.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException

from databus.client import DatabusClient, DataEvent

client = DatabusClient(os.environ["RELAY"])
orders: dict[int, dict[str, Any]] = {}


@client.on("shop.orders")
def keep(event: DataEvent) -> None:
    """Keep the newest row of each order."""
    if event.is_truncate:
        orders.clear()
    elif event.is_delete:
        orders.pop(event.row["id"], None)
    else:
        orders[event.row["id"]] = dict(event.row)


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    """Follow the shop as long as the application runs."""
    with client:
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/orders/{number}")
def order(number: int) -> dict[str, Any]:
    """Return an order as it is now."""
    if number not in orders:
        raise HTTPException(404)
    return orders[number]
