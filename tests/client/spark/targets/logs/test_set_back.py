"""A table that its own format has set back to an earlier version has the commit log of then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from databus.client.spark.targets.logs import delta_log, iceberg_log
from tests.client.spark.targets.logs.set_back_table import SetBack

pytestmark = pytest.mark.usefixtures("delta_on_executors", "iceberg_on_executors")

FORMS = ["delta", "delta+spark", "iceberg", "iceberg+spark"]
of_both_formats = pytest.mark.parametrize("table", ["delta", "iceberg"], indirect=True)


@pytest.fixture(params=FORMS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SetBack]:
    made = SetBack(request.param, tmp_path)
    yield made
    made.target.close()


def test_the_commit_log_goes_back_with_the_rows_and_on_from_there(table: SetBack) -> None:
    table.batch(1)
    table.batch(2)
    place = table.place()
    table.batch(3)
    table.batch(3, "later")
    table.back_to(place)
    assert table.says("app", "later") == ([2, None], {"shop": 2})
    table.append()  # does not hide it
    assert table.says("app", "later") == ([2, None], {"shop": 2})
    table.batch(4)
    assert table.says("app", "later") == ([4, None], {"shop": 4})
    # The same number as before, which is in the table's app transactions.
    table.batch(3, "later")
    assert table.says("app", "later") == ([4, 3], {"shop": 3})
    assert table.ids() == {1, 2, 3, 4}


def test_the_same_batch_again_is_recorded_although_its_number_was_already(table: SetBack) -> None:
    table.batch(1)
    place = table.place()
    table.batch(2)
    table.back_to(place)
    table.batch(2)
    table.append()
    assert table.says("app") == ([2], {"shop": 2})
    assert table.ids() == {1, 2}


@of_both_formats
def test_a_table_set_forward_again_has_what_it_had(table: SetBack) -> None:
    table.batch(1)
    first = table.place()
    table.batch(2)
    last = table.place()
    table.back_to(first)
    back = table.place()
    assert table.says("app") == ([1], {"shop": 1})
    table.back_to(last)
    assert table.says("app") == ([2], {"shop": 2})
    # The version of a RESTORE, which has rows of an earlier one.
    table.back_to(back)
    assert table.says("app") == ([1], {"shop": 1})
    table.batch(2)
    assert (table.says("app"), table.ids()) == (([2], {"shop": 2}), {1, 2})


def as_before(patched: pytest.MonkeyPatch) -> None:
    """Have targets write their commit logs as earlier versions did."""
    recording = delta_log.DeltaEntries.recording

    def unmarked(self: Any, after: Any) -> Any:
        properties = recording(self, after)
        properties.custom_metadata = None
        return properties

    patched.setattr(delta_log.DeltaEntries, "recording", unmarked)
    place = "databus.client.spark.targets.iceberg"
    patched.setattr(f"{place}.in_summary", lambda _: {})
    patched.setattr(f"{place}.in_properties", lambda _, entries: iceberg_log.in_summary(entries))


@of_both_formats
def test_a_table_of_an_earlier_version_is_believed_until_it_is_set_back(
    table: SetBack, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        as_before(patched)
        table.batch(1)
        place = table.place()
        table.batch(2)
    assert table.says("app") == ([2], {"shop": 2})
    table.batch(3)
    table.back_to(place)
    # An Iceberg table of then does not tell what its rows have.
    if table.is_delta:
        assert table.says("app") == ([1], {"shop": 1})
    else:
        assert table.says("app") == ([None], {})


@of_both_formats
def test_batches_of_an_earlier_version_do_not_hide_that_it_was_set_back(
    table: SetBack, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.batch(1)
    place = table.place()
    table.batch(2)
    table.back_to(place)
    with monkeypatch.context() as patched:
        as_before(patched)
        # It believed the batches that it found.
        patched.setattr(delta_log, "_last_restore", lambda *_: None)
        with closing(table.opened()) as older:
            table.batch(3, target=older)
    assert table.says("app") == ([1], {"shop": 1})
