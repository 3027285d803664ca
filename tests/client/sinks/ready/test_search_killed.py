"""`databus sink run` into OpenSearch, both killed at random moments: documents equal the source."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from databus.demo.processes import python_module, wait_until
from databus.demo.stage import Stage
from tests.client.sinks.search_server import PrivateOpenSearch
from tests.client.sinks.serving.test_killed import PATIENCE_S, rows, stage, writing

pytest_plugins = ["tests.client.sinks.search_fixtures"]
pytestmark = pytest.mark.opensearch

KILLS = 6
KILLS_OF_THE_SERVER = frozenset({2})  # it takes ten seconds to start
SINKS = """
data_dir = "state"
relays = ["{url}"]

[[sinks]]
name = "serial"
kind = "opensearch"
sources = ["shop.*"]
options = {{ url = "{search}", index = "serial-{{source}}" }}
flush = {{ rows = 50, seconds = 0.1 }}
failures = {{ back_off = {{ first_s = 0.1, max_s = 0.5 }} }}

[[sinks]]
name = "lanes"
kind = "elasticsearch"
sources = ["shop.*"]
order = "row"
lanes = 4
options = {{ url = "{search}", index = "lanes-{{source}}", scn_field = "" }}
flush = {{ rows = 50, seconds = 0.1 }}
failures = {{ back_off = {{ first_s = 0.1, max_s = 0.5 }} }}
"""


def documents(search: PrivateOpenSearch, sink: str) -> dict[tuple[str, int], dict[str, Any]]:
    found = {}
    for source in ("shop.t1", "shop.t2"):
        for key, row in search.documents(f"{sink}-{source}").items():
            row.pop("databus_scn", None)
            found[source, int(key)] = row
    return found


def kill_again_and_again(
    made: Stage, rng: random.Random, command: list[str], search: PrivateOpenSearch
) -> None:
    sinks = made.child("sinks", command)
    sinks.start()
    for kill in range(KILLS):
        time.sleep(1.0 + rng.random() / 2)
        if kill in KILLS_OF_THE_SERVER:
            search.kill()
            search.start()
        else:
            sinks.kill()
            sinks.start()


def test_after_kills_of_both_the_documents_equal_the_source(
    new_search: Callable[[], PrivateOpenSearch],
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with (
        new_search() as search,
        stage("sqlite") as made,
        closing(made.database.connect()) as session,
    ):
        settings = made.folder / "sink.toml"
        settings.write_text(SINKS.format(url=made.url, search=search.url))
        with writing(made, rng):
            command = python_module("databus.cli.main", "sink", "run", "-c", settings)
            kill_again_and_again(made, rng, command, search)
        wanted = rows(session)
        assert len(wanted) > 20
        for sink in ("serial", "lanes"):
            wait_until(lambda sink=sink: documents(search, sink) == wanted, PATIENCE_S, sink)  # type: ignore[misc]
