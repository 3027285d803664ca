"""What a consumer's reader makes of events: names are those of tables, as Canal's clients know."""

from __future__ import annotations

from datetime import UTC
from types import SimpleNamespace
from typing import Any

from databus.conf.doors.canal_settings import CanalSettings
from databus.conf.source_names import NamedTable, SourceNames
from databus.daemon.fair_queue import FairQueue
from databus.relay.monitoring.clients import Caller
from databus.relay.ring.event_selector import WINDOW_DONE
from databus.relay.serving.canal.consuming.batches import Place
from databus.relay.serving.canal.consuming.entry_reader import EntryReader, Stage
from databus.relay.serving.canal.entries import Kind
from databus.relay.serving.canal.protocol.filters import TableFilter
from tests.relay.serving.canal.raw_client import seen
from tests.relay.serving.canal.test_entries import ddl, eop, scn

CALLER = Caller("canal:example:1001", "127.0.0.1", "canal client")


def reader_of(names: SourceNames, white: str) -> EntryReader:
    relay: Any = SimpleNamespace(
        registry=SimpleNamespace(text_of=lambda _id: None, sources=lambda: ()),
        catalog=SimpleNamespace(src_ids_of=lambda _source: {"people": 7}, former_ids=()),
        physical_source=lambda _name: SimpleNamespace(settings=SimpleNamespace(names=names)),
    )
    relay.catalog.name_of = {7: "people"}.__getitem__
    settings = CanalSettings(destinations=({"name": "example", "physical_sources": ("shop",)},))
    stage = Stage(relay, FairQueue(), settings, UTC)
    place = Place((0, WINDOW_DONE))
    return EntryReader(stage, CALLER, "shop", TableFilter(white), None, place)


def test_the_statement_of_a_source_with_a_name_of_its_own_is_of_its_table() -> None:
    names = SourceNames([NamedTable("people", "shop.person")])
    body = ddl("ALTER TABLE person ADD x INT", sources=("people",)) + eop()
    (item,) = reader_of(names, r"shop\.person").take(body, (scn(500), WINDOW_DONE))
    assert item.kind is Kind.DDL
    assert seen(item.data).table == "shop.person"
    assert reader_of(names, r"shop\.other").take(body, (scn(500), WINDOW_DONE)) == []
