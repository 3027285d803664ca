"""The columns of a schema version, as the API has them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.relay.fakes import ServedRelay, insert, transaction


def test_the_columns_of_the_newest_version_and_of_one_that_is_asked_for(tmp_path: Path) -> None:
    relay = ServedRelay(tmp_path)
    try:
        relay.put(transaction(1, insert(1)))
        path = "/api/v1/sources/shop.person/columns"
        found = json.loads(relay.get(path).body)
        assert (found["source"], found["version"]) == ("shop.person", 1)
        assert found["columns"] == [
            {"name": "id", "type": "integer", "keyPosition": 1},
            {"name": "name", "type": "text null", "keyPosition": None},
        ]
        assert json.loads(relay.get(path, version="1").body) == found
        refused = relay.get(path, version="7")
        assert (refused.status, b"one of 1" in refused.body) == (400, True)
        assert relay.get("/api/v1/sources/nothing/columns").status == 404
    finally:
        relay.close()
