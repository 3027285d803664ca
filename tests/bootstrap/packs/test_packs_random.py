"""A table that is written, altered, emptied and seeded again, beside a packer that is killed.

Whatever has happened, a reader with packs gets what a reader without them gets, at every SCN.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from databus.bootstrap.packs.building import PackSizes
from databus.bootstrap.packs.packer import Packer
from databus.bootstrap.store.packs import table
from databus.bootstrap.store.retention import Retention
from databus.bootstrap.store.store import Store
from databus.bootstrap.store.values import SourceStatus, StoredEvent
from databus.schemas.avro_rows import row_codec, schema_id
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.metadata import EventMetadata, Op, encode_metadata, metadata_part
from databus.schemas.event.v2 import encode
from databus.schemas.scn import MAX_SCN
from databus.schemas.table import Column
from databus.schemas.table_change import TableChange, shape_id, with_change
from databus.schemas.table_schema import avro_schema
from tests.bootstrap.filled import PERSON, TEXTS, truncated
from tests.bootstrap.packs.reading import MOST_BYTES, read_table
from tests.bootstrap.store.test_retention import HOUR_S, NS, settings_of

SIZES = PackSizes(most_rows=10, fewest_rows=3, fewest_noted=2)
KEYS = 60
STEPS = 250
WRITES = ["begin", "move", "change", "add", "delete_within", "delete_outdated"]


class _Killed(Exception):  # noqa: N818 - it is no error
    pass


class Life:
    """What happens to a store; the random numbers say what."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_s = 1_000_000
        self.path = path
        self.store = self._open()
        self.tables = [PERSON]
        self.texts = [TEXTS[1]]
        self.rows: dict[int, str] = dict.fromkeys(range(KEYS // 2), "first")
        self.scn = 100
        self.packed = self.changed = 0
        self.store.add_sources({PERSON.source: 1})
        self.store.add_schemas(1, [(1, self.texts[0])])
        self.store.begin_log(self.scn)
        self.seed()
        self.packer = Packer(self.store, MOST_BYTES, SIZES)

    def _open(self) -> Store:
        return Store.open(self.path, now_ns=lambda: self.now_s * NS)

    def _event(self, key: int, name: str | None) -> StoredEvent:
        text = self.texts[-1]
        row = {"id": key, "name": name} | {
            column.name: key for column in self.tables[-1].columns[2:]
        }
        payload = Part(row_codec(text).encode(row), schema_id(text), 1)
        op = Op.DELETE if name is None else Op.UPDATE
        opcode = Opcode.DELETE if name is None else Opcode.UPSERT
        # Some relays send no metadata: such a row is not plain.
        is_plain = self.random.random() < 0.95
        metadata = metadata_part(encode_metadata(EventMetadata(op))) if is_plain else None
        event = Event(self.scn, self.scn, 1, 0, key, opcode, payload, metadata)
        return StoredEvent(self.scn, key, name is None, encode(event))

    def seed(self) -> None:
        """Seed the table anew, as of the newest SCN, perhaps with rows that nobody logged."""
        store, source = self.store, PERSON.source
        if store.source(source).status is SourceStatus.ACTIVE:
            store.reset_source(source)
            for key in self.rows:
                if self.random.random() < 0.1:
                    self.rows[key] = f"unlogged {self.random.random()}"
        store.begin_seeding(source, self.scn, 1)
        store.merge_chunk(source, [self._event(*row) for row in self.rows.items()], None)
        store.end_seeding(source, self.scn)
        self.scn += 1
        store.apply_window(self.scn, self.scn, [])
        store.activate_caught_up()
        assert store.source(source).status is SourceStatus.ACTIVE

    def write(self) -> None:
        self.scn += self.random.randrange(1, 3)
        self.now_s += self.random.choice([0, 0, 600])
        changes = {}
        for _ in range(self.random.choice([0, 1, 1, 2, 3, 20])):
            key = self.random.randrange(KEYS)
            name = None if self.random.random() < 0.3 else f"at {self.scn}"
            if name is not None:
                self.rows[key] = name
            elif self.rows.pop(key, None) is None:
                continue
            changes[key] = name
        events = [(1, self._event(key, name)) for key, name in changes.items()]
        assert self.store.apply_window(self.scn, self.scn, events)

    def empty(self) -> None:
        self.scn += 1
        self.rows.clear()
        assert self.store.apply_window(self.scn, self.scn, [(1, truncated(1, self.scn))])
        for _ in range(4):
            self.write()

    def alter(self) -> None:
        self.scn += 1
        number = len(self.texts)
        columns = (*self.tables[-1].columns, Column(f"c{number}", "integer", number + 1))
        self.tables.append(replace(self.tables[-1], columns=columns))
        change = TableChange(self.scn, shape_id(self.texts[-1]), added={f"c{number}": number})
        self.texts.append(with_change(avro_schema(self.tables[-1]), change))
        self.store.add_schemas(1, [(number + 1, self.texts[-1])])
        assert self.store.apply_window(self.scn, self.scn, [])

    def pack(self) -> None:
        for _ in range(self.random.choice([1, 2, 20])):
            self.packer.step()

    def kill(self) -> None:
        """Kill the packer within a transaction, after some of its writes."""
        write = self.random.choice(WRITES)
        done = getattr(table, write)

        def killed(*arguments: object) -> None:
            done(*arguments)
            raise _Killed

        with patch.object(table, write, killed):
            try:
                self.pack()
            except _Killed:
                self.reopen()

    def reopen(self) -> None:
        self.store.close()
        self.store = self._open()
        most_bytes = self.random.choice([MOST_BYTES, MOST_BYTES, 3000, 0])
        self.packer = Packer(self.store, most_bytes, SIZES)

    def retain(self) -> None:
        self.now_s += self.random.choice([0, HOUR_S])
        settings = settings_of(log_retention_s=3.0 * HOUR_S, deleted_retention_s=1.0 * HOUR_S)
        retention = Retention(self.store, settings, lambda: self.now_s * NS)
        while retention.step():
            pass

    def compare(self) -> None:
        state = self.store.source(PERSON.source)
        floor_scn = max(state.floor_scn, state.log_floor_scn)
        position_scn = self.store.position().scn
        scn = self.random.choice([position_scn, self.random.randint(floor_scn, position_scn)])
        after = self.random.choice([0, 0, self.random.randrange(KEYS)])
        until = self.random.choice([MAX_SCN, MAX_SCN, after + self.random.randrange(1, KEYS)])
        read = [
            read_table(
                self.store,
                state.name,
                scn,
                takes_packs=takes_packs,
                after_row=after,
                until_row=until,
                page_bytes=self.random.choice([2500, 1 << 22]),
            )
            for takes_packs in (True, False)
        ]
        assert read[0].rows == read[1].rows
        if (scn, after, until) == (position_scn, 0, MAX_SCN):
            assert {row[0]: row[1] for row in read[0].rows} == self.rows
        self.packed += read[0].packed
        self.changed += bool(read[0].packed) and read[0].packed < len(read[0].rows)

    def live(self) -> None:
        often = [self.write] * 8 + [self.pack] * 6 + [self.kill] * 2 + [self.retain] * 2
        seldom = [self.reopen, self.seed, self.empty, self.alter]
        for _ in range(STEPS):
            self.random.choice(often if self.random.random() < 0.95 else seldom)()
            self.compare()


@pytest.mark.parametrize("seed", range(4))
def test_a_reader_with_packs_gets_what_a_reader_without_them_gets(
    tmp_path: Path, seed: int
) -> None:
    life = Life(tmp_path / "shop.db", seed)
    try:
        life.live()
    finally:
        life.store.close()
    assert life.packed > STEPS
    assert life.changed > STEPS // 50
