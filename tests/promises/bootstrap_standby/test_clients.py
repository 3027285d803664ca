"""Clients of two bootstrap servers on one store, and commands that are given beside them."""

from __future__ import annotations

import contextlib
import json
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner

from databus.cli.main import main
from databus.client import DatabusClient
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.servers.places import open_directory
from tests import PATIENCE_S
from tests.bootstrap.walking import snapshot_at, split
from tests.promises.bootstrap_standby.pairs import (
    SOURCE,
    Server,
    TwoServers,
    Writer,
    two_servers,
)
from tests.promises.bootstrapping import PAGE_BYTES, Applying
from tests.promises.running import Shop, wait_until

ROWS = 3000


def get(server: Server, path: str, **parameters: Any) -> tuple[Any, bytes]:
    with contextlib.closing(
        HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    ) as connection:
        connection.request("GET", f"{path}?{urlencode(parameters)}")
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return answer.headers, body


def until_served(pair: TwoServers) -> None:
    pair.active()
    wait_until(lambda: pair.state().status == "active", "all rows", pair.tell, PATIENCE_S)


def test_the_checkpoint_of_a_page_is_good_at_the_other_server(shop: Shop, tmp_path: Path) -> None:
    with two_servers(tmp_path, shop, ROWS) as pair:
        until_served(pair)
        servers = pair.servers
        asked = Checkpoint(ConsumptionMode.SNAPSHOT, bootstrap_since_scn=0).to_json()
        headers, body = get(servers[0], "/startSCN", sources=SOURCE, checkPoint=asked)
        at = snapshot_at(SOURCE, int(json.loads(body)))
        at = at.with_extra(bootstrap_store_id=headers["x-databus-store"])
        keys, pages = [], 0
        while not at.is_snapshot_done:
            page = {"batchSize": PAGE_BYTES, "maxev": 2, "output": "binary", "sources": SOURCE}
            answers = [get(one, "/bootstrap", checkPoint=at.to_json(), **page) for one in servers]
            assert answers[0][1] == answers[1][1]
            # Each page from the other server, with the checkpoint of the one before.
            events, at = split(answers[pages % 2][1])
            keys += [event.key for event in events]
            pages += 1
        assert pages > 10
        assert sorted(keys) == list(range(ROWS))


@pytest.mark.parametrize("is_found", [False, True], ids=["named", "found"])
def test_a_client_goes_on_at_the_other_server_when_the_owner_is_killed_under_it(
    shop: Shop, tmp_path: Path, is_found: bool
) -> None:
    coordinator = f"file:{tmp_path / 'servers'}"
    places = [coordinator] * 2 if is_found else ["", ""]
    with two_servers(tmp_path, shop, ROWS, places) as pair:
        until_served(pair)
        owner = pair.active()
        other = pair.other(owner)
        # Until the client reads from the owner, there is no other.
        other.child.stop()
        killed: list[int] = []

        def kill_once(page: int) -> None:
            if page == 5 and not killed:
                pair.start(other)
                pair.wait_for_standby(other)
                owner.child.kill()
                killed.append(page)

        seen = Applying(kill_once)
        settings: dict[str, Any] = {"relays": [pair.relay.url]}
        settings["bootstrap_servers"] = [owner.url, other.url]
        if is_found:
            settings = {"coordinator": coordinator}
            wait_until(lambda: len(listed(coordinator)) == 2, "relay and owner")
        client = DatabusClient(
            **settings,
            start="beginning",
            fetch_bytes=PAGE_BYTES,
            wait_ms=300,
            request_timeout_s=3.0,
            back_off={"first_s": 0.02, "max_s": 0.2},
        )
        client.register(seen, [SOURCE])
        with client:
            with Writer(shop, ROWS, Random(1)):
                wait_until(
                    lambda: seen.calls[-1:] == ["stop"], "a bootstrap", client.status, PATIENCE_S
                )
            assert killed
            pair.wait_for_takeover(other)
            pair.start(owner)
            pair.wait_until_equal(shop)
            wanted = {(key, row["note"]) for key, row in shop.rows().items()}
            wait_until(lambda: seen.rows(SOURCE, "id", "note") == wanted, "the rows", client.status)
        assert not seen.problems
        pair.show("killed under a client")


def listed(coordinator: str) -> list[str]:
    directory = open_directory(coordinator)
    try:
        return [entry.url for entry in directory.entries()]
    finally:
        directory.close()


def test_seeding_by_hand_is_done_by_the_owner(shop: Shop, tmp_path: Path) -> None:
    with two_servers(tmp_path, shop, ROWS) as pair:
        until_served(pair)
        first = pair.state()
        shop.connection.execute("UPDATE orders SET note = 'x' WHERE id = 1")
        words = ["bootstrap", "seed", "-c", str(pair.servers[1].config), "--source", SOURCE]
        found = CliRunner().invoke(main, words, prog_name="databus")
        assert found.exit_code == 0, found.output
        wait_until(lambda: pair.state().status == "active", "all rows", pair.tell)
        assert pair.state().seed_scn > first.seed_scn
        pair.wait_until_equal(shop)
