"""Bytes recorded from LinkedIn's own relay and client; `recorded/README.md` says what is what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.promises.stock_databus.stock_relay import Recording

RECORDED = Path(__file__).with_name("recorded")
PERSON, CODE = "com.example.shop.Person", "com.example.shop.Code"


def recorded(name: str) -> bytes:
    """Return a recorded file."""
    return (RECORDED / name).read_bytes()


def recording() -> Recording:
    """Return what the stand-in for the relay serves."""
    return Recording(
        recorded("v1.sources.json"),
        recorded("v1.register.json"),
        recorded("v1.register4.json"),
        {0: recorded("v1.stream.bin"), 2: recorded("v2.stream.bin")},
    )


def expected_rows() -> list[dict[str, Any]]:
    """Return the rows that were put in, in order."""
    return [json.loads(line) for line in recorded("v1.expected.jsonl").splitlines()]


def row_of_record(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record of Spark (layout `structs`) in the form of the expected rows."""
    head = record["_databus"]
    row = record[head["source"]]
    return {
        "scn": head["scn"],
        "src": head["source"],
        "op": "DELETE" if head["op"] == "delete" else "UPSERT",
        "key": row["key" if head["source"] == PERSON else "code"],
        "first": row["firstName"],
        "amount": row["amount"],
        "blob": None if row["blob"] is None else row["blob"].hex(),
    }


def client_requests() -> list[tuple[str, dict[str, str]]]:
    """Return the requests of a stock client: (target, headers)."""
    found = []
    for block in recorded("client-requests.txt").decode().strip().split("\n\n"):
        line, *headers = block.split("\n")
        pairs = (header.split(": ", 1) for header in headers)
        found.append((line.removeprefix("GET ").removesuffix(" HTTP/1.1"), dict(pairs)))
    return found
