"""Sinks that write to folders, and what is in those."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from databus.client.sinks.contract import Change, Position
from databus.client.sinks.ready.files import FilesSink
from databus.schemas.checkpoint import Checkpoint
from tests.client.sinks.changes import made

_made: list[FilesSink] = []


def change(scn: int, table: str = "orders", at_ns: int = 0, **values: Any) -> Change:
    position = Position("shop", Checkpoint.at(scn))
    one = made("insert", scn, f"shop.{table}", scn=scn, **values)
    return replace(one, position=position, timestamp_ns=at_ns)


def sink(folder: Path | str, form: str = "json") -> FilesSink:
    """Return a sink, which is closed at the end of the test."""
    _made.append(
        FilesSink(FilesSink.Options.model_validate({"folder": str(folder), "format": form}))
    )
    return _made[-1]


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close the sinks of a test."""
    yield
    while _made:
        _made.pop().close()


def entries(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(one.read_text()) for one in sorted((folder / "_manifest").glob("*.json"))]


def read(folder: Path) -> list[int]:
    """Return the SCNs of the rows that count, in the order of the manifest."""
    paths = [folder / file["path"] for entry in entries(folder) for file in entry["files"]]
    lines = [line for path in paths for line in path.read_text().splitlines()]
    return [json.loads(line)["scn"] for line in lines]
