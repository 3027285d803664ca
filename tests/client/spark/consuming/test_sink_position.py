"""What a target has of a query's batches follows from the position that it keeps."""

from __future__ import annotations

from databus.client.sinks.contract import Position
from databus.client.spark.consuming.sink_position import Batch, Reached
from databus.schemas.checkpoint import Checkpoint

SEVENTH, EIGHTH = Batch("q", 7), Batch("q", 8)


def read_back(reached: Reached) -> Reached:
    """Return what the text says that a target keeps."""
    return Reached.of(Position.from_json(reached.position("shop").to_json()))


def test_a_batch_that_is_repeated_is_left_out_up_to_where_it_was_written() -> None:
    reached = read_back(Reached(130).after(SEVENTH, 111).after(SEVENTH, 140))
    assert [reached.has(SEVENTH, scn) for scn in (111, 140, 141)] == [True, True, False]


def test_of_the_next_batch_nothing_is_left_out_although_its_sources_join_at_lower_scns() -> None:
    reached = read_back(Reached(-1).after(SEVENTH, 130))
    assert not reached.has(EIGHTH, 111)


def test_a_source_that_joins_sets_no_lower_position_and_its_batch_goes_on_where_it_was() -> None:
    reached = read_back(Reached(130).after(EIGHTH, 111))
    assert reached.position("shop").scn == 130
    assert [reached.has(EIGHTH, scn) for scn in (111, 115, 120)] == [True, False, False]


def test_of_another_query_and_of_an_earlier_batch_the_scn_alone_tells_and_that_is_not_sure() -> (
    None
):
    reached = read_back(Reached(-1).after(SEVENTH, 130))
    for batch in (Batch("other", 9), Batch("q", 6)):
        assert not reached.is_sure_of(batch)
        assert [reached.has(batch, scn) for scn in (130, 131)] == [True, False]
    assert reached.is_sure_of(SEVENTH)
    assert reached.is_sure_of(EIGHTH)


def test_a_position_of_an_earlier_version_or_of_another_writer_tells_its_scn_alone() -> None:
    assert Reached.of(Position("shop", Checkpoint.at(130))) == Reached(130)
    ours = Reached(-1).after(SEVENTH, 130).position("shop").checkpoint
    gone_on = Checkpoint.at(150).with_extra(**ours.extra)
    assert Reached.of(Position("shop", gone_on)) == Reached(150)
