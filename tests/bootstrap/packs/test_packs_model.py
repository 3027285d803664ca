"""Whatever happens to a store, a table that is read from its packs has the rows that it has.

All that `test_model` does to a store, with a packer beside it that is killed at any write.
"""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import rule

from databus.bootstrap.packs import packer as packer_module, reading
from databus.bootstrap.packs.packer import Packer
from databus.bootstrap.store.packs import table
from databus.bootstrap.store.store import Store
from databus.schemas.scn import MAX_SCN
from tests.bootstrap.filled import TEXTS
from tests.bootstrap.packs.reading import MOST_BYTES, SMALL, read_table
from tests.bootstrap.store.test_model import RARELY, StoreMachine, is_active

WRITES = ["begin", "move", "change", "add", "delete_within", "delete_outdated"]


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use packs of few rows even if one of them has changed."""
    monkeypatch.setattr(packer_module, "CHANGED_SHARE", 2)
    monkeypatch.setattr(reading, "MOST_CHANGED", 1)


class _Killed(Exception):  # noqa: N818 - it is no error
    pass


class PackedMachine(StoreMachine):
    packed = changed = 0

    def open(self) -> Store:
        store = super().open()
        for src_id, text in TEXTS.items():
            store.add_schemas(src_id, [(1, text)])
        return store

    @rule(steps=st.integers(1, 12), is_on=st.sampled_from([True] * 9 + [False]))
    def pack(self, steps: int, is_on: bool) -> None:
        """Pack as after a start."""
        packer = Packer(self.store, MOST_BYTES if is_on else 0, SMALL)
        for _ in range(steps):
            if not packer.step():
                break
        self.read_rows(0, 0, is_part=False)

    @rule(write=st.sampled_from(WRITES), steps=st.integers(1, 6))
    def pack_and_be_killed(self, write: str, steps: int) -> None:
        """Pack, and be killed within a transaction."""
        done = getattr(table, write)

        def kill(*arguments: object) -> None:
            done(*arguments)
            raise _Killed

        packer = Packer(self.store, MOST_BYTES, SMALL)
        try:
            with patch.object(table, write, kill):
                for _ in range(steps):
                    packer.step()
        except _Killed:
            self.reopen()

    @rule(behind=st.integers(0, 4), after=st.integers(0, 6), is_part=RARELY)
    def read_rows(self, behind: int, after: int, is_part: bool) -> None:
        position_scn = self.store.position().scn
        for state in filter(is_active, self.store.sources()):
            scn = max(position_scn - behind, state.floor_scn, state.log_floor_scn)
            bounds = (after, after + 4) if is_part else (0, MAX_SCN)
            found, expected = (
                read_table(
                    self.store,
                    state.name,
                    scn,
                    takes_packs=takes_packs,
                    after_row=bounds[0],
                    until_row=bounds[1],
                )
                for takes_packs in (True, False)
            )
            assert found.rows == expected.rows
            assert not expected.packed
            type(self).packed += found.packed
            type(self).changed += bool(found.packed) and found.packed < len(found.rows)


TestPackedStore = PackedMachine.TestCase
TestPackedStore.settings = settings(stateful_step_count=40, max_examples=60, deadline=None)


def test_some_of_the_rows_came_in_packs() -> None:
    """After the machine: it would show nothing otherwise."""
    assert PackedMachine.packed
    assert PackedMachine.changed
