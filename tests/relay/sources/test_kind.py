"""Kinds of source: the built-in ones, and those that other packages publish."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from databus.conf.loading import build_settings
from databus.conf.settings import PhysicalSourceSettings, RelaySettings
from databus.doctor.checks import Verdict
from databus.relay.relay import Relay
from databus.relay.sources.kind import (
    BUILT_IN,
    RepairRequest,
    SourceKind,
    check_source,
    kind_of,
    open_log_probe,
    open_scan,
    open_source,
    read_columns,
    repair_history,
)
from databus.relay.sources.mysql.server.log_probe import MysqlLogProbe
from databus.schemas.errors import SettingsError
from databus.schemas.event.event import Event
from databus.schemas.event.v2 import decode
from databus.schemas.table import Column, Table
from tests.relay.fakes import wait_until

ABACUS = '''
"""A kind of source in a package of its own."""

from databus.doctor.checks import ok
from databus.relay.sources.kind import SourceKind
from databus.relay.sources.source import RowChange, Source, Transaction
from databus.relay.sources.window_writer import WindowWriter
from databus.schemas.event.metadata import Op
from databus.schemas.table import Column, Table

BEADS = Table("abacus.beads", (Column("n", "bead", 0, False, 0, avro_type='"long"'),), "abacus")


class AbacusSource(Source):
    def __init__(self, settings, data_dir):
        self.name = settings.name

    def open(self, after_scn, newest=None):
        self._scn = after_scn or 0
        self._writer = WindowWriter(self.name, self._encoder, newest)

    def tables(self):
        return [BEADS]

    def read(self):
        return self._writer.write_from(self._next)

    def _next(self):
        if self._scn == 3:
            return []
        self._scn += 1
        change = RowChange(BEADS, Op.INSERT, {"n": self._scn * 100})
        return [Transaction(self._scn, self._scn, [change])]

    def close(self):
        pass


def check(request):
    return [ok(request.subject, "all beads are there")]


KIND = SourceKind(open=AbacusSource, check=check)
BROKEN_KIND = SourceKind(open=AbacusSource, check=lambda request: [1 // 0])
NO_KIND = "abacus"
'''


def settings(uri: str) -> PhysicalSourceSettings:
    return PhysicalSourceSettings(name="abacus", uri=uri, sources=("abacus.beads",))


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install a package with `abacus.py` that publishes the given entry points."""

    def install(*entries: str, name: str = "databus_abacus") -> None:
        folder = tmp_path / name
        about = folder / f"{name}-1.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text("\n".join(["[databus.sources]", *entries]))
        (folder / "abacus.py").write_text(ABACUS)
        (folder / "no_licence.py").write_text("raise RuntimeError('there is none')\n")
        monkeypatch.syspath_prepend(folder)

    yield install
    sys.modules.pop("abacus", None)


def events_of(relay: Relay) -> list[Event]:
    reader = relay.physical_sources["abacus"].reader
    data, at = reader.read(reader.head, 1 << 16), 0
    found = []
    while at < len(data):
        event, at = decode(data, at)
        found.append(event)
    return [event for event in found if not event.is_control]


def test_a_relay_captures_a_kind_of_source_that_another_package_publishes(
    publish: Any, tmp_path: Path
) -> None:
    publish("abacus = abacus:KIND")
    raw = {
        "data_dir": tmp_path / "data",
        "physical_sources": [{"name": "abacus", "uri": "abacus:", "sources": ["abacus.beads"]}],
    }
    relay = Relay(build_settings(raw, RelaySettings))
    try:
        relay.start()
        wait_until(lambda: relay.physical_sources["abacus"].ring.max_scn == 3)
        assert [event.key for event in events_of(relay)] == [100, 200, 300]
        (version,) = relay.registry.versions("abacus.beads")
        assert '{"name":"n","type":"long"' in version.text
    finally:
        relay.stop()


def test_the_doctor_asks_a_published_kind(publish: Any) -> None:
    publish("abacus = abacus:KIND")
    (check,) = check_source(settings("abacus:"), 0.0, reads_log=True, newest_scn=None)
    assert (check.verdict, check.text) == (Verdict.OK, "all beads are there")


def test_what_a_kind_cannot_do_is_refused_in_words(publish: Any, tmp_path: Path) -> None:
    publish("abacus = abacus:KIND")
    given = settings("abacus:")
    assert open_log_probe(given) is None
    with pytest.raises(SettingsError, match="has no tables to read"):
        open_scan(given)
    with pytest.raises(SettingsError, match="has no tables to make a schema of"):
        read_columns(given, "abacus.beads")
    with pytest.raises(SettingsError, match="keeps no history"):
        repair_history(given, tmp_path, RepairRequest("abacus.beads", 1, None))


def test_an_unknown_scheme_is_refused_with_those_that_there_are(publish: Any) -> None:
    publish("abacus = abacus:KIND")
    with pytest.raises(SettingsError, match=r"one of abacus, .*generator, mysql, sqlite"):
        open_source(settings("abbacus:"))
    (check,) = check_source(settings("abbacus:"), 0.0, reads_log=True, newest_scn=None)
    assert (check.verdict, "must be one of" in check.text) == (Verdict.ERROR, True)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("no_licence:KIND", "no_licence:KIND of package databus_abacus cannot be loaded: .*none"),
        ("abacus:NOTHING", "cannot be loaded"),
        ("no_abacus:KIND", "cannot be loaded"),
        ("abacus:NO_KIND", "is not a SourceKind"),
    ],
)
def test_an_entry_point_that_is_no_kind_is_refused(publish: Any, value: str, problem: str) -> None:
    publish(f"abacus = {value}")
    with pytest.raises(SettingsError, match=problem):
        kind_of("abacus:")


def test_a_check_that_fails_is_an_error_of_its_source(publish: Any) -> None:
    publish("abacus = abacus:BROKEN_KIND")
    (check,) = check_source(settings("abacus:"), 0.0, reads_log=True, newest_scn=None)
    assert check.verdict is Verdict.ERROR
    assert "its check failed: ZeroDivisionError" in check.text


def test_a_package_cannot_replace_a_built_in_kind(publish: Any) -> None:
    publish("sqlite = abacus:KIND")
    assert kind_of("sqlite:shop.db").scan is not None


def test_two_packages_that_publish_one_scheme_are_refused(publish: Any) -> None:
    publish("abacus = abacus:KIND")
    publish("abacus = abacus:OTHER", name="databus_abacus_too")
    with pytest.raises(SettingsError, match="several packages publish this scheme"):
        kind_of("abacus:")


@pytest.mark.parametrize("entry", BUILT_IN, ids=lambda entry: entry.name)
def test_every_built_in_kind_can_be_loaded(entry: Any) -> None:
    assert isinstance(kind_of(f"{entry.name}:"), SourceKind)


def test_a_source_of_sqlite_files_does_not_load_the_driver_of_mysql() -> None:
    code = (
        "import sys; from databus.relay.sources.kind import kind_of; kind_of('sqlite:x'); "
        "sys.exit('pymysql' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_scan_of_a_mysql_table_does_not_load_the_binlog_decoder() -> None:
    code = (
        "import sys; from databus.conf.loading import build_settings; "
        "from databus.conf.settings import PhysicalSourceSettings; "
        "from databus.relay.sources.kind import open_scan; "
        "raw = {'name': 'shop', 'uri': 'mysql://me@host', 'sources': ['shop.person']}; "
        "open_scan(build_settings(raw, PhysicalSourceSettings)); "
        "sys.exit(any('mysql.replication' in m or 'doctor.servers' in m for m in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_only_a_server_that_purges_its_log_is_probed() -> None:
    assert isinstance(open_log_probe(settings("mysql://me@host")), MysqlLogProbe)
    assert kind_of("sqlite:shop.db").probe_log is None


def test_a_kind_gets_tables_and_gives_tables_under_the_sources_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A repair names the source or its table, because a kind's own advice names the table."""
    asked: list[tuple[object, ...]] = []
    table = Table("shop.orders", (Column("id", "int", 0),))

    def note(settings: PhysicalSourceSettings, *more: object) -> Any:
        asked.append((settings.source_names, *more))
        return table

    made = SourceKind(open=note, check=lambda _: [], read_columns=note, repair_history=note)
    monkeypatch.setattr("databus.relay.sources.kind.kind_of", lambda _: made)
    own = "com.example.shop.Orders"
    raw = {"name": "shop", "uri": "x:", "sources": [{"name": own, "table": "shop.orders"}]}
    named = build_settings(raw, PhysicalSourceSettings)
    open_source(named, tmp_path)
    assert read_columns(named, own) == read_columns(named, "shop.orders") == table.named(own)
    for source in (own, "shop.orders"):
        repair_history(named, tmp_path, RepairRequest(source, 7, None))
    tables = ["shop.orders"]
    request = RepairRequest("shop.orders", 7, None)
    assert asked == [
        (tables, tmp_path),
        *[(tables, "shop.orders")] * 2,
        *[(tables, tmp_path, request)] * 2,
    ]
