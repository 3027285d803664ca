"""Physical sources and tables are added and removed while a relay runs, by its commands.

The changes hold after a restart, the settings file keeps its comments, and the other physical
sources do not notice.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest
from click.testing import CliRunner

from databus.cli.main import main
from databus.conf.loading import load_settings
from databus.conf.settings import RelaySettings
from databus.relay.capture.status import State
from databus.relay.relay import Relay
from databus.relay.service import make_service
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.stream.stream_reader import walk
from tests import PATIENCE_S
from tests.relay.fakes import ServiceThread, get, wait_until
from tests.relay.test_matched_tables import ids_of

TOKEN = "a-token-of-an-administrator"
SETTINGS = """\
# Ours.
data_dir = "data"

[http]
port = 0
admin_tokens_file = "tokens"   # for orders
reader_tokens_file = "tokens"

[[physical_sources]]
name = "shop"              # the shop
uri = "sqlite:shop.db"
sources = [
    "shop.a",   # never without it
]

[[physical_sources]]
name = "other"
uri = "sqlite:other.db"
sources = ["other.a"]
"""


class Place:
    """A relay with a settings file, in a folder with SQLite files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "relay.toml"
        self.file.write_text(SETTINGS)
        (folder / "tokens").write_text(TOKEN)
        (folder / "tokens").chmod(0o600)
        for name in ("shop", "other", "crm"):
            self.run(name, *(f"CREATE TABLE {t} (id INTEGER PRIMARY KEY)" for t in "ab"))
        self.relay, self.url = Relay.__new__(Relay), ""

    def run(self, name: str, *statements: str) -> None:
        path = self.folder / f"{name}.db"
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA busy_timeout = 10000")
            for statement in statements:
                connection.execute(statement)

    def insert(self, name: str, table: str, *ids: int) -> None:
        self.run(name, *(f"INSERT INTO {table} VALUES ({one})" for one in ids))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self.relay = Relay(load_settings(self.file, RelaySettings))
        server = ServiceThread(make_service(self.relay))
        self.url = server.url
        try:
            wait_until(lambda: all(map(self.is_captured, self.relay.physical_sources)))
            yield
        finally:
            server.close()

    def is_captured(self, name: str) -> bool:
        return self.relay.physical_sources[name].capture.status.is_connected

    def order(self, *words: str, fails: bool = False) -> str:
        file = str(self.folder / "tokens")
        found = CliRunner().invoke(
            main, ["source", *words, "--relay", self.url, "--token-file", file]
        )
        assert found.exit_code == (1 if fails else 0), found.output
        return found.output

    def ends_with(self, source: str, last: int) -> bool:
        return self.ids(source)[-1:] == [last]

    def knows(self, source: str) -> bool:
        return source in self.relay.catalog.ids

    def ids(self, source: str) -> list[int]:
        return ids_of(self.url, source, TOKEN)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@contextlib.contextmanager
def writing(place: Place) -> Iterator[list[int]]:
    """Insert rows into `other` all the time; yield their ids."""
    written: list[int] = []
    is_over = threading.Event()

    def write() -> None:
        while not is_over.wait(0.005):
            place.insert("other", "a", len(written) + 1)
            written.append(len(written) + 1)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        is_over.set()
        thread.join(PATIENCE_S)


@contextlib.contextmanager
def never_pausing(place: Place, name: str) -> Iterator[None]:
    """Prove that capture of a physical source is running and on one connection all the time."""
    capture, states = place.relay.physical_sources[name].capture, set()
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.001):
            states.add(capture.status.state)

    thread, opened = threading.Thread(target=watch), capture.status.reconnects
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(PATIENCE_S)
    assert states == {State.RUNNING}
    assert capture.status.reconnects == opened


def test_the_others_never_pause_while_sources_and_tables_come_and_go(place: Place) -> None:
    with place.running(), writing(place) as written, never_pausing(place, "other"):
        for round_ in range(3):
            place.order("change", "shop", "--add", "shop.b")
            place.insert("shop", "b", round_ + 1)
            wait_until(partial(place.ends_with, "shop.b", round_ + 1))
            place.order("add", f"crm{round_}", f"sqlite:{place.folder}/crm.db", f"crm{round_}.*")
            wait_until(partial(place.knows, f"crm{round_}.a"))
            place.order("remove", f"crm{round_}", "--yes")
            place.order("change", "shop", "--remove", "shop.b")
        wait_until(lambda: len(written) > 20)
        time.sleep(0.1)
        count = len(written)
        wait_until(lambda: len(place.ids("other.a")) >= count)
        assert place.ids("other.a")[:count] == [*range(1, count + 1)]


def test_a_table_that_is_added_is_captured_from_then_on_and_after_a_restart(place: Place) -> None:
    with place.running():
        place.insert("shop", "b", 1)
        assert "shop.b" in place.order("change", "shop", "--add", "shop.b")
        place.insert("shop", "b", 2)
        wait_until(lambda: place.ids("shop.b") == [2])
        ids = dict(place.relay.catalog.ids)
        listing = place.order("list")
        assert "  shop.b\n" in listing
    text = place.file.read_text()
    for line in ("# Ours.", "# for orders", "# the shop", "# never without it"):
        assert line in text
    assert text.count("shop.b") == 1
    with place.running():
        place.insert("shop", "b", 3)
        wait_until(lambda: place.ids("shop.b") == [2, 3])
        assert dict(place.relay.catalog.ids) == ids


def test_a_table_that_is_removed_is_not_known_any_more_and_its_consumers_of_before_bootstrap(
    place: Place,
) -> None:
    with place.running():
        place.order("change", "shop", "--add", "shop.b")
        place.insert("shop", "b", 1)
        wait_until(lambda: place.ids("shop.b") == [1])
        place.order("change", "shop", "--remove", "shop.b")
        headers = {"Authorization": f"Bearer {TOKEN}"}
        answer = get(place.url, "/stream?sources=shop.b&size=1000", headers)
        assert b"unknown source" in answer.body
        place.insert("shop", "b", 2)  # in no window
        place.insert("shop", "a", 1)
        wait_until(lambda: place.ids("shop.a") == [1])
        place.order("change", "shop", "--add", "shop.b")
        place.insert("shop", "b", 3)
        wait_until(lambda: place.ids("shop.b") == [3])


def test_a_request_that_is_held_for_a_source_that_is_removed_is_answered(place: Place) -> None:
    with place.running():
        place.insert("other", "a", 1)
        wait_until(lambda: place.ids("other.a") == [1])
        source = place.relay.physical_sources["other"]
        at = quote(Checkpoint.at(source.ring.max_scn).to_json())
        path = f"/stream?sources=other.a&size=1000&wait=30000&checkPoint={at}"
        found = []
        held = threading.Thread(
            target=lambda: found.append(get(place.url, path, {"Authorization": f"Bearer {TOKEN}"}))
        )
        held.start()
        wait_until(lambda: source.notifier.waiting == 1)
        place.order("remove", "other", "--yes")
        held.join(PATIENCE_S)
        assert [answer.status for answer in found] == [200]
        answer = get(place.url, path, {"Authorization": f"Bearer {TOKEN}"})
        assert answer.status == 404
        assert b"unknown source" in answer.body


READ_BY_THE_PAGE = ("relay", "tables", "clients", "bootstrap", "settings", "audit", "problems")


def test_the_page_goes_on_when_a_source_was_removed_and_when_one_was_added(place: Place) -> None:
    def shown(path: str) -> str:
        answer = get(place.url, f"/api/v1/{path}", {"Authorization": f"Bearer {TOKEN}"})
        assert answer.status == 200, (path, answer.body)
        return answer.body.decode()

    with place.running():
        wait_until(lambda: "other.a" in shown("tables"))
        place.order("remove", "other", "--yes")
        place.order("add", "crm", f"sqlite:{place.folder / 'crm.db'}", "crm.a")
        wait_until(lambda: "crm.a" in shown("tables"))
        assert "other.a" not in shown("tables")
        for path in READ_BY_THE_PAGE:
            shown(path)


@pytest.mark.parametrize("more", ["", "&follow=true"])
def test_a_request_that_is_held_is_sent_no_rows_of_a_table_that_comes_meanwhile(
    place: Place, more: str
) -> None:
    with place.running():
        place.insert("shop", "a", 1)
        wait_until(lambda: place.ids("shop.a") == [1])
        source = place.relay.physical_sources["shop"]
        at = quote(Checkpoint.at(source.ring.max_scn).to_json())
        path = f"/stream?sources=shop.a&size=100000&wait=30000&checkPoint={at}{more}"
        found: list[bytes] = []
        headers = {"Authorization": f"Bearer {TOKEN}"}
        held = threading.Thread(target=lambda: found.append(get(place.url, path, headers).body))
        held.start()
        wait_until(lambda: source.notifier.waiting == 1)
        place.order("change", "shop", "--add", "shop.b")
        place.insert("shop", "b", *range(1, 4))
        held.join(PATIENCE_S)
        rows = [event.src_id for event in walk(found[0]) if not event.is_control]
        assert rows == []


def test_patterns_are_added_and_removed_too(place: Place) -> None:
    with place.running():
        place.order("change", "shop", "--add", "shop.*", "--remove", "shop.a", "--add", "!shop.x*")
        wait_until(lambda: {"shop.a", "shop.b"} <= place.relay.catalog.ids.keys())
        assert "shop.b  (found by a pattern)" in place.order("list")
        place.run("shop", *(f"CREATE TABLE {t} (id INTEGER PRIMARY KEY)" for t in ("x1", "c")))
        wait_until(lambda: "shop.c" in place.relay.catalog.ids)
        place.insert("shop", "c", 5)
        wait_until(lambda: place.ids("shop.c") == [5])
        assert "shop.x1" not in place.relay.catalog.ids
        place.order("change", "shop", "--remove", "shop.*", "--remove", "!shop.x*", fails=True)
        place.order(
            "change", "shop", "--add", "shop.a", "--remove", "shop.*", "--remove", "!shop.x*"
        )
        assert place.relay.catalog.members["shop"] == ("shop.a",)


def test_a_physical_source_that_is_added_stays_and_one_that_is_removed_does_not_come_back(
    place: Place,
) -> None:
    with place.running():
        place.order("add", "crm", f"sqlite:{place.folder}/crm.db", "crm.a")
        wait_until(lambda: place.is_captured("crm"))
        place.insert("crm", "a", 1)
        wait_until(lambda: place.ids("crm.a") == [1])
        assert "crm  running" in place.order("list")
        assert "other is removed" in place.order("remove", "other", "--yes")
        assert "other" not in place.order("list")
        headers = {"Authorization": f"Bearer {TOKEN}"}
        for path in ("/health", "/metrics", "/sources", "/api/v1/physicalSources", "/api/v1/relay"):
            answer = get(place.url, path, headers)
            assert answer.status == 200, path
            assert b'"other' not in answer.body, path
    with place.running():
        place.insert("crm", "a", 2)
        wait_until(lambda: place.ids("crm.a") == [1, 2])
        assert set(place.relay.physical_sources) == {"shop", "crm"}


def test_a_source_of_another_database_gets_neither_the_ring_nor_the_name_of_one_before(
    place: Place,
) -> None:
    with place.running():
        place.insert("other", "a", *range(1, 6))
        wait_until(lambda: place.ids("other.a") == [1, 2, 3, 4, 5])
        place.order("remove", "other", "--yes")
        crm = f"sqlite:{place.folder}/crm.db"
        refused = place.order("add", "other", crm, "other.a", fails=True)
        assert "source other.a was captured from sqlite:" in refused
        assert "its consumers have positions in that log" in " ".join(refused.split())
        place.order("add", "other", f"sqlite:{place.folder}/other.db", "other.a")
        wait_until(lambda: place.is_captured("other"))
        place.insert("other", "a", 6)
        wait_until(lambda: place.ids("other.a") == [6])  # nothing of the ring before
        assert len(list((place.folder / "data" / "removed").glob("other-*/other.ring"))) == 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("change", "shop", "--remove", "shop.z"), "shop does not list shop.z; it lists shop.a"),
        (("change", "shop", "--add", "other.a"), "other.a is listed in two physical sources"),
        (("change", "shop", "--remove", "shop.a"), "give at least 1"),
        (("change", "none", "--add", "shop.b"), "unknown source"),
        (("add", "shop", "sqlite:x.db", "x.a"), "physical source shop is listed more than once"),
        (("add", "x", "mysql://u:hush@h:1", "x.a"), "it has a password in it"),
        (("add", "x", "oracle://u@h:1", "x.a"), "the scheme must be one of"),
        (("change", "shop", "--add", "shop.ordrs"), "has no table for source shop.ordrs"),
        (("change", "shop", "--add", "shop.seen"), "has no table for source shop.seen"),
        (("add", "x", "sqlite:crm.db", "x.none"), "has no table for source x.none"),
        (("add", "x", "sqlite:gone.db", "x.a"), "gone.db does not exist"),
        (("add", "x", "sqlite:shop.db", "shop.a"), "shop.a is listed in two physical sources"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_changed(
    place: Place, words: tuple[str, ...], problem: str
) -> None:
    place.run("shop", "CREATE VIEW seen AS SELECT * FROM a")
    with place.running():
        before = place.file.read_text(), dict(place.relay.catalog.ids)
        refused = place.order(*words, fails=True)
        assert problem in " ".join(refused.split())
        assert "hush" not in refused
        assert (place.file.read_text(), dict(place.relay.catalog.ids)) == before
        wait_until(lambda: all(map(place.is_captured, place.relay.physical_sources)))


def test_a_file_that_somebody_has_edited_since_the_start_is_left_alone(place: Place) -> None:
    with place.running():
        place.file.write_text(SETTINGS.replace('"other.a"', '"other.a", "other.b"'))
        refused = place.order("change", "shop", "--add", "shop.b", fails=True)
        assert "it was changed since" in " ".join(refused.split())
        assert '"shop.b"' not in place.file.read_text()


def test_without_tokens_nobody_adds_a_database_that_the_relay_is_to_open(place: Place) -> None:
    text = SETTINGS.replace('admin_tokens_file = "tokens"', "").replace(
        'reader_tokens_file = "tokens"', ""
    )
    place.file.write_text(text)
    with place.running():
        refused = place.order("add", "crm", "sqlite:crm.db", "crm.a", fails=True)
        assert "set http.admin_tokens_file" in " ".join(refused.split())
        place.order("change", "shop", "--add", "shop.b")


def test_nothing_is_taken_from_a_bootstrap_pair_in_the_same_process(place: Place) -> None:
    with place.running():
        place.relay.changes.has_pair = True
        place.order("change", "shop", "--add", "shop.b")
        for words in (("change", "shop", "--remove", "shop.b"), ("remove", "shop", "--yes")):
            refused = " ".join(place.order(*words, fails=True).split())
            assert "the bootstrap pair of this process reads" in refused
        wait_until(lambda: place.is_captured("shop"))
        assert "shop.b" in place.relay.catalog.ids


def test_a_token_of_a_reader_changes_nothing(place: Place) -> None:
    (place.folder / "tokens").write_text("a-token-of-a-mere-reader")
    (place.folder / "admins").write_text(TOKEN)
    (place.folder / "admins").chmod(0o600)
    place.file.write_text(
        SETTINGS.replace('admin_tokens_file = "tokens"', 'admin_tokens_file = "admins"')
    )
    with place.running():
        for words in (("change", "shop", "--add", "shop.b"), ("remove", "other", "--yes")):
            assert "this is for admins" in place.order(*words, fails=True)
        assert place.file.read_text().count("shop.b") == 0
        assert set(place.relay.physical_sources) == {"shop", "other"}
