"""MaxSCN and epochs under a lease: the owner shares them, a relay that stands by does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from databus.leases.errors import StaleTermError
from databus.leases.file_records import FileRecords
from databus.relay.capture.max_scn import FileMaxScn, RecordMaxScn
from databus.relay.capture.standby.leased_state import LeasedEpochs, LeasedMaxScn
from databus.relay.capture.standby.role import RoleChangedError
from databus.relay.sources.epochs import Epoch, Executed
from databus.schemas.log_mark import LogMark

MARK = LogMark(5, '{"file": "bin.000001"}')


class Owning:
    """An owner whose term the test sets; None = it stands by."""

    def __init__(self) -> None:
        self.term: int | None = None

    def under_term(self, write: Callable[[int], None]) -> bool:
        if self.term is None:
            return False
        try:
            write(self.term)
        except StaleTermError as error:
            raise RoleChangedError from error
        return True


def epoch(number: int, uri: str = "mysql://databus@one") -> Epoch:
    return Epoch(
        number, f"server-{number}", uri, number * 100, number * 100 - 10, "bin.1", 4, None, 0
    )


def test_max_scn_is_saved_by_the_owner_alone(tmp_path: Path) -> None:
    records, owner = FileRecords(tmp_path), Owning()
    own = FileMaxScn(tmp_path / "one.scn")
    store = LeasedMaxScn(RecordMaxScn(records, "shop"), own, owner)
    store.save(4, 0)
    assert (store.load(), RecordMaxScn(records, "shop").load()) == (4, None)
    owner.term = 1
    store.begin_term(1)
    assert store.load() == 4  # what this relay saved before there was a lease
    store.save(5, 0, MARK)
    assert (own.load(), own.mark()) == (5, MARK)
    assert (store.load(), store.mark()) == (5, MARK)
    other_own = FileMaxScn(tmp_path / "other.scn")
    other = LeasedMaxScn(RecordMaxScn(records, "shop"), other_own, Owning())
    other.stand_by()
    assert (other.load(), other.mark()) == (None, MARK)
    other.save(3, 0, LogMark(3, '{"window": 3}'))  # it has taken over that much
    assert (other_own.load(), other_own.mark()) == (3, MARK)
    other.begin_term(2)
    assert (other.load(), other.mark()) == (5, MARK)
    # The one of before was frozen, and wakes.
    with pytest.raises(RoleChangedError):
        store.save(6, 0)
    assert store.load() == RecordMaxScn(records, "shop").load() == 5


def test_an_epoch_is_shared_before_it_is_known_here(tmp_path: Path) -> None:
    owner, shared = Owning(), list[tuple[tuple[Epoch, ...], Executed | None, int]]()

    def share(epochs: tuple[Epoch, ...], executed: Executed | None, term: int) -> None:
        if term < 2:
            raise StaleTermError("the record", term, 2)
        shared.append((epochs, executed, term))

    table = LeasedEpochs(tmp_path / "epochs.json", owner, share)
    table.adopt([epoch(0)])  # it stands by, and follows the relay that captures
    assert shared == []
    owner.term = 2
    table.take_over((epoch(0), epoch(1)), Executed(120, "a:1-3"))
    assert table.epochs == (epoch(0), epoch(1))
    table.begin(epoch(2))
    three = table.epochs
    assert three[-1] == epoch(2)
    assert shared[-1] == (three, Executed(120, "a:1-3"), 2)
    table.note(Executed(230, "a:1-9"))
    table.save()
    assert shared[-1] == (three, Executed(230, "a:1-9"), 2)
    count = len(shared)
    table.save()
    assert len(shared) == count  # nothing is new
    owner.term = 1  # as one that was frozen has it
    with pytest.raises(RoleChangedError):
        table.begin(epoch(3))
    assert table.newest == epoch(2)
    again = LeasedEpochs(tmp_path / "epochs.json", owner, share)
    assert (again.epochs, again.executed) == (table.epochs, Executed(230, "a:1-9"))
