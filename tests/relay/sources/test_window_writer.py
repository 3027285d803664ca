"""Transactions become windows: in batches, in order, and what is good before what is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from databus.registry.registry import SchemaRegistry
from databus.registry.store import MemoryStore
from databus.relay.capture.window_encoder import WindowEncoder
from databus.relay.sources.source import Captured, Newest, ReadItem
from databus.relay.sources.window_writer import BATCH_BYTES, WindowWriter
from databus.schemas.errors import SourceStoppedError
from databus.schemas.windows import EmptyWindow, WindowBatch, WindowEnd
from tests.relay.fakes import PERSON, insert, transaction


@pytest.fixture
def encoder() -> WindowEncoder:
    registry = SchemaRegistry(MemoryStore())
    registry.add_source(PERSON.source, 1)
    return WindowEncoder(registry, {PERSON.source: 1})


def reading(*items: ReadItem) -> Callable[[], Sequence[ReadItem]]:
    return lambda: items


def scns_of(captured: Sequence[Captured]) -> list[list[int]]:
    """Return the SCNs of each batch."""
    assert all(isinstance(item, WindowBatch) for item in captured)
    return [[w.scn for w in item.windows()] for item in captured if isinstance(item, WindowBatch)]


def test_what_is_read_together_is_one_batch(encoder: WindowEncoder) -> None:
    first, second = transaction(1, insert(1)), transaction(2, insert(2), insert(3))
    (batch,) = WindowWriter("shop", encoder).write_from(reading(first, second))
    assert isinstance(batch, WindowBatch)
    assert list(batch.windows()) == [encoder.encode(first), encoder.encode(second)]
    assert (batch.row_count, batch.last_timestamp_ns) == (3, 2_000_000_000)


def test_a_batch_ends_when_it_is_large(encoder: WindowEncoder) -> None:
    large = transaction(1, insert(1, "x" * BATCH_BYTES))
    found = WindowWriter("shop", encoder).write_from(reading(large, transaction(2, insert(2))))
    assert scns_of(found) == [[1], [2]]


def test_order_is_kept_between_batches_and_other_windows(encoder: WindowEncoder) -> None:
    end = WindowEnd(7, 3, 3, 1)
    items = (transaction(1, insert(1)), transaction(2), end, transaction(4, insert(4)))
    one, empty, same, four = WindowWriter("shop", encoder).write_from(reading(*items))
    assert (empty, same) == (EmptyWindow(2, 2_000_000_000), end)
    assert scns_of([one, four]) == [[1], [4]]


def test_scns_that_fall_are_left_to_the_capture_loop(encoder: WindowEncoder) -> None:
    items = (transaction(5, insert(1)), transaction(4, insert(2)))
    assert scns_of(WindowWriter("shop", encoder).write_from(reading(*items))) == [[5], [4]]


def test_a_window_that_the_ring_has_is_not_encoded_again(encoder: WindowEncoder) -> None:
    unfit = transaction(1, insert(1, 7))  # type: ignore[arg-type]
    writer = WindowWriter("shop", encoder, Newest(1, 1))
    (batch,) = writer.write_from(reading(unfit, transaction(2, insert(2))))
    assert isinstance(batch, WindowBatch)
    assert [(w.scn, bool(w.data)) for w in batch.windows()] == [(1, False), (2, True)]
    (left,) = batch.after(1).windows()
    assert left == encoder.encode(transaction(2, insert(2)))


def test_windows_before_a_row_that_does_not_fit_are_handed_over_first(
    encoder: WindowEncoder,
) -> None:
    unfit = transaction(2, insert(2, 7))  # type: ignore[arg-type]
    writer = WindowWriter("shop", encoder)
    good = writer.write_from(reading(transaction(1, insert(1)), unfit, transaction(3, insert(3))))
    assert scns_of(good) == [[1]]
    with pytest.raises(SourceStoppedError, match=r"row 0 .*acknowledged_scns = \[2\]") as raised:
        writer.write_from(lambda: pytest.fail("nothing is read after that"))
    assert (raised.value.scn, raised.value.position) == (1, "log:2")


def test_a_row_that_does_not_fit_is_told_at_once_when_nothing_is_before_it(
    encoder: WindowEncoder,
) -> None:
    unfit = transaction(2, insert(2, 7))  # type: ignore[arg-type]
    with pytest.raises(SourceStoppedError):
        WindowWriter("shop", encoder).write_from(reading(unfit))


def test_without_an_encoder_all_windows_are_empty() -> None:
    found = WindowWriter("shop").write_from(reading(transaction(1, insert(1)), transaction(2)))
    assert found == [EmptyWindow(1, 1_000_000_000), EmptyWindow(2, 2_000_000_000)]
