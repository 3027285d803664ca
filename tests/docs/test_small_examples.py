"""The small programs of examples/, each run as its docstring says, all beside one shop."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError

import pytest

from databus.demo.processes import Child, free_port, wait_until
from tests import PATIENCE_S
from tests.docs.shop import commit, make_shop
from tests.standalone.nodes import Node
from tools.repository import ROOT

EXAMPLES = ROOT / "examples"
# In tests/docs/test_examples.py, tests/docs/deploy/test_compose.py and those of Spark.
ELSEWHERE = {"orders_to_sqlite.py", "printing.py", "spark_orders.py"}


class Request(NamedTuple):
    """What a receiver got."""

    method: str
    path: str
    id: str | None
    body: str


class Receiver(ThreadingHTTPServer):
    """Takes every request and keeps it; the first to /hook is answered 503."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.taken: list[Request] = []
        self.refused = 0


class _Handler(BaseHTTPRequestHandler):
    def _take(self) -> None:
        receiver = self.server
        assert isinstance(receiver, Receiver)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        is_refused = self.path == "/hook" and not receiver.refused
        if is_refused:
            receiver.refused += 1
        else:
            given = self.headers.get("X-Databus-Id") or self.headers.get("Idempotency-Key")
            receiver.taken.append(Request(self.command, self.path, given, body))
        self.send_response(503 if is_refused else 204)
        self.end_headers()

    do_POST = do_PURGE = _take  # noqa: N815

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""


class Street(NamedTuple):
    """A shop, and all examples at work beside it."""

    folder: Path
    receiver: Receiver
    programs: dict[str, Child]
    api: str
    metrics: str

    def wait_for(self, condition: Callable[[], object], program: str) -> None:
        """Wait for something that a program does."""
        try:
            wait_until(condition, PATIENCE_S, program)
        except TimeoutError:
            raise AssertionError(self.programs[program].log_tail()) from None

    def requests(self, prefix: str) -> list[Request]:
        return [one for one in self.receiver.taken if one.path.startswith(prefix)]

    def rows(self, file: str, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / file, timeout=PATIENCE_S)) as database:
            try:
                return database.execute(query).fetchall()
            except sqlite3.OperationalError:
                return []  # the program has made no table yet


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Street]:
    """Start a shop, a relay and every example; then somebody orders, pays and cancels."""
    folder = tmp_path_factory.mktemp("street")
    shop = make_shop(folder)
    commit(folder, "CREATE TABLE outbox (id INTEGER PRIMARY KEY, topic TEXT, payload TEXT)")
    node = Node(folder, "relay", "run", "-c", folder / "relay.toml")
    sources = '["shop.customers", "shop.orders", "shop.outbox"]'
    node.write(f'name = "shop"\nuri = "sqlite:{shop}"\nsources = {sources}')
    with ExitStack() as ended:
        receiver = ended.enter_context(Receiver())
        thread = threading.Thread(target=receiver.serve_forever, name="receiver")
        thread.start()
        ended.callback(thread.join)
        ended.callback(receiver.shutdown)
        node.child.start()
        ended.callback(node.child.stop, 20)
        node.wait_for(lambda: "listening on" in node.said)
        node.wait_for(lambda: node.health(node.url)[0] == 200)
        api, metrics = free_port(), free_port()
        programs = start_all(folder, node.url, receiver.url, api, metrics)
        for child in programs.values():
            ended.callback(child.stop, 20)
        trade(folder)
        yield Street(
            folder, receiver, programs, f"http://127.0.0.1:{api}", f"http://127.0.0.1:{metrics}"
        )


def start_all(folder: Path, relay: str, receiver: str, api: int, metrics: int) -> dict[str, Child]:
    """Start every example, as its docstring says."""
    words: dict[str, tuple[object, ...]] = {
        "webhook": (relay, f"{receiver}/hook", "hooks"),
        "cache_invalidation": (relay, receiver, "purges"),
        "search_index": (relay, "index.db", "searches"),
        "audit_table": (relay, "audit.db", "audits"),
        "outbox": (relay, f"{receiver}/topics", "messages"),
        "dead_letters": (relay, "letters.jsonl", "letters"),
        "business_metrics": (relay, metrics),
        "status_counts": (relay, "counts.db"),
    }
    commands = {
        name: [str(EXAMPLES / f"{name}.py"), *map(str, given)] for name, given in words.items()
    }
    uvicorn = ["-m", "uvicorn", "fastapi_lifespan:app", "--log-level", "warning"]
    commands["fastapi_lifespan"] = [*uvicorn, "--app-dir", str(EXAMPLES), "--port", str(api)]
    found = {}
    for name, command in commands.items():
        line = ["env", f"--chdir={folder}", f"RELAY={relay}", sys.executable, *command]
        found[name] = Child(name, line, folder)
        found[name].start()
    return found


def trade(folder: Path) -> None:
    """Order, pay, cancel, and send messages, one of them in a transaction that is rolled back."""
    commit(folder, "INSERT INTO customers VALUES (1, 'Ada Lovelace'), (2, 'Grace Hopper')")
    commit(folder, "UPDATE customers SET name = 'Grace M. Hopper' WHERE id = 2")
    commit(
        folder,
        "INSERT INTO orders VALUES (1, 1, 'placed'), (2, 2, 'placed'), (3, 1, 'placed')",
        """INSERT INTO outbox VALUES (1, 'orders', '{"order": 1}')""",
        "DELETE FROM outbox",
    )
    with pytest.raises(sqlite3.IntegrityError):
        commit(
            folder,
            "INSERT INTO outbox VALUES (2, 'orders', 'never')",
            "INSERT INTO orders VALUES (1, 1, 'twice')",
        )
    commit(folder, "UPDATE orders SET status = 'paid' WHERE id = 1")
    commit(
        folder, "UPDATE orders SET status = 'lost' WHERE id = 2", "DELETE FROM orders WHERE id = 3"
    )
    commit(folder, "INSERT INTO outbox VALUES (3, 'refunds', '{\"order\": 3}')")


def get(url: str) -> str:
    """Return what a program answers; "" while it does not listen, or has nothing."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            text: str = answer.read().decode()
            return text
    except HTTPError as refused:
        refused.close()
        return ""
    except URLError:
        return ""


def test_every_example_has_a_test_and_is_on_the_page() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    for example in EXAMPLES.glob("*.py"):
        assert example.name in ELSEWHERE or f'"{example.stem}"' in text
        assert f"(../examples/{example.name})" in page


def test_a_webhook_gets_each_change_in_order_though_it_refused_one(street: Street) -> None:
    def bodies() -> list[dict[str, Any]]:
        return [json.loads(one.body) for one in street.requests("/hook")]

    def ops() -> list[tuple[str, int]]:
        # What comes twice has the same id.
        by_id = dict(zip((one.id for one in street.requests("/hook")), bodies(), strict=True))
        return [(one["op"], one["row"]["id"]) for one in by_id.values()]

    wanted = [("insert", 1), ("insert", 2), ("update", 2), ("insert", 1), ("insert", 2)]
    wanted += [("insert", 3), ("update", 1), ("update", 2), ("delete", 3)]
    street.wait_for(lambda: ops()[: len(wanted)] == wanted, "webhook")
    assert street.receiver.refused == 1


def test_the_cache_is_purged_for_each_order_that_changed(street: Street) -> None:
    def purged() -> list[str]:
        return [one.path for one in street.requests("/orders/") if one.method == "PURGE"]

    street.wait_for(lambda: purged().count("/orders/2") >= 2, "cache_invalidation")
    assert purged()[:5] == [f"/orders/{n}" for n in (1, 2, 3, 1, 2)]


def test_the_search_index_finds_the_newest_names(street: Street) -> None:
    query = "SELECT rowid, name FROM customers WHERE customers MATCH 'hopper'"
    wanted = [(2, "Grace M. Hopper")]
    street.wait_for(lambda: street.rows("index.db", query) == wanted, "search_index")


def test_the_service_answers_with_the_newest_row_and_404_for_a_deleted_one(street: Street) -> None:
    def order(number: int) -> str:
        return get(f"{street.api}/orders/{number}")

    street.wait_for(lambda: '"lost"' in order(2), "fastapi_lifespan")
    street.wait_for(lambda: not order(3), "fastapi_lifespan")
    assert json.loads(order(1)) == {"id": 1, "customer": 1, "status": "paid"}


def test_the_audit_has_each_order_before_and_after(street: Street) -> None:
    query = "SELECT op, before, after FROM audit WHERE source = 'shop.orders' ORDER BY scn, place"
    street.wait_for(lambda: len(street.rows("audit.db", query)) >= 6, "audit_table")
    found = [
        (op, *(json.loads(row)["status"] if row else None for row in rows))
        for op, *rows in street.rows("audit.db", query)
    ]
    wanted = [("insert", None, "placed")] * 3 + [("update", "placed", "paid")]
    assert found[:6] == [*wanted, ("update", "placed", "lost"), ("delete", "placed", None)]


def test_a_message_is_published_once_it_is_committed_and_only_then(street: Street) -> None:
    street.wait_for(lambda: len(street.requests("/topics/")) >= 2, "outbox")
    first, second, *others = street.requests("/topics/")
    assert (first.path, first.id, first.body) == ("/topics/orders", "1", '{"order": 1}')
    assert (second.path, second.id) == ("/topics/refunds", "3")
    assert others == []


def test_a_bad_row_is_put_aside_and_the_others_go_on(street: Street) -> None:
    letters = street.folder / "letters.jsonl"
    program = street.programs["dead_letters"]
    street.wait_for(lambda: "processed delete 3" in program.log_tail(), "dead_letters")
    (letter,) = map(json.loads, letters.read_text().splitlines())
    assert letter["problem"] == "no such status: lost"
    assert letter["row"] == {"id": 2, "customer": 2, "status": "lost"}


def test_steps_are_counted_for_prometheus_from_its_start_on(street: Street) -> None:
    statuses = ["packed", "sent"]

    def is_counted() -> object:
        statuses.reverse()
        commit(street.folder, f"UPDATE orders SET status = '{statuses[0]}' WHERE id = 1")
        line = r'^shop_steps_total{after="sent",before="packed"} [1-9]'
        return re.search(line, get(f"{street.metrics}/metrics"), re.M)

    street.wait_for(is_counted, "business_metrics")


def test_the_counts_equal_those_of_the_shop_after_a_kill_too(street: Street) -> None:
    query = "SELECT status, {} FROM {} ORDER BY 1"

    def is_equal() -> bool:
        counted = street.rows("counts.db", query.format("orders", "counts WHERE orders"))
        return counted == street.rows("shop.db", query.format("count(*)", "orders GROUP BY 1"))

    street.wait_for(is_equal, "status_counts")
    program = street.programs["status_counts"]
    program.kill()
    commit(street.folder, "INSERT INTO orders VALUES (8, 1, 'placed'), (9, 2, 'placed')")
    assert not is_equal()
    program.start()
    street.wait_for(is_equal, "status_counts")
    program.stop(20)
